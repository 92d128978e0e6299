"""Which layers, and whose experts, go to the GPUs, and whether the rest fits host memory.

Pure: from bytes to a plan. llama.cpp's rules: the last layers go to GPUs, the output counting as
one more behind them; a layer's keys and values lie where it does; experts of the first `n_cpu_moe`
layers stay in host memory; token embeddings always do. Several GPUs take the layers in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from .errors import SpecfitError
from .plan import GIB, Machine, Needs, Part, Placement, Plan, Weights, Wish

# Left free on every GPU that is used, as llama.cpp does: for the driver's context, the buffers that
# kernels take while they run, and a desktop.
RESERVE = GIB
# Bits a weight, of a whole file: what to look for when a model does not fit.
CLASSES = (
    ("Q8_0", 8.5),
    ("Q6_K", 6.6),
    ("Q5_K_M", 5.7),
    ("Q4_K_M", 4.9),
    ("Q3_K_M", 3.9),
    ("Q2_K", 3.0),
)
_LEAST_CTX = 512
# GPUs on which a cache of experts was tried, as ggml's backends call them, and makers: on others it
# has to be asked for.
TRIED = ("CUDA", "NVIDIA")


class TooBig(SpecfitError):
    """A model that no placement can hold. short: bytes of host memory that are missing."""

    def __init__(self, message: str, short: int) -> None:
        super().__init__(message)
        self.short = short


def fit(weights: Weights, needs: Needs, machine: Machine, wish: Wish) -> Plan:
    """The plan with the most on the GPUs: layers before experts, since every token uses those.

    Raises SpecfitError for what was asked for and cannot be, and TooBig for what cannot fit at all,
    with how much is missing and what would fit.
    """
    plan = _most_on_gpus(weights, needs, machine, wish)
    if plan is None:
        raise SpecfitError(_too_much_for_gpus(weights, needs, machine, wish))
    if wish.expert_cache != 0:
        plan = _with_cache(weights, needs, machine, wish, plan)
    short = _shortage(plan, wish)
    if short is not None:
        remedies = _remedies(weights, needs, machine, wish)
        lacking = short.need - short.have
        raise TooBig(
            f"the model does not fit: {short.what} {_gib(short.need)} of host memory, which has "
            f"{_gib(short.have)}, {_gib(lacking)} too little; "
            + (f"{remedies} would fit" if remedies else "take a smaller model"),
            lacking,
        )
    if plan.host > machine.ram:
        notice = (
            f"the weights in host memory take more than is free ({_gib(plan.host)}, "
            f"{_gib(machine.ram)} free): some will be read from the disk again and again"
        )
        return replace(plan, notice=notice)
    return plan


def _with_cache(weights: Weights, needs: Needs, machine: Machine, wish: Wish, plan: Plan) -> Plan:
    """With all experts on the host, and those in use in what is left of the GPU's memory too; the
    plan as it was where that cannot be, or all experts fit.

    Raises SpecfitError for a cache that was asked for and cannot be.
    """
    asked, experts = wish.expert_cache, sum(weights.experts)
    if asked is None and (wish.n_cpu_moe is not None or plan.placement.n_cpu_moe == 0):
        return plan
    if asked is None and not all(gpu.name.startswith(TRIED) for gpu in machine.gpus):
        return plan
    why, room, n = _no_cache(weights, machine, wish), 0, len(weights.layers)
    cached = None if why else _most_on_gpus(weights, needs, machine, replace(wish, n_cpu_moe=n))
    if cached is not None:
        room = machine.gpus[0].free - RESERVE - cached.gpu
    if cached is None or cached.placement.gpu_layers <= n or room < (asked or experts // 10):
        if asked is None:
            return plan
        why = why or f"beside the other weights the GPU has {_gib(max(0, room))} left"
        raise SpecfitError(f"--expert-cache {asked / GIB:g}: {why}")
    size = min(asked or room, experts)
    part = Part("expert cache", size, 0, f"room for {size / experts:.0%} of the experts")
    return replace(
        cached,
        placement=replace(cached.placement, cached=True),
        parts=(*cached.parts, part),
        gpus=(cached.gpus[0] + size,),
        cache=size,
    )


def _no_cache(weights: Weights, machine: Machine, wish: Wish) -> str:
    """Why there can be no cache of experts; nothing if there can."""
    n = len(weights.layers)
    if not any(weights.experts):
        return "the model has no experts"
    if len(machine.gpus) != 1 or machine.shared or wish.pooled:
        return "a cache of experts needs one GPU with memory of its own"
    if wish.gpu_layers is not None and wish.gpu_layers <= n:
        return f"it needs all layers on the GPU (--gpu-layers {n + 1}, or auto)"
    if wish.n_cpu_moe is not None and wish.n_cpu_moe < n:
        return "it needs all experts in host memory (leave --n-cpu-moe out)"
    return ""


def _most_on_gpus(weights: Weights, needs: Needs, machine: Machine, wish: Wish) -> Plan | None:
    """The first placement, in order of falling use of the GPUs, that they hold."""
    for placement in _placements(weights, machine, wish):
        placed = _share(weights, needs, machine, wish, placement)
        if placed is not None:
            split, loads = placed
            parts = _parts(weights, needs, placement)
            return Plan(replace(placement, split=split), machine, needs.lines, parts, loads)
    return None


def _placements(weights: Weights, machine: Machine, wish: Wish) -> Iterator[Placement]:
    n = len(weights.layers)
    moe = any(weights.experts)
    if not machine.gpus:
        yield Placement(0, n)
        return
    most = n + 1 if wish.gpu_layers is None else min(wish.gpu_layers, n + 1)
    first = max(0, n + 1 - most)  # on a GPU
    asked = None if wish.n_cpu_moe is None else min(wish.n_cpu_moe, n)
    if not moe:
        yield Placement(most, 0)
    elif asked is not None:
        yield Placement(most, asked)
    elif most == 0:
        yield Placement(0, n)
    else:
        yield Placement(most, 0 if first == 0 else first)
        # From one layer's experts to the next that has any: others change nothing.
        yield from (Placement(most, i + 1) for i in range(first, n) if weights.experts[i])
    if wish.gpu_layers is None:
        on_host = (n if asked is None else asked) if moe else 0
        yield from (Placement(layers, on_host) for layers in range(n, -1, -1))


def _share(
    weights: Weights, needs: Needs, machine: Machine, wish: Wish, placement: Placement
) -> tuple[tuple[float, ...], tuple[int, ...]] | None:
    """How the GPUs share the layers, and what each then holds; None if they cannot hold them."""
    gpus = machine.gpus
    if placement.gpu_layers == 0:
        return (), (0,) * len(gpus)
    units = _units(weights, needs, placement)
    room = [gpu.free - RESERVE - needs.gpu for gpu in gpus]
    room[0] -= needs.gpu_head
    if needs.gpu_head and room[0] + needs.gpu < 0:
        return None
    if wish.pooled:
        # Every GPU holds its part of each tensor.
        whole = sum(units) + needs.gpu * len(gpus) + needs.gpu_head
        fits = whole <= sum(gpu.free - RESERVE for gpu in gpus)
        return (wish.split, _even(whole, len(gpus))) if fits else None
    counts = _filled(units, room)
    if wish.split:
        counts = split_counts(len(units), wish.split, len(gpus))
    ends = np.cumsum(counts).tolist()
    if ends[-1] < len(units):
        return None
    sums = [sum(units[end - count : end]) for end, count in zip(ends, counts, strict=True)]
    used = [count > 0 for count in counts]
    if any(total > free and here for total, free, here in zip(sums, room, used, strict=True)):
        return None
    loads = [total + needs.gpu * here for total, here in zip(sums, used, strict=True)]
    loads[0] += needs.gpu_head
    own = tuple(float(count) for count in counts) if len(gpus) > 1 else ()
    return wish.split or own, tuple(loads)


def _units(weights: Weights, needs: Needs, placement: Placement) -> list[int]:
    """Bytes of every layer on GPUs, in order, the output last."""
    n = len(weights.layers)
    kv = ceil(needs.kv / n)
    units = [
        weights.layers[i] + kv + weights.experts[i] * (i >= placement.n_cpu_moe)
        for i in range(max(0, n + 1 - placement.gpu_layers), n)
    ]
    return [*units, weights.output]


def _filled(units: Sequence[int], room: Sequence[int]) -> list[int]:
    """How many units each GPU takes if each in turn takes as many as it can."""
    counts, next_unit = [], 0
    for free in room:
        start = next_unit
        while next_unit < len(units) and units[next_unit] <= free:
            free -= units[next_unit]
            next_unit += 1
        counts.append(next_unit - start)
    return counts


def split_counts(n: int, split: Sequence[float], n_gpus: int) -> list[int]:
    """How many of `n` layers each GPU takes for llama.cpp's `--tensor-split`, in its float32."""
    shares = np.zeros(n_gpus, np.float32)
    given = np.array(split[:n_gpus], np.float32)
    shares[: len(given)] = given
    ends = np.cumsum(shares, dtype=np.float32)
    ends /= ends[-1]
    places = np.searchsorted(ends, np.arange(n, dtype=np.float32) / np.float32(n), side="right")
    return np.bincount(np.minimum(places, n_gpus - 1), minlength=n_gpus).tolist()


def _even(total: int, n: int) -> tuple[int, ...]:
    return tuple(total * (i + 1) // n - total * i // n for i in range(n))


def _parts(weights: Weights, needs: Needs, placement: Placement) -> tuple[Part, ...]:
    n, layers = len(weights.layers), placement.gpu_layers
    first = placement.first_gpu_layer(n)
    experts = [i >= max(first, placement.n_cpu_moe) for i in range(n)]
    on_gpu = sum(size for size, here in zip(weights.experts, experts, strict=True) if here)
    output = weights.output if layers else 0
    dense_gpu = sum(weights.layers[first:]) + output
    dense_host = weights.total - sum(weights.experts) - sum(weights.layers[first:])
    if layers and not weights.tied:
        dense_host -= weights.output
    kv = needs.kv * (n - first) // n
    lines = f"{needs.lines} x " if needs.lines > 1 else ""
    parts = [
        Part("layers", dense_gpu, dense_host, f"{layers} of {n + 1} on the GPU" if layers else ""),
        Part("context", kv, needs.kv - kv, f"{lines}{needs.ctx} tokens"),
        Part("computing", needs.gpu if layers else 0, needs.host),
    ]
    if any(weights.experts):
        of = sum(here and size > 0 for size, here in zip(weights.experts, experts, strict=True))
        have = sum(size > 0 for size in weights.experts)
        note = f"of {of} of {have} layers on the GPU" if layers else ""
        parts.insert(1, Part("experts", on_gpu, sum(weights.experts) - on_gpu, note))
    gpu, host = (needs.gpu_head, needs.host_head) if layers else (0, needs.plain_head)
    if gpu or host:
        parts.append(Part("draft head", gpu, host))
    return tuple(parts)


@dataclass(frozen=True)
class _Shortage:
    what: str
    need: int
    have: int


def _shortage(plan: Plan, wish: Wish) -> _Shortage | None:
    """What host memory lacks. Weights that are mapped may be dropped and read again, but all of it
    must fit the whole machine."""
    machine = plan.machine
    need = plan.host + (plan.gpu if machine.shared else 0)
    mapped = sum(part.host for part in plan.parts if part.name in ("layers", "experts"))
    limits = [
        _Shortage("it needs", need, machine.ram if wish.resident else machine.ram_total),
        _Shortage("beside its weights it needs", need - mapped, machine.ram),
    ]
    return next((limit for limit in limits if limit.need > limit.have), None)


def _too_much_for_gpus(weights: Weights, needs: Needs, machine: Machine, wish: Wish) -> str:
    """Why what was asked for explicitly cannot be."""
    placement = next(_placements(weights, machine, wish))
    units = _units(weights, needs, placement)
    n_used = max(1, min(len(machine.gpus), len(units)))
    need = sum(units) + needs.gpu * n_used + needs.gpu_head
    free = sum(gpu.free - RESERVE for gpu in machine.gpus)
    asked = f"--gpu-layers {placement.gpu_layers}"
    if wish.n_cpu_moe is not None:
        asked += f" --n-cpu-moe {placement.n_cpu_moe}"
    more = need - free
    over = f"{_gib(more)} too little" if more > 0 else "shared out among them it does not fit"
    says = f"{asked} needs {_gib(need)} of GPU memory, which has {_gib(max(0, free))}: {over}"
    auto = _most_on_gpus(weights, needs, machine, replace(wish, n_cpu_moe=None))
    if auto is None:
        auto = _most_on_gpus(weights, needs, machine, Wish(split=wish.split, pooled=wish.pooled))
    assert auto is not None  # no layers always fit
    fitting = f"--gpu-layers {auto.placement.gpu_layers}"
    if any(weights.experts) and auto.placement.gpu_layers:
        fitting += f" --n-cpu-moe {auto.placement.n_cpu_moe}"
    return f"{says}; {fitting} would fit"


def _remedies(weights: Weights, needs: Needs, machine: Machine, wish: Wish) -> str:
    """What would make it fit host memory: a shorter context, fewer lines, or a smaller file."""

    def fits(weights: Weights, needs: Needs) -> bool:
        plan = _most_on_gpus(weights, needs, machine, wish)
        return plan is not None and _shortage(plan, wish) is None

    def with_kv(ctx: int, lines: int) -> Needs:
        share = ctx * lines / (needs.ctx * needs.lines)
        return replace(needs, ctx=ctx, lines=lines, kv=ceil(needs.kv * share))

    found = []
    lines = range(needs.lines - 1, 0, -1)
    fewer = next((n for n in lines if fits(weights, with_kv(needs.ctx, n))), None)
    if fewer is not None:
        found.append(f"-np {fewer}")
    shorter = range(needs.ctx // 256 * 256, _LEAST_CTX - 1, -256)
    ctx = next((n for n in shorter if fits(weights, with_kv(n, needs.lines))), None)
    if ctx is not None and ctx < needs.ctx:
        found.append(f"-c {ctx}")
    if found:
        return " or ".join(found)
    bits = 8 * weights.total / max(1, weights.count)
    for name, smaller in CLASSES:
        if smaller < bits and fits(weights.scaled(smaller / bits), needs):
            size = _gib(int(weights.count * smaller / 8))
            return f"the model in {name} ({size})"
    return ""


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / GIB:.1f} GiB" if n_bytes >= GIB // 10 else f"{n_bytes / 2**20:.0f} MiB"
