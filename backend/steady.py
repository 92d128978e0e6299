"""An engine that gives the same text to the same prompt, to the byte, whatever ran before.

Batches of different width round differently, so a text depends on what was drafted, and that on
measured times and on what was learned. Here both are read once: costs and beliefs as they were when
the pair of models was first run so on this machine. They are kept in the user's cache folder and
never change, so that a run that is stopped and goes on, or is made again in a week, plans alike.
What a GPU computes rounds differently too, so every text begins with the same experts in the cache.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, replace
from pathlib import Path

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specfit.planner import (
    Acceptance,
    Beliefs,
    CycleCost,
    Forecast,
    LiveCost,
    Outlook,
    Overheads,
    Policy,
    Spec,
    UnionByRows,
)
from specfit.planner.steady import Steady

from .cache import DAMAGE, archived, cache_path, identity, unarchived
from .engine import Engine
from .errors import SpecfitError
from .held import HeldExperts
from .loading import Loaded, LoadOptions, load
from .model import Progress

FORMAT = 5
State = dict[str, NDArray[np.generic]]


class SteadyEngine(Engine):
    """Its answers depend on the prompt and the options only, if `forget` is called before each.

    One line, and one generation at a time.
    """

    def __init__(self, loaded: Loaded, options: LoadOptions) -> None:
        """Raises SpecfitError if the model would not be computed as when its state was kept."""
        super().__init__(loaded)
        _check_cache(options.expert_cache, loaded.held, loaded.notices)
        self._first = loaded.new_beliefs()
        state = _cost_state(loaded.own_cost) | _overheads_state(loaded.overheads)
        state |= _named("beliefs/", self._first.state())
        state["placement"] = np.array(json.dumps(asdict(loaded.model.placement)))
        if loaded.held is not None:
            state["held/uses"] = loaded.held.uses
        kept = _kept(_path(loaded, options), state)
        _check_placement(state, kept)
        state = kept
        self._held_uses = None
        if loaded.held is not None:
            self._held_uses = np.asarray(state["held/uses"], np.float64)
        self._believed = _within("beliefs/", state)
        self._cost = LiveCost(_cost(state), follows=False)
        # Never observing, it has no time for that either.
        self._ledger.overheads = replace(_overheads(state), observe_ms=0.0)

    @classmethod
    def load(cls, options: LoadOptions, progress: Progress | None = None) -> SteadyEngine:
        options = fixed(options)
        return cls(load(options, progress), options)

    def forget(self) -> None:
        super().forget()
        if self._held is not None and self._held_uses is not None:
            self._held.begin_with(self._held_uses)

    def policy(self, spec: Spec) -> Policy:
        """A new one every time, all of the same state."""
        policy = Steady(self._policy(spec, self._beliefs(), self._cost))
        self._ledger.costs = {policy: self._cost}
        return policy

    def _beliefs(self) -> Beliefs:
        info, first, forecast = self.model.info, self._first, None
        weights = first.layer_weights
        if first.forecast is not None:
            forecast = Forecast(info.n_layers, info.n_experts, info.n_experts_used, weights)
        unions = UnionByRows(first.unions.mean)
        beliefs = Beliefs(Acceptance(), Outlook(), forecast, unions, weights)
        beliefs.restore(self._believed)
        return beliefs


def _path(loaded: Loaded, options: LoadOptions) -> Path:
    """Where the state is kept: it depends on all that costs do, and on the pair; of where things
    lie, on what was asked for."""
    model = loaded.model
    memory = loaded.memory
    depends_on = [
        FORMAT,
        platform.node(),
        platform.processor() or platform.machine(),
        llama_cpp.__version__,
        *identity(model.info.path),
        None if memory is None else memory.name,
        loaded.context.threads,
        loaded.context.ctx,
        [options.gpu_layers, options.n_cpu_moe, options.vram_budget, options.expert_cache],
        asdict(model.runtime),
    ]
    return cache_path("steady", depends_on, ".npz")


def fixed(options: LoadOptions) -> LoadOptions:
    """Without what would follow from how much memory happens to be free."""
    runtime = options.runtime
    if runtime.load_mode == "auto":
        runtime = replace(runtime, load_mode="mmap")
    return replace(options, runtime=runtime, expert_cache=options.expert_cache or 0)


def _check_cache(asked: int | None, held: HeldExperts | None, notices: Sequence[str]) -> None:
    if asked and held is None:
        raise SpecfitError(" ".join(["a deterministic run needs the cache it names;", *notices]))
    if held is not None and held.lacking:
        raise SpecfitError(
            f"the GPU has no room for {held.lacking} of the experts that --expert-cache names, and "
            "a deterministic run needs all; free memory there, or name a smaller cache"
        )


def _check_placement(now: State, kept: State) -> None:
    """That it is the one of the first run: it follows from how much GPU memory is free."""
    if not np.array_equal(now["placement"], kept["placement"]):
        raise SpecfitError(
            "the layers or their experts would lie elsewhere than when this model was first run "
            "deterministically; free GPU memory, or place them by -ngl and --n-cpu-moe"
        )


def _kept(path: Path, state: State) -> State:
    """The state in the file; `state`, which is put there, if there is none. Of several that begin
    at once, the first decides. Where nothing can be kept the state holds for this engine."""
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    if (read := _read(path)) is not None:
        return read
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(archived(state))
        with suppress(FileExistsError):
            path.hardlink_to(scratch)
    except OSError:
        pass
    finally:
        with suppress(OSError):
            scratch.unlink()
    return _read(path) or state


def _read(path: Path) -> State | None:
    try:
        return unarchived(path)
    except FileNotFoundError:
        return None
    except DAMAGE:
        with suppress(OSError):
            path.unlink()  # a damaged file is of no use to any run
        return None


def _cost_state(cost: CycleCost) -> State:
    nothing = np.zeros(0)
    return {
        "cost/rows_ms": cost.rows_ms,
        "cost/expert_ms": cost.expert_ms,
        "cost/layer_weights": cost.layer_weights,
        "cost/level_ms": cost.level_ms,
        "cost/switch_ms": np.array(cost.switch_ms),
        "cost/settle_ms": np.array(cost.settle_ms),
        "cost/context_ms": nothing if cost.context_ms is None else cost.context_ms,
        "cost/unions": nothing if cost.unions is None else cost.unions,
        "cost/use_share": np.array(cost.use_share),
    }


def _overheads_state(overheads: Overheads) -> State:
    return {"overheads/ms": np.array(astuple(overheads))}


def _overheads(state: State) -> Overheads:
    return Overheads(*np.asarray(state["overheads/ms"], np.float64).tolist())


def _cost(state: State) -> CycleCost:
    cost = {name: np.asarray(a, np.float64) for name, a in _within("cost/", state).items()}
    return CycleCost(
        cost["rows_ms"],
        cost["expert_ms"],
        cost["layer_weights"],
        cost["level_ms"],
        float(cost["switch_ms"]),
        float(cost["settle_ms"]),
        cost["context_ms"] if len(cost["context_ms"]) else None,
        float(cost["use_share"]),
        unions=cost["unions"] if len(cost["unions"]) else None,
    )


def _named(prefix: str, state: State) -> State:
    return {prefix + name: array for name, array in state.items()}


def _within(prefix: str, state: State) -> State:
    return {
        name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)
    }
