"""The search for the best subtree, against brute force, minimum cuts and what must hold anyway."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

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
    small_problem,
    tied_problem,
)

from specfit.planner import CycleCost, search

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
    first, second = problem.solve(rate), problem.solve(rate)
    assert (first.keep == second.keep).all()
    assert replace(first, keep=second.keep) == second


def many_sharing_nodes() -> Problem:
    """A problem that bounds alone do not settle: rows are free, experts are shared by many."""
    rng = np.random.default_rng(5)
    n, layers = 40, 4
    parents = np.array([-1] + [0] * (n - 1), np.int32)
    chances = np.concatenate(([1.0], np.sort(rng.uniform(0.2, 0.22, n - 1))[::-1]))
    uses = rng.random((n, layers, 30)) < 0.1
    # Only plans of exactly 7 rows are cheap, which no linear bound sees.
    rows_ms = np.where(np.arange(n + 1) == 7, 0.0, 1.5)
    rows_ms[1] = 0.3
    return Problem(
        parents, chances, uses, None, CycleCost(rows_ms, np.full(n + 1, 0.03), np.ones(layers), 0.0)
    )


@pytest.mark.parametrize("rate", [None, 2.0])
def test_stops_at_the_states_allowed_with_a_valid_plan(rate: float | None) -> None:
    problem = many_sharing_nodes()
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
    plan = Problem(parents, np.array([1.0, 0.4, 0.3]), None, None, cost).solve(None)
    assert plan.keep.sum() == 3


def test_refuses_what_makes_no_sense() -> None:
    parents = np.array([-1, 0], np.int32)
    cost = CycleCost(np.array([0.0, 1.0, 1.0]), np.zeros(3), np.zeros(0), 0.0)
    problem = Problem(parents, np.array([1.0, 0.5]), None, None, cost)
    with pytest.raises(ValueError, match="exceeds its parent's"):
        replace(problem, parents=np.array([-1, 0, 1]), chances=np.array([1.0, 0.5, 0.6])).solve(1.0)
    with pytest.raises(ValueError, match="at least one row"):
        problem.solve(1.0, max_rows=0)
    free = replace(cost, rows_ms=np.zeros(3))
    with pytest.raises(ValueError, match="no time"):
        replace(problem, cost=free).solve(None)
