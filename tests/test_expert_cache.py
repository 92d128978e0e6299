"""The expert cache on a stand-in for a GPU: llama.cpp's own logits to the bit.

All of it happens in a process of its own, where the stand-in may stay in ggml's list of devices.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import expert_cache_cases as cases
import numpy as np
import pytest
from expert_cache_rig import DEVICE, Case
from tinymodel import write_float32_moe

from specfit.backend import native
from specfit.backend.errors import SpecfitError
from specfit.backend.expert_cache import cache, slots_within
from specfit.models import bundled_model

Ask = Callable[..., Any]
USED, LAYERS = 8, 8  # of the bundled model, as are 128 experts


@contextmanager
def process() -> Iterator[Ask]:
    """Has a process do one of `cases`; one that dies is an error."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield lambda what, *arguments: pool.submit(what, *arguments).result()


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    with process() as asked:
        yield asked


def case(**change: Any) -> Case:
    return Case(bundled_model(), **change)


@pytest.mark.parametrize("share", [0, 0.25, 0.5, 1])
def test_expert_cache_gives_the_logits_of_llama_cpp_at_any_residency(
    ask: Ask, share: float
) -> None:
    found = ask(cases.decode, case(share=share))
    assert found["equal"] and found["trouble"] is None
    assert found["resident"] == share * 128 * LAYERS
    assert (found["hits"] > 0) == (share > 0) and (found["misses"] > 0) == (share < 1)
    assert found["repeats"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"mapped": False},
        {"gpu_layers": 4, "shared": False},
        {"gpu_layers": 0, "shared": False},
        {"events": False},
        {"lookup": False},
        {"max_rows": 4},
        {"shared": False},
        {"shared": False, "events": False},
        {"shared": False, "lookup": False},
    ],
    ids=str,
)
def test_expert_cache_gives_the_logits_of_llama_cpp_on_any_device(
    ask: Ask, change: dict[str, Any]
) -> None:
    found = ask(cases.decode, case(share=0.5, **change))
    assert found["equal"] and found["hits"] > 0 and found["trouble"] is None


def test_expert_cache_holds_float32_experts_all_of_which_are_used(ask: Ask, tmp_path: Path) -> None:
    write_float32_moe(tmp_path / "all.gguf")
    found = ask(cases.decode, Case(tmp_path / "all.gguf", share=7 / 8))
    assert found["equal"] and found["hits"] == 7 * found["misses"] > 0


def test_expert_cache_counts_every_expert_of_every_row(ask: Ask) -> None:
    found = ask(cases.decode, case(share=0.5))
    assert found["hits"] + found["misses"] == cases.WITHIN * USED * LAYERS
    assert (np.array(found["uses"]).sum(axis=1) == cases.WITHIN * USED).all()


def test_expert_cache_leaves_prompts_to_llama_cpp(ask: Ask) -> None:
    found = ask(cases.prompts, case(share=0.5))
    assert found["equal"] and found["hits"] == found["misses"] == 0


def test_expert_cache_keeps_its_device_graphs(ask: Ask) -> None:
    assert ask(cases.steady, case(share=0.5))["built"][1:] == [0, 0]


@pytest.mark.parametrize("shared", [False, True])
def test_expert_cache_changes_between_decodes_while_uploads_run(ask: Ask, shared: bool) -> None:
    steps = 12
    found = ask(cases.changing, case(share=0.25, delay_us=100, shared=shared), steps)
    assert found["right"]
    assert found["refused"] == steps * LAYERS  # what is coming already
    assert found["uploads"] == (32 + steps) * LAYERS
    assert found["upload_bytes"] == found["uploads"] * 13824


def test_expert_cache_swaps_only_what_can_be_swapped(ask: Ask) -> None:
    found = ask(cases.trouble_of_full_slots, case(share=0.5))
    assert found.pop("resident")
    assert not any(found.values())


def test_expert_cache_of_fewer_slots_than_one_token_uses(ask: Ask) -> None:
    found = ask(cases.decode, case(share=3 / 128))
    assert found["equal"] and found["slots"] == [3] * LAYERS and found["hits"] > 0
    assert found["repeats"] == 0  # with too few slots to point each miss of a row at another one


@pytest.mark.parametrize("free", [0, 2_000_000])
def test_expert_cache_without_enough_memory_is_smaller_and_says_so_once(
    ask: Ask, free: int
) -> None:
    found = ask(cases.decode, case(share=0.5, free_bytes=free))
    assert found["equal"]
    assert len(set(found["slots"])) == 1 and (0 < found["slots"][0] < 64) == (free > 0)
    assert ("smaller" if free else "has no memory") in found["trouble"]
    assert found["more_trouble"] is None


@pytest.mark.parametrize(
    "lacks, why",
    [
        ("experts", "StandIn0 cannot compute this model's experts"),
        ("pinned", "there is no host memory for it"),
    ],
)
def test_expert_cache_that_cannot_be_says_the_one_reason(lacks: str, why: str) -> None:
    with process() as ask:  # another test's host memory would still be there
        found = ask(cases.decode, case(share=0.5, lacks=lacks))
    assert found["slots"] == [0] * LAYERS and found["resident"] == 0
    assert found["trouble"] == f"the expert cache is off: {why}"
    assert found["more_trouble"] is None


def test_expert_cache_uploads_again_what_was_lost_once(ask: Ask) -> None:
    found = ask(cases.losing, case(slots=1), 1)
    assert found["equal"] and found["committed"] and found["trouble"] is None
    assert found["resident"] == LAYERS


def test_expert_cache_gives_up_slots_whose_uploads_fail(ask: Ask) -> None:
    found = ask(cases.losing, case(slots=1), 10**6)
    assert found["equal"] and found["begun"] == LAYERS and not found["committed"]
    assert found["again"] == found["resident"] == found["hits"] == 0
    assert "did not arrive on StandIn0" in found["trouble"]


def test_expert_cache_refuses_another_ggml_in_one_sentence(ask: Ask) -> None:
    said = ask(cases.refused, DEVICE, "0.0.1")
    assert said.startswith("the expert cache is off: it was made for ggml 0.0.1, and this is ")


def test_expert_cache_refuses_a_device_that_is_not_there(ask: Ask) -> None:
    said = ask(cases.refused, "CUDA7", None)
    assert said == "the expert cache is off: llama.cpp has no device CUDA7"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("lookup", [True, False])
def test_expert_cache_withstands_a_slow_device(ask: Ask, lookup: bool, shared: bool) -> None:
    found = ask(cases.stress, case(share=0.5, delay_us=200, lookup=lookup, shared=shared), 6)
    assert found["equal"] == found["of"]


@pytest.mark.parametrize("shared", [False, True])
def test_expert_cache_needs_its_last_wait_but_on_the_schedulers_stream(
    ask: Ask, shared: bool
) -> None:
    waitless = case(share=0.5, delay_us=200, lookup=False, end_sync=False, shared=shared)
    found = ask(cases.stress, waitless, 6)
    assert (found["equal"] == found["of"]) == shared


def test_expert_cache_notes_a_devices_streams_only_to_share_them() -> None:
    with process() as ask:
        assert ask(cases.makes_its_own_streams, False)
        assert not ask(cases.makes_its_own_streams, True)


@pytest.mark.parametrize("shared", [False, True])
def test_expert_cache_serves_the_next_model_and_the_next_context(ask: Ask, shared: bool) -> None:
    assert all(ask(cases.again, case(shared=shared))["equal"])


def test_expert_cache_serves_one_model_at_a_time(ask: Ask) -> None:
    found = ask(cases.two, case(share=0.5))
    assert found["equal"] and found["hits"] > 0
    assert found["said"] == "the expert cache is off: another model is using it"
    assert "another is computed without it" in found["trouble"]


@pytest.mark.parametrize(
    "asked, unmatched", [("ffn_moe_topk", False), ("ffn_moe_swiglu", True), ("ffn_moe_up", True)]
)
def test_expert_cache_computes_blocks_that_an_observer_cuts(
    ask: Ask, asked: str, unmatched: bool
) -> None:
    found = ask(cases.observed, case(share=0.5), asked)
    assert found["equal"] and found["seen"] > 0
    assert (found["unmatched"] > 0) == unmatched


def test_expert_cache_without_a_compiler_is_off_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native.platformdirs, "user_cache_path", lambda _name: tmp_path)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(native.shutil, "which", lambda _name: None)
    with pytest.raises(SpecfitError, match=r"expert cache is off: no C\+\+ compiler"):
        native.compiled(cache.NATIVE)


def test_expert_cache_slots_fill_a_budget_evenly() -> None:
    sizes = np.array([0, 10, 10, 20])
    assert slots_within(0, sizes, 8).tolist() == [0, 0, 0, 0]
    assert slots_within(79, sizes, 8).tolist() == [0, 0, 0, 0]
    assert slots_within(80, sizes, 8).tolist() == [0, 1, 1, 1]
    assert slots_within(95, sizes, 8).tolist() == [0, 2, 1, 1]
    assert slots_within(10**6, sizes, 8).tolist() == [0, 8, 8, 8]
