"""The search for the best subtree, against brute force, minimum cuts and what must hold anyway."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searchcases import (
    SCALE,
    Problem,
    brute_force,
    draft_tree,
    minimum_cut,
    routed,
    sharing_problem,
    small_problem,
    tied_problem,
)

from specfit.planner import CycleCost, native, search

RATES = [None, 0.0, 0.02, 0.2, 1.0]


def assert_valid(problem: Problem, plan: search.Plan, max_rows: int) -> None:
    assert problem.is_closed(plan.keep)
    assert plan.keep.sum() <= max_rows
    assert plan.committed == pytest.approx(problem.committed(plan.keep), abs=1e-9)
    assert plan.ms == pytest.approx(problem.ms(plan.keep), abs=1e-9)


@pytest.mark.parametrize("few", [search.FEW, 0])
def test_equals_brute_force(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """1,000 trees, any tables, both objectives; with few = 0 the bounds have to do it all."""
    monkeypatch.setattr(search, "FEW", few)
    rng = np.random.default_rng(7)
    for _ in range(1000):
        problem = small_problem(rng)
        max_rows = int(rng.integers(1, len(problem) + 1))
        for rate in (None, float(rng.choice([0.0, 0.01, 0.1, 0.5]))):
            plan = problem.solve(rate, max_rows)
            assert plan.proven
            assert_valid(problem, plan, max_rows)
            best, fewest = brute_force(problem, rate, max_rows)
            assert problem.worth(plan.keep, rate) == pytest.approx(best, abs=1e-9)
            assert plan.keep.sum() == fewest


def test_drafts_of_several_lines_compete_as_brute_force_has_them_do() -> None:
    rng = np.random.default_rng(11)
    for _ in range(600):
        lines = int(rng.integers(2, 5))
        problem = small_problem(rng, lines)
        max_rows = int(rng.integers(lines, len(problem) + 1))
        for rate in (None, float(rng.choice([0.0, 0.01, 0.1, 0.5]))):
            plan = problem.solve(rate, max_rows)
            assert plan.proven
            assert_valid(problem, plan, max_rows)
            best, fewest = brute_force(problem, rate, max_rows)
            assert problem.worth(plan.keep, rate) == pytest.approx(best, abs=1e-9)
            assert plan.keep.sum() == fewest


def test_every_line_is_verified_or_the_plan_is_refused() -> None:
    cost = CycleCost(np.array([0.0, 1.0, 3.0]), np.zeros(3), np.zeros(0), np.zeros(1))
    problem = Problem(np.full(2, -1, np.int32), np.ones(2), None, None, cost)
    assert problem.solve(10.0).keep.all()  # though no line pays at this rate
    with pytest.raises(ValueError, match="every root must be verified"):
        problem.solve(1.0, max_rows=1)
    with pytest.raises(ValueError, match="certain to be committed"):
        replace(problem, chances=np.array([1.0, 0.9])).solve(1.0)
    three = Problem(np.full(3, -1, np.int32), np.ones(3), None, None, cost)
    with pytest.raises(ValueError, match="every root must be verified"):
        three.solve(1.0)


@pytest.mark.parametrize("layers", [48, 10])
def test_equals_the_minimum_cut_where_rows_cost_the_same(layers: int) -> None:
    rng = np.random.default_rng(layers)
    states = []
    for _ in range(100):
        parents, chances = draft_tree(rng)
        uses = routed(rng, parents, layers)
        row_price = round(SCALE * float(rng.choice([0.0, 0.01, 0.05])))
        expert_price = round(SCALE * float(rng.choice([0.0005, 0.001, 0.002, 0.004])) * 48 / layers)
        cost = CycleCost(
            np.arange(61) * row_price / SCALE,
            np.full(61, expert_price / SCALE),
            np.ones(layers),
            level_ms=np.zeros(1),
        )
        problem = Problem(parents, chances, uses, None, cost)
        plan = problem.solve(rate=1.0)
        assert plan.proven
        root = 1.0 - problem.ms(problem.path(0))
        best = root + minimum_cut(problem, row_price, expert_price)
        assert plan.committed - plan.ms == pytest.approx(best, abs=1e-9)
        states.append(plan.states)
    # The bound is the minimum cut in the limit: branching is the exception.
    assert np.mean(states) < 10


def test_equals_brute_force_where_bounds_do_not_settle_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nodes of much the same chance that share many experts, and one cheap number of rows."""
    monkeypatch.setattr(search, "FEW", 0)
    rng = np.random.default_rng(17)
    states = []
    for _ in range(60):
        problem = sharing_problem(rng, size=12, rows=int(rng.integers(4, 8)))
        for rate in (None, 1.0):
            plan = problem.solve(rate)
            best, fewest = brute_force(problem, rate, len(problem))
            assert problem.worth(plan.keep, rate) == pytest.approx(best, abs=1e-9)
            assert plan.keep.sum() == fewest
            states.append(plan.states)
    assert np.mean(states) > 5


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Trees of up to 24 nodes, tables of any shape."""
    n = draw(st.integers(1, 24))
    parents = [-1] + [draw(st.integers(max(0, v - 6), v - 1)) for v in range(1, n)]
    odds = draw(st.lists(st.floats(0, 1), min_size=n, max_size=n))
    chances = [1.0]
    for v in range(1, n):
        chances.append(chances[parents[v]] * odds[v])
    layers = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    prices = st.lists(st.floats(0, 2), min_size=n + 1, max_size=n + 1)
    times = st.lists(st.floats(0.1, 30), min_size=n + 1, max_size=n + 1)
    cost = CycleCost(
        np.array(draw(times)),
        np.array(draw(prices)) * draw(st.sampled_from([0.0, 0.01, 0.3])),
        np.array(
            draw(st.lists(st.sampled_from([0.0, 1.0, 0.5]), min_size=layers, max_size=layers))
        ),
        level_ms=np.zeros(1),
    )
    return Problem(
        np.array(parents, np.int32),
        np.array(chances),
        rng.random((n, layers, 24)) < 0.25,
        rng.random(n) if draw(st.booleans()) else None,
        cost,
        spent_ms=draw(st.floats(0, 5)),
    )


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from(RATES), st.integers(1, 24))
def test_no_simple_plan_is_better(problem: Problem, rate: float | None, max_rows: int) -> None:
    plan = problem.solve(rate, max_rows)
    assert_valid(problem, plan, max_rows)
    simple = [problem.path(node) for node in range(len(problem))]
    simple += [problem.likeliest(rows) for rows in range(1, len(problem) + 1)]
    worth = problem.worth(plan.keep, rate)
    for keep in simple:
        if keep.sum() <= max_rows:
            assert worth >= problem.worth(keep, rate) - 1e-9


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from(RATES))
def test_more_room_is_never_worse(problem: Problem, rate: float | None) -> None:
    by_rows = [problem.worth(problem.solve(rate, rows).keep, rate) for rows in (1, 2, 4, 8, 24)]
    assert all(more >= fewer - 1e-9 for fewer, more in pairwise(by_rows))
    by_states = [problem.solve(rate, max_states=states) for states in (1, 2, 5, 100_000)]
    worths = [problem.worth(plan.keep, rate) for plan in by_states]
    assert all(more >= fewer - 1e-9 for fewer, more in pairwise(worths))
    assert by_states[-1].proven


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_best_ratio_is_its_own_rate(problem: Problem) -> None:
    """At the best ratio as the rate nothing is worth more than nothing (Dinkelbach)."""
    plan = problem.solve(None)
    ratio = plan.committed / plan.ms
    at_rate = problem.solve(ratio)
    assert at_rate.committed - ratio * at_rate.ms == pytest.approx(0.0, abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from(RATES))
def test_is_deterministic(problem: Problem, rate: float | None) -> None:
    assert same(problem.solve(rate), problem.solve(rate))


def same(first: search.Plan, second: search.Plan) -> bool:
    return (first.keep == second.keep).all() and replace(first, keep=second.keep) == second


def strided(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The same elements, every other one in memory and the axes the other way round."""
    wide = np.zeros((*array.shape[::-1], 2), dtype)
    wide[..., 0] = array.T
    return wide[..., 0].T


def test_does_not_depend_on_how_arrays_lie_in_memory() -> None:
    rng = np.random.default_rng(11)
    for _ in range(50):
        problem = small_problem(rng)
        cost, experts = problem.cost, problem.experts
        wide = replace(
            problem,
            parents=strided(problem.parents, np.dtype(np.int64)),
            chances=strided(problem.chances, np.dtype(">f8")),
            unforeseen=None
            if problem.unforeseen is None
            else strided(problem.unforeseen, np.dtype(np.float64)),
            cost=replace(
                cost,
                rows_ms=strided(cost.rows_ms, np.dtype(np.float64)),
                expert_ms=strided(cost.expert_ms, np.dtype(np.float64)),
                layer_weights=strided(cost.layer_weights, np.dtype(np.float64)),
            ),
            sets=None if experts is None else strided(experts, np.dtype(np.uint64)),
        )
        for rate in (None, 0.1):
            assert same(problem.solve(rate), wide.solve(rate))


def test_many_threads_find_what_one_finds() -> None:
    rng = np.random.default_rng(13)
    trees = [draft_tree(rng) for _ in range(12)]
    cost = CycleCost(np.arange(61) * 0.05, np.full(61, 0.002), np.ones(10), np.zeros(1))
    problems = [Problem(*tree, routed(rng, tree[0], 10), None, cost) for tree in trees]
    alone = [problem.solve(1.0) for problem in problems]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda problem: problem.solve(1.0), problems * 20))
    assert any(plan.states for plan in alone)
    assert all(same(plan, alone[i % len(alone)]) for i, plan in enumerate(together))


@pytest.mark.parametrize("rate", [None, 2.0])
def test_stops_at_the_states_allowed_with_a_valid_plan(rate: float | None) -> None:
    problem = sharing_problem(np.random.default_rng(5), size=40, rows=7)
    plan = problem.solve(rate, max_states=1)
    assert not plan.proven
    assert plan.states == 1
    assert_valid(problem, plan, len(problem))
    assert problem.worth(plan.keep, rate) >= problem.worth(problem.path(0), rate)


@pytest.mark.parametrize("few", [search.FEW, 0])
def test_takes_fewer_rows_of_equal_plans(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(search, "FEW", few)
    rng = np.random.default_rng(3)
    for _ in range(500):
        problem = tied_problem(rng)
        for rate in (None, 0.25, 1.0):
            plan = problem.solve(rate)
            best, fewest = brute_force(problem, rate, len(problem))
            assert problem.worth(plan.keep, rate) == pytest.approx(best, abs=1e-9)
            assert plan.keep.sum() == fewest


def test_does_not_verify_a_draft_that_is_worth_just_what_it_costs() -> None:
    parents = np.array([-1, 0, 1, 2], np.int32)
    cost = CycleCost(np.array([0.0, 1.0, 1.5, 1.75, 2.0]), np.zeros(5), np.zeros(0), 0.0)
    problem = Problem(parents, np.array([1.0, 0.5, 0.25, 0.25]), None, None, cost)
    assert problem.solve(rate=1.0).keep.tolist() == [True, False, False, False]
    assert problem.solve(rate=None).keep.tolist() == [True, False, False, False]


def test_crosses_a_falling_step() -> None:
    """More rows than pay by themselves, because the machine is faster with them."""
    parents = np.array([-1, 0, 0, 0], np.int32)
    cost = CycleCost(np.array([0.0, 10.0, 14.0, 14.0, 6.0]), np.zeros(5), np.zeros(0), 0.0)
    problem = Problem(parents, np.array([1.0, 0.1, 0.01, 0.0]), None, None, cost)
    assert problem.solve(rate=0.1).keep.all()
    assert problem.solve(rate=None).keep.all()
    assert problem.solve(rate=None, max_rows=3).keep.tolist() == [True, False, False, False]


def test_drafting_is_paid_whatever_is_kept() -> None:
    parents = np.array([-1, 0], np.int32)
    cost = CycleCost(np.array([0.0, 2.0, 3.2]), np.zeros(3), np.zeros(0), np.zeros(1))
    problem = Problem(parents, np.array([1.0, 0.5]), None, None, cost)
    assert not problem.solve(rate=None).keep[1]
    # Drafting is over and paid for: relative to the longer cycle the row is cheap.
    assert replace(problem, spent_ms=4.0).solve(rate=None).keep[1]


def test_cost_tables_limit_the_rows() -> None:
    parents = np.array([-1, 0, 1, 2], np.int32)
    cost = CycleCost(np.array([0.0, 1.0, 1.0]), np.zeros(3), np.zeros(0), 0.0)
    assert Problem(parents, np.ones(4), None, None, cost).solve(None).keep.sum() == 2


def test_leaves_out_row_counts_that_cost_nothing() -> None:
    parents = np.array([-1, 0, 0], np.int32)
    cost = CycleCost(np.array([0.0, 2.0, -1.0, 2.1]), np.zeros(4), np.zeros(0), 0.0)
    problem = Problem(parents, np.array([1.0, 0.4, 0.3]), None, None, cost)
    assert problem.solve(None).keep.sum() == 3
    # Nor if the nodes' own experts would give them some.
    priced = replace(problem, cost=replace(cost, expert_ms=np.array([0.0, 0.0, 1.1, 0.0])))
    assert replace(priced, unforeseen=np.array([0.0, 1.0, 1.0])).solve(None).keep.sum() == 3


def test_refuses_what_makes_no_sense() -> None:
    parents = np.array([-1, 0], np.int32)
    cost = CycleCost(np.array([0.0, 1.0, 1.0]), np.zeros(3), np.zeros(0), 0.0)
    problem = Problem(parents, np.array([1.0, 0.5]), None, None, cost)
    with pytest.raises(ValueError, match="exceeds its parent's"):
        replace(problem, parents=np.array([-1, 0, 1]), chances=np.array([1.0, 0.5, 0.6])).solve(1.0)
    with pytest.raises(ValueError, match="every root must be verified"):
        problem.solve(1.0, max_rows=0)
    with pytest.raises(ValueError, match="exceeds its parent's"):
        replace(problem, chances=np.array([1.0, np.nan])).solve(1.0)
    with pytest.raises(ValueError, match="before its parent"):
        replace(problem, parents=np.array([-1, 1])).solve(1.0)
    free = replace(cost, rows_ms=np.zeros(3))
    with pytest.raises(ValueError, match="no time"):
        replace(problem, cost=free).solve(None)


@pytest.mark.parametrize(
    "misfit",
    [
        {"parents": np.array([-1, 0, 0])},
        {"unforeseen": np.zeros(3)},
        {"uses": np.zeros((2, 2, 8), np.bool_)},
        {"uses": np.zeros((3, 1, 8), np.bool_)},
        {"cost": CycleCost(np.ones(3), np.zeros(2), np.ones(1), np.zeros(1))},
    ],
)
def test_refuses_arrays_that_do_not_fit_together(misfit: dict[str, Any]) -> None:
    parents, chances = np.array([-1, 0]), np.array([1.0, 0.5])
    cost = CycleCost(np.ones(3), np.zeros(3), np.ones(1), np.zeros(1))
    problem = Problem(parents, chances, np.zeros((2, 1, 8), np.bool_), None, cost)
    assert problem.solve(None).proven
    with pytest.raises(ValueError, match="do not fit together"):
        replace(problem, **misfit).solve(None)


def test_says_how_to_compile_what_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    with pytest.raises(ImportError, match="run `make setup`"):
        native._loaded()
