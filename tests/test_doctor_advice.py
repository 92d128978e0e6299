"""Where the doctor says that models go, and how fast it says they are."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from doctorcases import (
    GIB,
    LLAMA,
    MACHINE,
    RTX,
    chosen,
    of_quant,
    on_gpu,
)

from specfit.app import doctor_here
from specfit.app.doctor_advice import (
    advise,
    best,
    last_loads,
    measured_elsewhere,
    memory_of,
    read_from_host,
    speed,
    supposes_build,
    where,
)
from specfit.app.doctor_machine import Gpu
from specfit.backend import kept_costs
from specfit.backend.fit import RESERVE
from specfit.models import bundled_model


@pytest.mark.parametrize(
    ("gibibytes", "words"),
    [
        (80, "all on the GPU"),
        (22, "all on the GPU"),
        (12, "experts in host memory, 56% of them on the GPU too, as they are used"),
        (4.5, "44 of 48 layers' experts in host memory, the rest on the GPU"),
        (3, "all experts in host memory, the rest on the GPU"),
        (2.5, "27 of 49 layers on the GPU, all experts in host memory"),
        (1, "all in host memory"),
    ],
)
def test_models_go_where_the_planner_of_placements_puts_them(gibibytes, words):
    advice = of_quant("Q4_K_M", MACHINE, on_gpu(gibibytes))
    assert where(advice) == words
    assert advice.plan is not None
    assert advice.plan.gpu <= max(0, gibibytes * GIB - RESERVE)


def test_what_does_not_fit_says_how_much_is_missing_and_what_fits_badly_says_so():
    there = replace(MACHINE, ram=24 * GIB, ram_free=19 * GIB)
    assert where(of_quant("Q8_0", there, LLAMA)) == "does not fit: 7.3 GiB short"
    tight = of_quant("Q4_K_M", replace(there, ram_free=17 * GIB), LLAMA)
    assert where(tight) == "all in host memory, but tightly"
    assert not tight.fits_well


def test_one_begins_with_what_fits_well():
    assert chosen(MACHINE, LLAMA).model.quant == "Q4_K_M"
    assert chosen(MACHINE, on_gpu(12)).model.quant == "Q4_K_M"
    assert chosen(MACHINE, on_gpu(80)).model.quant == "Q8_0"
    twenty = chosen(MACHINE, on_gpu(20))
    assert (twenty.model.quant, twenty.on_gpu) == ("Q4_K_M", True)
    busy = replace(MACHINE, ram=24 * GIB, ram_free=17 * GIB)
    assert chosen(busy, LLAMA).model.quant == "IQ4_XS"
    assert chosen(replace(busy, ram_free=10 * GIB), LLAMA).model.quant == "IQ4_XS"
    assert best(advise(replace(MACHINE, ram=12 * GIB), LLAMA)) is None


def test_a_gpu_that_shares_the_hosts_memory_does_not_add_to_it():
    apple = replace(MACHINE, gpus=(Gpu("Apple GPU", "apple"),), ram=16 * GIB, ram_free=14 * GIB)
    assert best(advise(apple, on_gpu(10, "igpu"))) is None
    large = replace(apple, ram=48 * GIB, ram_free=40 * GIB)
    assert chosen(large, on_gpu(30, "igpu")).on_gpu
    assert chosen(large, LLAMA).on_gpu  # 0.7 of what is free
    assert all(one.at_most is None for one in advise(large, on_gpu(30, "igpu")))


def test_a_gpu_that_llama_cpp_is_not_built_for_is_planned_with_and_told():
    machine = replace(MACHINE, gpus=(RTX, Gpu("Intel GPU", "intel")))
    assert [gpu.free for gpu in memory_of(machine, LLAMA).gpus] == [11 * GIB]
    assert supposes_build(machine, LLAMA) == RTX.name
    assert where(of_quant("Q4_K_M", machine, LLAMA)).startswith(
        "experts in host memory, 49% of them on the GPU too"
    )
    assert supposes_build(machine, on_gpu(12)) == ""


def test_more_memory_never_makes_a_model_unfit_nor_its_bound_lower():
    for one, more in zip(
        advise(replace(MACHINE, ram=32 * GIB, ram_free=30 * GIB), on_gpu(8)),
        advise(MACHINE, on_gpu(16)),
        strict=True,
    ):
        assert (more.plan is not None) >= (one.plan is not None)
        if one.at_most and more.at_most:
            assert more.at_most >= one.at_most


def test_a_token_reads_the_experts_that_it_uses_and_all_else():
    on_host = of_quant("Q4_K_M", MACHINE, LLAMA)
    assert on_host.plan is not None
    read = read_from_host(on_host.model, on_host.plan)
    bits = 8 * on_host.model.size / on_host.model.weights.count
    assert read == pytest.approx(3.0e9 * bits / 8, rel=0.1)  # of 30 billion weights 3 are active
    assert on_host.at_most == pytest.approx(50e9 / read)
    some = of_quant("Q4_K_M", MACHINE, on_gpu(4.5))
    assert some.plan is not None
    experts = sum(some.model.weights.experts[:44]) * 8 / 128
    assert read_from_host(some.model, some.plan) == pytest.approx(experts, rel=0.01)
    assert of_quant("Q4_K_M", MACHINE, on_gpu(12)).at_most is None  # it depends on the text
    assert of_quant("Q4_K_M", MACHINE, on_gpu(24)).at_most is None


def test_speeds_are_measured_ones_or_unknown():
    advice = of_quant("Q4_K_M", MACHINE, LLAMA)
    assert speed(advice) == "speed unknown, at most 26 tokens/s"
    assert speed(of_quant("Q4_K_M", MACHINE, on_gpu(24))) == "speed unknown"
    assert speed(of_quant("Q4_K_M", replace(MACHINE, bandwidth=0), LLAMA)) == "speed unknown"
    assert speed(replace(advice, measured=8.94)) == "8.9 tokens/s when last loaded here"
    told = measured_elsewhere()
    assert "45 tokens/s with all experts on the CPU" in told
    assert "H200" in told


def test_the_last_load_of_a_model_is_remembered_by_its_costs(tmp_path):
    model = tmp_path / "models" / "a.gguf"
    points = [{"rows": 2, "ms": 9.0}, {"rows": 1, "ms": 25.0}, {"rows": 1, "ms": 20.0}]
    kept = {"model": str(model), "points": points}
    for name, content in (
        ("1.json", json.dumps(kept)),
        ("2.json", json.dumps({"points": points})),
        ("3.json", '{"model": 3, "points": []}'),
        ("4.json", "[1"),
    ):
        (tmp_path / name).write_text(content)
    files = {"ours": model, "other": tmp_path / "b.gguf"}
    assert dict(last_loads(tmp_path, files)) == {"ours": 50.0}
    assert dict(last_loads(tmp_path / "none", files)) == {}


def test_a_model_that_was_loaded_has_a_speed(bundled_engine):
    assert bundled_engine is not None
    told = dict(last_loads(doctor_here.costs(), {"bundled": bundled_model()}))
    assert 1 < told["bundled"] < 1e5
    kept = [path for path in doctor_here.costs().glob("*.json") if "model" in path.read_text()]
    assert kept
    assert all(kept_costs._stored(path) is not None for path in kept)
