"""What `test_held.py` has a process with a stand-in for a GPU do; it answers in plain values."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
from expert_cache_rig import standin

from specfit.backend import Engine, LoadOptions, Sampling, Spec, library
from specfit.backend.cached_cost import hit_cycles
from specfit.backend.calibration import ROW_COUNTS
from specfit.backend.errors import SpecfitError
from specfit.backend.expert_cache import MAX_ROWS, ExpertCache
from specfit.backend.madeup import Cycles
from specfit.backend.steady import SteadyEngine

QUESTION = [{"role": "user", "content": "Tell me a short story about a fox."}]
MODES = ("off", "chain:2", "specfit", "off")


def loaded(cache_mib: float | None, kind: type[Engine] = Engine, **options: Any) -> Engine:
    library.start()
    gpu = standin()
    gpu.standin_immediate(True)
    gpu.standin_free_bytes(1 << 40)
    cache = None if cache_mib is None else int(cache_mib * 2**20)
    return kind.load(LoadOptions(gpu_layers=-1, expert_cache=cache, ctx=512, threads=1, **options))


def answers(engine: Engine, modes: tuple[str, ...] = MODES) -> list[dict[str, Any]]:
    found = []
    for mode in modes:
        generation = engine.generate(
            QUESTION, sampling=Sampling(temp=0), spec=Spec.parse(mode), max_tokens=40
        )
        text = "".join(generation)
        means = generation.report.means
        found.append(
            {
                "text": text,
                "hit_rate": means.hit_rate,
                "uploaded": means.uploaded,
                "paid": means.union_per_layer,
                "uses": [cycle.hits + cycle.misses for cycle in generation.cycles],
                "rows": [cycle.rows for cycle in generation.cycles],
                "first": generation.cycles[0].hits,
            }
        )
    return found


def told(engine: Engine) -> dict[str, Any]:
    return {
        "description": engine.description,
        "notices": list(engine.notices),
        "cached": engine.model.placement.cached,
    }


def with_cache(cache_mib: float | None, drafting: bool = True) -> dict[str, Any]:
    with loaded(cache_mib, drafting=drafting) as engine:
        modes = MODES if drafting else ("off", "off")
        return {"answers": answers(engine, modes), **told(engine), "trouble": engine.trouble()}


def failing() -> dict[str, Any]:
    """Uploads fail once an answer is out."""
    with loaded(8) as engine:
        before = answers(engine, ("off",))
        standin().standin_lose_uploads(10**6)
        try:
            after = answers(engine, ("chain:2", "off"))
        finally:
            standin().standin_lose_uploads(0)
        return {
            "answers": before + after,
            "trouble": engine.trouble(),
            "again": engine.trouble(),
        }


def steadily(prompts: list[str]) -> dict[str, Any]:
    """The hits of every cycle of each answer."""
    found = {}
    with loaded(5, SteadyEngine) as engine:
        for prompt in prompts:
            engine.forget()
            generation = engine.generate(
                [{"role": "user", "content": prompt}], sampling=Sampling(temp=0), max_tokens=30
            )
            text = "".join(generation)
            found[prompt] = text, [(cycle.hits, cycle.rows) for cycle in generation.cycles]
    return found


def steadily_with_less() -> str:
    """What is said where the GPU has room for half of what is named."""
    whole = ExpertCache.allocate
    with patch.object(ExpertCache, "allocate", lambda cache, budget: whole(cache, budget // 2)):
        try:
            loaded(5, SteadyEngine).close()
        except SpecfitError as error:
            return str(error)
    return ""


def steadily_without() -> str:
    """What is said where there can be no cache at all."""
    off = SpecfitError("the expert cache is off: no compiler")
    with patch("specfit.backend.loading.ExpertCache", side_effect=off):
        try:
            loaded(5, SteadyEngine).close()
        except SpecfitError as error:
            return str(error)
    return ""


def of_full_hits() -> dict[int, float]:
    """Experts a layer that were missing where all were to be held, by rows."""
    with loaded(20) as engine:
        held = engine._held
        assert held is not None
        engine.context.decode_prompt(list(range(100, 164)))
        cycles = Cycles.behind(engine.context)
        counts = [rows for rows in ROW_COUNTS if rows <= MAX_ROWS]
        found = {rows: hit_cycles(cycles, held, rows)[1] for rows in counts}
        engine.context.truncate(0)
        return {rows: float(missing[:, 0].mean()) for rows, missing in found.items()}


def moved(seed: int) -> dict[str, Any]:
    """Whatever is to be held is, as far as there are slots, and what the library says is so."""
    random = np.random.default_rng(seed)
    with loaded(4, drafting=False) as engine:
        held = engine._held
        assert held is not None
        right = []
        for _ in range(6):
            wanted = random.random(held.resident.shape) < random.random()
            held.hold(wanted)
            there = held.resident
            right.append(bool((there == held._cache.residency).all()))
            full = np.minimum(wanted.sum(axis=1), held.slots)
            right.append(bool(((there & wanted).sum(axis=1) == full).all()))
        return {"right": right, "slots": held.slots.tolist()}
