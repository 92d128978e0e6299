"""The engine with a cache of experts, on a stand-in for a GPU, in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import heldcases as cases
import numpy as np
import pytest

from specfit.backend.calibration import paid_points
from specfit.planner import CostPoint, cost_from_points

Ask = Callable[..., Any]
USED, LAYERS = 8, 8  # of the bundled model


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield lambda what, *arguments: pool.submit(what, *arguments).result()


@pytest.fixture(scope="module")
def plain(ask: Ask) -> str:
    found = ask(cases.with_cache, 0)
    assert not found["cached"] and found["answers"][0]["hit_rate"] is None
    return found["answers"][0]["text"]


def test_expert_cache_engine_gives_the_text_of_plain_decoding(ask: Ask, plain: str) -> None:
    found = ask(cases.with_cache, 6)
    assert found["cached"] and not found["notices"] and found["trouble"] is None
    assert "of them in the GPU's cache" in found["description"]
    for answer in found["answers"]:
        assert answer["text"] == plain
        assert answer["uses"] == [rows * USED * LAYERS for rows in answer["rows"]]
    first, *_, last = found["answers"]
    assert last["hit_rate"] > first["hit_rate"] and first["uploaded"] > 0
    assert last["paid"] < first["paid"]


def test_expert_cache_engine_begins_as_the_last_run_ended(ask: Ask, plain: str) -> None:
    ask(cases.with_cache, 5)
    found = ask(cases.with_cache, 5)
    assert found["answers"][0]["first"] > 0.5 * USED * LAYERS
    assert found["answers"][0]["text"] == plain


def test_expert_cache_of_a_deterministic_run_begins_alike_whatever_ran_before(ask: Ask) -> None:
    prompts = ["Why is the sky blue?", "Tell me about rivers.", "Count to ten, slowly."]
    first = ask(cases.steadily, prompts)
    ask(cases.with_cache, 5)  # and keeps other uses
    again = ask(cases.steadily, [*reversed(prompts), prompts[1]])
    assert again == first
    assert len({hits for _, cycles in first.values() for hits, _ in cycles}) > 1
    told = ask(cases.steadily_with_less)
    assert "the GPU has no room for" in told and "smaller cache" in told
    assert "needs the cache it names; the expert cache is off" in ask(cases.steadily_without)


def test_expert_cache_engine_without_a_head_counts_too(ask: Ask, plain: str) -> None:
    found = ask(cases.with_cache, 6, False)
    assert found["cached"] and found["answers"][0]["text"] == plain
    assert found["answers"][1]["hit_rate"] > 0.5


def test_expert_cache_engine_goes_on_when_uploads_fail_and_says_so_once(
    ask: Ask, plain: str
) -> None:
    found = ask(cases.failing)
    assert [answer["text"] for answer in found["answers"]] == [plain] * 3
    assert "did not arrive" in found["trouble"] and found["again"] is None


def test_expert_cache_calibration_measures_decodes_whose_experts_are_held(ask: Ask) -> None:
    found = ask(cases.of_full_hits)
    assert set(found) == {1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 31}
    assert max(found.values()) < 0.5


def test_expert_cache_holds_what_it_is_told_to(ask: Ask) -> None:
    for seed in range(2):
        assert all(ask(cases.moved, seed)["right"])


def test_prices_of_missing_experts_and_of_their_uses_are_found_again() -> None:
    top_k, layers, share = 8, 48, 0.6
    price = {1: 0.03, 2: 0.028, 4: 0.026, 8: 0.025}
    unions = {1: (8, 8), 2: (8, 13), 4: (8, 18), 8: (8, 26)}

    def ms(rows: int, union: float, uses: float) -> float:
        return 5 + 0.5 * rows + price[rows] * layers * (union + share * uses)

    empty = [
        CostPoint(rows, union, ms(rows, union, rows * top_k))
        for rows, both in unions.items()
        for union in dict.fromkeys(both)
    ]
    hits = [(CostPoint(rows, 0.0, ms(rows, 0, 0)), np.zeros((layers, 2))) for rows in unions]
    over = [CostPoint(32, 45.0, 700.0)]
    points, found = paid_points([*empty, *over], hits, top_k)
    assert found == pytest.approx(share)
    cost = cost_from_points(
        points, top_k=0, layer_weights=np.ones(layers), level_ms=np.zeros(1), max_rows=40
    )
    for rows in unions:
        for missing, uses in ((0, 0), (3, 4), (8, 8 * rows)):
            paid = layers * (missing + share * uses)
            assert cost.verify_ms(rows, paid) == pytest.approx(ms(rows, missing, uses))
    assert cost.verify_ms(32, 1000.0) == pytest.approx(700.0)
