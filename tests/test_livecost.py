"""Costs that are followed: simulated machines that change, with noise and outliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from costcases import MEASURED

from specfit.planner import (
    PLAINLY,
    Before,
    CostPoint,
    CycleCost,
    Levels,
    LiveCost,
    cost_from_points,
)

LAYERS = 48
UNIONS = np.interp(np.arange(65), [1, 2, 4, 8, 16, 31, 64], [8, 12.1, 17.9, 25.7, 34, 45, 65])
TABLE = cost_from_points(
    MEASURED,
    top_k=8,
    layer_weights=np.ones(LAYERS),
    level_ms=np.array([1.2, 0.7, 0.75, 0.8, 0.9]),
    max_rows=64,
    switch_ms=0.4,
    settle_ms=0.6,
    context_ms=np.linspace(0, 0.003, 65),
)

Pick = Callable[[np.random.Generator], tuple[int, Levels]]  # rows and drafted levels


def plain(_rng: np.random.Generator) -> tuple[int, Levels]:
    return 1, []


def small_plans(rng: np.random.Generator) -> tuple[int, Levels]:
    rows = int(rng.choice([1, 1, 2, 3, 4, 5, 8]))
    return rows, {1: [], 2: [(0,)]}.get(rows, [(0,), (1,), (2,)])


def four_rows(_rng: np.random.Generator) -> tuple[int, Levels]:
    return 4, [(0,), (2,), (2,)]


def scaled(cost: CycleCost, by: float, *, first: int = 0) -> CycleCost:
    """All costs of `first` rows and more, times `by`; from 0 on those of drafts as well."""
    assert cost.context_ms is not None
    factor = np.where(np.arange(cost.max_rows + 1) >= first, by, 1.0)
    return replace(
        cost,
        rows_ms=cost.rows_ms * factor,
        expert_ms=cost.expert_ms * factor,
        context_ms=cost.context_ms * factor,
        level_ms=cost.level_ms * factor[0],
        switch_ms=cost.switch_ms * factor[0],
        settle_ms=cost.settle_ms * factor[0],
    )


@dataclass
class Machine:
    """A machine whose cycles take what `cost` says, with noise, and now and then far longer."""

    cost: CycleCost
    rng: np.random.Generator
    context: int = 100
    before: Before = PLAINLY

    def run(self, live: LiveCost, pick: Pick, cycles: int) -> np.ndarray:
        """float64 [cycle, 2]: predicted / true time of decodes and of drafts (1 without)."""
        ratios = np.ones((cycles, 2))
        for ratio in ratios:
            rows, levels = pick(self.rng)
            union = UNIONS[rows] * LAYERS * (1 + 0.1 * self.rng.normal() * (rows > 1))
            where = rows, union, self.context, self.before
            verify_ms = self.cost.behind(self.context, self.before).verify_ms(rows, union)
            ratio[0] = live.verify_ms(*where) / verify_ms
            live.learn_verify(*where, self._measured(verify_ms))
            if levels:
                draft_ms = self.cost.draft_ms(levels)
                ratio[1] = live.now.draft_ms(levels) / draft_ms
                live.learn_draft(levels, self._measured(draft_ms))
            self.context += 1
            self.before = self.before.then(rows)
        return ratios

    def _measured(self, ms: float) -> float:
        outlier = 5.0 if self.rng.random() < 0.02 else 1.0
        return ms * outlier * max(0.3, 1 + 0.1 * float(self.rng.normal()))


CHANGES = {
    "nothing": lambda cost: cost,
    "everything": lambda cost: scaled(cost, 2.0),
    "everything, to a third": lambda cost: scaled(cost, 1 / 3),
    "experts": lambda cost: replace(cost, expert_ms=cost.expert_ms * 2),
    "rows beyond the first": lambda cost: scaled(cost, 2.0, first=2),
    "drafts": lambda cost: replace(cost, level_ms=cost.level_ms * 2),
}


@pytest.mark.parametrize("pick", [plain, small_plans, four_rows])
@pytest.mark.parametrize("change", CHANGES)
def test_predictions_are_right_again_fifty_cycles_after_a_change(change: str, pick: Pick) -> None:
    for seed in range(6):
        machine = Machine(TABLE, np.random.default_rng(seed))
        live = LiveCost(TABLE, follows=True)
        machine.run(live, pick, 200)
        machine.cost = CHANGES[change](TABLE)
        ratios = machine.run(live, pick, 90)[50:]
        assert np.abs(ratios - 1).mean(0).max() < 0.08
        assert np.mean(np.abs(ratios - 1) < 0.15) > 0.95


@pytest.mark.parametrize("by", [3.0, 1 / 3])
@pytest.mark.parametrize("pick", [plain, small_plans, four_rows])
def test_a_calibration_that_is_off_by_a_factor_of_three_is_mended(pick: Pick, by: float) -> None:
    machine = Machine(TABLE, np.random.default_rng(0))
    live = LiveCost(scaled(TABLE, by), follows=True)
    machine.run(live, pick, 50)
    assert np.abs(machine.run(live, pick, 50) - 1).mean() < 0.06


@pytest.mark.parametrize("pick", [plain, small_plans, four_rows])
def test_a_right_table_stays_right_under_noise(pick: Pick) -> None:
    for seed in range(4):
        machine = Machine(TABLE, np.random.default_rng(seed))
        ratios = machine.run(LiveCost(TABLE, follows=True), pick, 1000)
        assert ratios.mean(0) == pytest.approx([1, 1], abs=0.02)
        assert ratios.std(0).max() < 0.05


def test_one_outlier_moves_predictions_by_a_few_percent_at_most() -> None:
    machine = Machine(TABLE, np.random.default_rng(0))
    live = LiveCost(TABLE, follows=True)
    machine.run(live, small_plans, 300)
    before = live.verify_ms(4, 800.0, 400)
    live.learn_verify(4, 800.0, 400, Before(4), 50 * before)
    live.settle()
    assert live.verify_ms(4, 800.0, 400) == pytest.approx(before, rel=0.05)


def test_row_counts_never_seen_follow_the_others_and_keep_their_cliff() -> None:
    slow = scaled(TABLE, 2.0)
    machine = Machine(slow, np.random.default_rng(0))
    live = LiveCost(TABLE, follows=True)
    machine.run(live, small_plans, 200)
    ratios = live.now.rows_ms[9:] / TABLE.rows_ms[9:]
    assert ((ratios > 1.2) & (ratios < 2.5)).all()
    step, before = (np.diff(cost.expert_ms)[31] / cost.expert_ms[31] for cost in (live.now, TABLE))
    assert step == pytest.approx(before, rel=0.05)


def test_what_is_seen_of_plain_decoding_is_expected_of_drafts_in_part() -> None:
    live = LiveCost(TABLE, follows=True)
    Machine(scaled(TABLE, 2.0), np.random.default_rng(0)).run(live, plain, 300)
    assert 1.1 < live.now.draft_ms([(0,), (1,)]) / TABLE.draft_ms([(0,), (1,)]) < 2.1
    assert 1.3 < live.verify_ms(3, 700.0, 100) / TABLE.at(100).verify_ms(3, 700.0) < 2.1


def test_only_drafts_getting_dearer_leaves_decodes_as_they_are() -> None:
    live = LiveCost(TABLE, follows=True)
    machine = Machine(TABLE, np.random.default_rng(0))
    machine.run(live, small_plans, 100)
    machine.cost = replace(TABLE, level_ms=3 * TABLE.level_ms)
    assert np.abs(machine.run(live, small_plans, 50)[:, 0] - 1).max() < 0.15


def test_the_first_level_and_the_others_are_told_apart() -> None:
    live = LiveCost(TABLE, follows=True)
    slow_start = TABLE.level_ms * np.where(np.arange(5) == 0, 2.5, 1.0)
    machine = Machine(replace(TABLE, level_ms=slow_start), np.random.default_rng(0))
    machine.run(live, small_plans, 300)
    assert live.now.level_ms == pytest.approx(slow_start, rel=0.15)


def test_the_price_of_experts_is_told_from_that_of_rows() -> None:
    live, rng = LiveCost(TABLE, follows=True), np.random.default_rng(0)
    dear = replace(TABLE, expert_ms=2 * TABLE.expert_ms)
    for _ in range(400):
        union = LAYERS * float(rng.uniform(8, 60))
        noise = 1 + 0.1 * float(rng.normal())
        live.learn_verify(8, union, 0, Before(8), noise * dear.verify_ms(8, union))
    assert live.now.expert_ms[8] == pytest.approx(dear.expert_ms[8], rel=0.2)
    assert live.now.rows_ms[8] == pytest.approx(dear.rows_ms[8], rel=0.2)


def test_the_scalar_prediction_is_that_of_the_tables() -> None:
    live = LiveCost(TABLE, follows=True)
    machine = Machine(scaled(TABLE, 1.5), np.random.default_rng(0))
    machine.run(live, small_plans, 77)
    for rows, before in product((1, 5, 64), (PLAINLY, Before(5), Before(5, repeated=False))):
        table = live.now.behind(300, before)
        assert live.verify_ms(rows, 500.0, 300, before) == pytest.approx(
            table.verify_ms(rows, 500.0)
        )


def test_tables_are_made_anew_only_when_something_changed() -> None:
    live = LiveCost(TABLE, follows=True)
    assert live.now is TABLE
    live.learn_verify(1, 8.0 * LAYERS, 0, PLAINLY, 22.3)
    live.learn_draft([], 0.0)
    assert live.now is TABLE
    live.learn_verify(2, 580.0, 0, Before(2), 40.0)
    live.settle()
    assert live.now is not TABLE
    assert live.now is live.now


def test_a_table_that_is_not_followed_stays() -> None:
    live = LiveCost(TABLE, follows=False)
    Machine(scaled(TABLE, 2.0), np.random.default_rng(0)).run(live, small_plans, 50)
    assert live.now is TABLE
    expected_ms = TABLE.behind(10, PLAINLY).verify_ms(4, 800.0)
    assert live.verify_ms(4, 800.0, 10, PLAINLY) == expected_ms


def test_wild_times_and_tables_leave_finite_positive_costs() -> None:
    rng = np.random.default_rng(0)
    steep = [CostPoint(1, 8, 1.0), CostPoint(4, 8, 1.5), CostPoint(4, 20, 30.0)]  # rows_ms < 0
    table = cost_from_points(
        steep, top_k=8, layer_weights=np.ones(LAYERS), level_ms=np.zeros(1), max_rows=5
    )
    assert table.rows_ms[4] < 0
    live = LiveCost(table, follows=True)
    for _ in range(500):
        rows = int(rng.integers(1, 6))
        live.learn_verify(rows, 8.0 * LAYERS, 0, Before(rows), float(10 ** rng.uniform(-6, 6)))
        live.learn_draft([(0,)], 1.0)
        assert 0 < live.verify_ms(rows, 8.0 * LAYERS, 0) < np.inf
    for ms in (0.0, -1.0, float("nan")):
        live.learn_verify(2, 8.0 * LAYERS, 0, Before(2), ms)
        assert 0 < live.verify_ms(2, 8.0 * LAYERS, 0) < np.inf
