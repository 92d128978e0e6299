"""Where each recommended model would go on a machine, and what is known of its speed.

The planner of placements says where, as it will when the model is loaded: with the same numbers of
free memory, for one line of CONTEXT tokens and a draft head. Of the speed only what was measured is
told, and a bound that follows from what was: a token cannot be made before the weights that it
needs from host memory have been read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import specfit.backend
from specfit.backend.fit import RESERVE, TooBig, fit
from specfit.backend.plan import Gpu, Plan, Wish
from specfit.backend.plan import Machine as Memory

from .doctor_checks import gib
from .doctor_llama import Llama
from .doctor_machine import Machine
from .recommended import EXPERTS, EXPERTS_USED, RECOMMENDED, Recommended

# What Apple's GPUs may take of the host's memory, where llama.cpp has not said it.
_OF_SHARED = 0.7
# Profiles that ship with SpecFit, each with the placement that it was measured in.
_MEASURED = {
    "gpu": "all on the GPU",
    "half-layers": "with the experts of 24 of 48 layers on the CPU",
    "cpu-experts": "with all experts on the CPU",
}


@dataclass(frozen=True)
class Advice:
    """plan: None if it does not fit; then `short` bytes of host memory are missing.

    measured: tokens per second without drafts when it was last loaded here, None if never.
    at_most: tokens per second without drafts, None without a bound.
    """

    model: Recommended
    plan: Plan | None
    short: int = 0
    measured: float | None = None
    at_most: float | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether all of it is."""
        return self.plan is not None and _is_on_gpu(self.plan, self.model)

    @property
    def fits_well(self) -> bool:
        return self.plan is not None and not self.plan.notice


def advise(
    machine: Machine, llama: Llama, measured: Mapping[str, float] | None = None
) -> tuple[Advice, ...]:
    """One for each recommended model, in their order. measured: tokens per second, by names."""
    memory = memory_of(machine, llama)
    return tuple(
        _advice(model, machine, memory, (measured or {}).get(model.name)) for model in RECOMMENDED
    )


def best(advice: Sequence[Advice]) -> Advice | None:
    """The one to begin with: what is wholly on the GPU; else four bits, the usual choice, since
    each further bit is read from host memory; else the largest that fits, if need be tightly."""
    well = [one for one in advice if one.fits_well]
    on_gpu = (one for one in well if one.on_gpu)
    usual = (one for one in well if one.model.quant == "Q4_K_M")
    tight = (one for one in reversed(advice) if one.plan is not None)
    return next(on_gpu, None) or next(usual, None) or next(iter(well), None) or next(tight, None)


def memory_of(machine: Machine, llama: Llama) -> Memory:
    """What placement has to work with. Where llama.cpp sees no GPU: as if it were built for those
    that the system has."""
    if llama.used:
        gpus = tuple(Gpu(name, free) for name, free in llama.used)
        return Memory(machine.ram_free, machine.ram, gpus, llama.shared)
    if any(gpu.vendor == "apple" for gpu in machine.gpus):
        of_host = Gpu("Apple GPU", int(_OF_SHARED * machine.ram_free))
        return Memory(machine.ram_free, machine.ram, (of_host,), True)
    own = (Gpu(gpu.name, gpu.vram_free) for gpu in machine.gpus if gpu.vram_free > RESERVE)
    return Memory(machine.ram_free, machine.ram, tuple(own))


def supposes_build(machine: Machine, llama: Llama) -> str:
    """The GPUs that llama.cpp would first have to be built for; "" for none."""
    return "" if llama.used else ", ".join(gpu.name for gpu in memory_of(machine, llama).gpus)


def where(advice: Advice) -> str:
    """Where it would go, or how much is missing, in words."""
    if advice.plan is None:
        return f"does not fit: {gib(advice.short)} short"
    n, placement = advice.model.shape.layers, advice.plan.placement
    if placement.gpu_layers == 0:
        words = "all in host memory"
    elif advice.on_gpu:
        words = "all on the GPU"
    elif advice.plan.cache:
        share = advice.plan.cache / sum(advice.model.weights.experts)
        words = f"experts in host memory, {share:.0%} of them on the GPU too, as they are used"
    elif placement.gpu_layers <= n:
        words = f"{placement.gpu_layers} of {n + 1} layers on the GPU, all experts in host memory"
    else:
        of_layers = "all" if placement.n_cpu_moe == n else f"{placement.n_cpu_moe} of {n} layers'"
        words = f"{of_layers} experts in host memory, the rest on the GPU"
    return words + (", but tightly" if advice.plan.notice else "")


def speed(advice: Advice) -> str:
    """What is known, in words."""
    if advice.measured is not None:
        return f"{_rate(advice.measured)} when last loaded here"
    if advice.at_most is not None:
        return f"speed unknown, at most {_rate(advice.at_most)}"
    return "speed unknown"


def read_from_host(model: Recommended, plan: Plan) -> int:
    """Bytes of weights in host memory that one token needs, but for its row of the embeddings."""
    weights, placement = model.weights, plan.placement
    first = placement.first_gpu_layer(len(weights.layers))
    experts = sum(weights.experts[: max(first, placement.n_cpu_moe)])
    output = 0 if placement.gpu_layers else weights.output
    return sum(weights.layers[:first]) + experts * EXPERTS_USED // EXPERTS + output


def measured_elsewhere() -> str:
    """What the shipped profiles say of plain decoding, with the machine, in words."""
    folder = Path(specfit.backend.__file__).with_name("profiles")
    said, machine = [], ""
    for name, placement in _MEASURED.items():
        profile = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        ms = min(float(point["ms"]) for point in profile["points"] if point["rows"] == 1)
        said.append(f"{_rate(1000 / ms)} {placement}")
        machine = f"{profile['model']}; {profile['machine']}"
    return f"{', '.join(said)} ({machine})"


def last_loads(costs: Path, files: Mapping[str, Path]) -> Iterator[tuple[str, float]]:
    """Names of `files` with the tokens per second that plain decoding made when each was last
    loaded, of the costs that were measured then. costs: the folder that these are kept in."""
    times: dict[Path, tuple[float, float]] = {}
    for path in sorted(costs.glob("*.json")):
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            model = Path(kept["model"])
            if kept.get("cached"):
                continue  # it depends on what is in the cache
            ms = min(float(point["ms"]) for point in kept["points"] if point["rows"] == 1)
            times[model] = max(times.get(model, (0.0, 0.0)), (path.stat().st_mtime, ms))
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue  # of an older version, or damaged
    for name, file in files.items():
        ms = times.get(file.resolve(), (0.0, 0.0))[1]
        if ms > 0:
            yield name, 1000 / ms


def _advice(model: Recommended, machine: Machine, memory: Memory, measured: float | None) -> Advice:
    try:
        plan = _plan(model, memory)
    except TooBig as error:
        return Advice(model, None, error.short)
    read = read_from_host(model, plan)
    known = read and machine.bandwidth and not (memory.shared or plan.cache)
    at_most = machine.bandwidth / read if known else None
    return Advice(model, plan, 0, measured, at_most)


def _plan(model: Recommended, memory: Memory) -> Plan:
    """As when loading: planned anew with larger buffers if some experts stay behind."""
    for split in (False, True):
        needs = model.needs(on_gpu=memory.gpus != (), split=split)
        plan = fit(model.weights, needs, memory, Wish(expert_cache=None))
        if _is_on_gpu(plan, model) or not memory.gpus:
            break
    return plan


def _rate(per_second: float) -> str:
    return f"{per_second:.{0 if per_second >= 10 else 1}f} tokens/s"


def _is_on_gpu(plan: Plan, model: Recommended) -> bool:
    return plan.placement.gpu_layers > model.shape.layers and plan.placement.n_cpu_moe == 0
