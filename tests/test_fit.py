"""The placement that fits: never over the memory there is, and nothing left out that had room."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specfit.backend.errors import SpecfitError
from specfit.backend.fit import RESERVE, fit, split_counts
from specfit.backend.plan import GIB, Gpu, Machine, Needs, Placement, Weights, Wish

MIB = 1 << 20
# Qwen3-30B-A3B in Q4_K_M, roughly.
QWEN = Weights(
    table=170 * MIB,
    layers=(15 * MIB,) * 48,
    experts=(340 * MIB,) * 48,
    output=240 * MIB,
    count=30_500_000_000,
)
NEEDS = Needs(ctx=4096, lines=1, kv=400 * MIB, gpu=300 * MIB, host=30 * MIB, gpu_head=350 * MIB)


def machine(*gpus: float, ram: float = 64) -> Machine:
    """Sizes in GiB."""
    named = tuple(Gpu(f"CUDA{i}", int(size * GIB)) for i, size in enumerate(gpus))
    return Machine(int(ram * GIB), int(ram * GIB), named)


def drawn(random: np.random.Generator) -> tuple[Weights, Needs, Machine]:
    n = int(random.integers(1, 40))
    moe = random.random() < 0.8
    dense = int(random.integers(0, n)) if random.random() < 0.3 else 0
    experts = [int(random.integers(1, 400)) * MIB * moe * (i >= dense) for i in range(n)]
    layers = [int(random.integers(1, 60)) * MIB for _ in range(n)]
    output, table = (int(random.integers(1, 600)) * MIB for _ in range(2))
    weights = Weights(table, tuple(layers), tuple(experts), output, random.random() < 0.3)
    kv, gpu, head = (int(random.integers(1, 900)) * MIB for _ in range(3))
    needs = Needs(4096, 1, kv, gpu, 20 * MIB, head, 0, head)
    gpus = random.uniform(0, 12, int(random.integers(1, 4)))
    return weights, needs, machine(*gpus, ram=1000)


def on_gpu(weights: Weights, placement: Placement) -> int:
    """Layers whose experts are on a GPU."""
    n = len(weights.layers)
    first = max(placement.n_cpu_moe, n + 1 - placement.gpu_layers) if placement.gpu_layers else n
    return sum(size > 0 for size in weights.experts[first:])


def holds(weights: Weights, needs: Needs, gpus: tuple[Gpu, ...], placement: Placement) -> bool:
    """Whether one GPU after the other can take these layers, in the plainest words."""
    n, first = len(weights.layers), len(weights.layers) + 1 - placement.gpu_layers
    sizes = [
        weights.layers[i]
        + -(-needs.kv // n)
        + (weights.experts[i] if i >= placement.n_cpu_moe else 0)
        for i in range(first, n)
    ] + [weights.output]
    if needs.gpu_head > gpus[0].free - RESERVE:
        return False
    for number, gpu in enumerate(gpus):
        room = gpu.free - RESERVE - needs.gpu - (needs.gpu_head if number == 0 else 0)
        while sizes and sizes[0] <= room:
            room -= sizes.pop(0)
    return not sizes


def test_no_gpu_is_ever_over_its_memory_and_nothing_is_lost():
    random = np.random.default_rng(1)
    for _ in range(400):
        weights, needs, there = drawn(random)
        plan = fit(weights, needs, there, Wish())
        for gpu, used in zip(there.gpus, plan.gpus, strict=True):
            assert used == 0 or used + RESERVE <= gpu.free + len(weights.layers)
        copied = weights.output if weights.tied and plan.placement.gpu_layers else 0
        weighed = sum(p.gpu + p.host for p in plan.parts if p.name in ("layers", "experts"))
        assert weighed == weights.total + copied


def test_one_layer_more_would_not_fit():
    random = np.random.default_rng(2)
    for _ in range(400):
        weights, needs, there = drawn(random)
        placement = fit(weights, needs, there, Wish()).placement
        n = len(weights.layers)
        if placement.gpu_layers <= n:
            on_host = n if any(weights.experts) else 0
            more = Placement(placement.gpu_layers + 1, on_host)
            assert not holds(weights, needs, there.gpus, more)
        elif on_gpu(weights, placement) < sum(size > 0 for size in weights.experts):
            fewer = range(placement.n_cpu_moe)
            assert not any(holds(weights, needs, there.gpus, Placement(n + 1, i)) for i in fewer)


def test_more_memory_never_means_fewer_experts_or_layers_on_the_gpu():
    random = np.random.default_rng(3)
    for _ in range(60):
        weights, needs, there = drawn(random)
        before = (0, 0)
        for more in range(0, 16):
            grown = (replace(gpu, free=gpu.free + more * GIB) for gpu in there.gpus)
            placement = fit(weights, needs, replace(there, gpus=tuple(grown)), Wish()).placement
            now = (placement.gpu_layers, on_gpu(weights, placement))
            assert now >= before
            before = now


def test_a_budget_is_kept_over_all_gpus_together():
    for budget in (6, 8, 12, 16, 24):
        plan = fit(QWEN, NEEDS, machine(10, 80).within(budget * GIB), Wish())
        assert plan.gpu <= budget * GIB
    assert plan.placement.n_cpu_moe == 0


@pytest.mark.parametrize(("budget", "on_host"), [(6, 39), (8, 33), (12, 21), (16, 9), (24, 0)])
def test_experts_fill_what_the_rest_leaves(budget, on_host):
    """The rest takes 2.0 GiB, a layer's experts a third of one."""
    placement = fit(QWEN, NEEDS, machine(80).within(budget * GIB), Wish()).placement
    assert placement == Placement(49, on_host)


def test_a_gpu_too_small_for_all_layers_takes_the_last_ones():
    placement = fit(QWEN, NEEDS, machine(2.2), Wish()).placement
    assert 0 < placement.gpu_layers < 49
    assert placement.n_cpu_moe == 48
    assert fit(QWEN, NEEDS, machine(1), Wish()).placement.gpu_layers == 0


def test_numbers_are_kept_and_only_checked():
    there = machine(12)
    assert fit(QWEN, NEEDS, there, Wish(20, 48)).placement == Placement(20, 48)
    assert fit(QWEN, NEEDS, there, Wish(None, 40)).placement == Placement(49, 40)
    assert fit(QWEN, NEEDS, there, Wish(20)).placement == Placement(20, 29)
    assert fit(QWEN, NEEDS, there, Wish(0)).placement == Placement(0, 48)
    with pytest.raises(SpecfitError, match=r"6\.9 GiB too little; .* --n-cpu-moe 21 would fit"):
        fit(QWEN, NEEDS, there, Wish(49, 0))
    with pytest.raises(SpecfitError, match=r"--gpu-layers \d+ --n-cpu-moe 48 would fit"):
        fit(QWEN, NEEDS, machine(2.2), Wish(49))


def test_without_a_gpu_only_host_memory_counts():
    plan = fit(QWEN, replace(NEEDS, gpu=0), machine(ram=24), Wish())
    assert plan.placement == Placement(0, 48)
    assert plan.gpu == 0
    assert plan.host == QWEN.total + NEEDS.kv + NEEDS.host


@pytest.mark.parametrize(
    ("needs", "ram", "remedy"),
    [
        (replace(NEEDS, ctx=32768, kv=6 * GIB), 20, r"-c \d+ would fit"),
        (replace(NEEDS, lines=8, kv=6 * GIB), 20, r"-np 3 or -c 1792 would fit"),
        (NEEDS, 16, r"the model in Q3_K_M \(13\.8 GiB\) would fit"),
        (NEEDS, 4, "take a smaller model"),
    ],
)
def test_what_cannot_fit_is_refused_with_what_would(needs, ram, remedy):
    with pytest.raises(SpecfitError, match=rf"GiB too little; {remedy}"):
        fit(QWEN, needs, machine(ram=ram), Wish(resident=True))


def test_mapped_weights_may_be_more_than_is_free_but_not_than_there_is():
    busy = Machine(ram=8 * GIB, ram_total=24 * GIB)
    assert "read from the disk" in fit(QWEN, NEEDS, busy, Wish()).notice
    with pytest.raises(SpecfitError, match="too little"):
        fit(QWEN, NEEDS, busy, Wish(resident=True))
    with pytest.raises(SpecfitError, match="beside its weights"):
        fit(QWEN, NEEDS, replace(busy, ram=100 * MIB), Wish())
    with pytest.raises(SpecfitError, match="too little"):
        fit(QWEN, NEEDS, replace(busy, ram_total=12 * GIB), Wish())


def test_a_gpu_that_shares_the_hosts_memory_does_not_add_to_it():
    there = replace(machine(12, ram=16), shared=True)
    with pytest.raises(SpecfitError, match="too little"):
        fit(QWEN, NEEDS, there, Wish())
    assert fit(QWEN, NEEDS, replace(there, shared=False), Wish()).gpu > 10 * GIB


def test_layers_are_split_as_llama_cpp_splits_them():
    assert split_counts(49, (3, 1), 2) == [37, 12]
    assert split_counts(49, (1, 1, 1), 3) == [17, 16, 16]
    assert split_counts(10, (0, 1), 2) == [0, 10]
    plan = fit(QWEN, NEEDS, machine(12, 14), Wish())
    counts = [int(count) for count in plan.placement.split]
    assert plan.placement.n_cpu_moe == 0
    # What is planned is what llama.cpp makes of the proportions.
    assert split_counts(49, plan.placement.split, 2) == counts


def test_experts_on_the_gpu_cost_nothing_in_the_plan_of_a_cycle():
    assert Placement(5, 1).expert_layer_weights(4) == [1, 0, 0, 0]
    assert Placement(3, 0).expert_layer_weights(4) == [1, 1, 0, 0]
    assert Placement(0, 4).expert_layer_weights(4) == [1, 1, 1, 1]
    assert Placement(5, 0).expert_layer_weights(4) == [1, 1, 1, 1]


def test_a_cache_of_experts_takes_what_the_rest_leaves_and_all_experts_lie_on_the_host():
    for budget in (6, 8, 12, 16):
        there = machine(80).within(budget * GIB)
        plan = fit(QWEN, NEEDS, there, Wish(expert_cache=None))
        assert plan.placement == Placement(49, 48, cached=True)
        assert plan.gpu + RESERVE == budget * GIB
        without = fit(QWEN, NEEDS, there, Wish())
        assert plan.cache >= sum(QWEN.experts[without.placement.n_cpu_moe :])
        assert next(part.gpu for part in plan.parts if part.name == "expert cache") == plan.cache


@pytest.mark.parametrize(
    "there, wish",
    [
        (24, Wish(expert_cache=None)),  # all experts fit
        (12, Wish(expert_cache=None, n_cpu_moe=40)),
        (12, Wish(expert_cache=None, gpu_layers=30)),
        (2.3, Wish(expert_cache=None)),  # hardly anything is left
        (12, Wish(expert_cache=0)),
    ],
)
def test_a_cache_of_experts_is_left_out_where_it_does_not_belong(there, wish):
    plan = fit(QWEN, NEEDS, machine(80).within(int(there * GIB)), wish)
    assert plan.cache == 0 and not plan.placement.cached
    assert plan == fit(QWEN, NEEDS, plan.machine, replace(wish, expert_cache=0))


def test_a_cache_of_experts_has_to_be_asked_for_where_it_was_not_tried():
    there = Machine(64 * GIB, 64 * GIB, (Gpu("Vulkan0", 12 * GIB),))
    assert fit(QWEN, NEEDS, there, Wish(expert_cache=None)).cache == 0
    assert fit(QWEN, NEEDS, there, Wish(expert_cache=4 * GIB)).cache == 4 * GIB


@pytest.mark.parametrize(
    "gpus, wish, why",
    [
        ((8,), Wish(expert_cache=7 * GIB), "the GPU has 5.0 GiB left"),
        ((8, 8), Wish(expert_cache=GIB), "needs one GPU"),
        ((), Wish(expert_cache=GIB), "needs one GPU"),
        ((8,), Wish(expert_cache=GIB, n_cpu_moe=3), "leave --n-cpu-moe out"),
        ((8,), Wish(expert_cache=GIB, gpu_layers=3), "--gpu-layers 49"),
    ],
)
def test_a_cache_of_experts_that_cannot_be_is_refused_in_one_sentence(gpus, wish, why):
    with pytest.raises(SpecfitError, match=r"^--expert-cache [\d.]+: .*" + why):
        fit(QWEN, NEEDS, machine(*gpus), wish)
