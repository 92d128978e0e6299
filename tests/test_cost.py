"""Cost tables from measured points."""

from __future__ import annotations

import numpy as np
import pytest
from costcases import MEASURED
from hypothesis import given
from hypothesis import strategies as st

from specfit.planner import Before, CostPoint, CycleCost, cost_from_points
from specfit.planner.cost import NEAR

LAYERS = np.ones(48)


def tables(points: list[CostPoint], max_rows: int = 64, **changes: object) -> CycleCost:
    settings = {
        "top_k": 8,
        "layer_weights": LAYERS,
        "level_ms": np.array([0.7]),
        "max_rows": max_rows,
    }
    return cost_from_points(points, **{**settings, **changes})  # type: ignore[arg-type]


def verify_ms(cost: CycleCost, rows: int, union: float) -> float:
    return cost.verify_ms(rows, union * float(cost.layer_weights.sum()))


def test_time_of_a_cycle() -> None:
    cost = CycleCost(
        np.array([0.0, 5.0, 7.0]), np.array([0.0, 0.5, 0.25]), np.ones(2), np.array([1.5, 1.0, 1.2])
    )
    assert cost.max_rows == 2
    assert cost.verify_ms(1, 16) == pytest.approx(5.0 + 8.0)
    assert cost.verify_ms(2, 24) == pytest.approx(7.0 + 6.0)
    assert cost.draft_ms([(0,), (1,), (2,), (9,)]) == pytest.approx(1.5 + 1.0 + 1.2 + 1.2)


def test_goes_through_every_measurement() -> None:
    cost = tables(MEASURED)
    for point in MEASURED:
        assert verify_ms(cost, point.rows, point.union) == pytest.approx(point.ms)


def test_is_linear_between_row_counts() -> None:
    cost = tables(MEASURED)
    for union in (8.0, 20.0):
        ends = verify_ms(cost, 2, union), verify_ms(cost, 8, union)
        assert verify_ms(cost, 5, union) == pytest.approx(sum(ends) / 2)


def test_a_cliff_stays_a_cliff() -> None:
    cost = tables(MEASURED)
    assert verify_ms(cost, 32, 45) - verify_ms(cost, 31, 45) == pytest.approx(524.0)


def test_goes_on_as_through_the_last_two() -> None:
    cost = tables([p for p in MEASURED if p.rows <= 8])
    for union in (8.0, 25.7):
        step = (verify_ms(cost, 8, union) - verify_ms(cost, 2, union)) / 6
        assert verify_ms(cost, 20, union) == pytest.approx(verify_ms(cost, 8, union) + 12 * step)


def test_the_price_of_the_first_row_is_that_of_the_next() -> None:
    cost = tables(MEASURED)
    assert cost.expert_ms[1] == cost.expert_ms[2] == pytest.approx(3.5 / (4.1 * 48))
    assert verify_ms(cost, 1, 8) == pytest.approx(22.3)


def test_a_wider_union_that_took_less_time_counts_as_the_same_measured_twice() -> None:
    cost = tables([CostPoint(1, 8, 10.0), CostPoint(4, 8, 21.0), CostPoint(4, 20, 19.0)])
    assert cost.expert_ms[4] == 0
    assert verify_ms(cost, 4, 8) == verify_ms(cost, 4, 20) == pytest.approx(20.0)


def test_one_union_takes_the_price_it_is_given() -> None:
    points = [CostPoint(1, 8, 11.4), CostPoint(2, 12, 13.6), CostPoint(4, 18, 20.9)]
    prices = np.linspace(0.001, 0.004, 65)
    cost = tables(points, default_expert_ms=prices)
    assert cost.expert_ms[[1, 2, 4]] == pytest.approx([prices[2], prices[2], prices[4]])
    for point in points:
        assert verify_ms(cost, point.rows, point.union) == pytest.approx(point.ms)
    assert not tables(points).expert_ms.any()


def test_measurements_beyond_the_table_are_used() -> None:
    points = [CostPoint(1, 8, 10.0), CostPoint(5, 20, 50.0)]
    assert tables(points, max_rows=3).rows_ms[1:] == pytest.approx([10.0, 20.0, 30.0])
    prices = np.full(4, 0.01)
    assert tables(points, max_rows=3, default_expert_ms=prices).expert_ms[3] == 0.01


def test_layers_on_the_gpu_do_not_count() -> None:
    half = tables(MEASURED, layer_weights=np.repeat([0.0, 1.0], 24))
    assert half.expert_ms[2] == pytest.approx(2 * tables(MEASURED).expert_ms[2])
    for point in MEASURED:
        assert verify_ms(half, point.rows, point.union) == pytest.approx(point.ms)


def test_a_dense_model_has_no_experts_to_pay() -> None:
    cost = tables([CostPoint(1, 0, 5.0), CostPoint(4, 0, 8.0)], layer_weights=np.zeros(0), top_k=0)
    assert not cost.expert_ms.any()
    assert cost.rows_ms[1:5] == pytest.approx([5.0, 6.0, 7.0, 8.0])


def test_length_of_text_and_a_new_row_count_are_folded_in() -> None:
    cost = tables(MEASURED, switch_ms=1.5, settle_ms=2.5, context_ms=np.linspace(0, 0.64, 65))
    for rows in (1, 2, 31):
        steady = verify_ms(cost, rows, 20)
        assert verify_ms(cost.at(100), rows, 20) == pytest.approx(steady + rows)
        for before, extra_ms in (
            (Before(rows), 0.0),
            (Before(rows, repeated=False), 2.5),
            (Before(rows + 1), 1.5),
            (Before(rows + 1, repeated=False), 1.5),
        ):
            folded = cost.behind(100, before)
            assert verify_ms(folded, rows, 20) == pytest.approx(steady + rows + extra_ms)
            again = folded.behind(100, Before(64))
            assert again.rows_ms == pytest.approx(folded.rows_ms)


# As measured with weights in pinned memory: from 32 rows on experts are copied to the GPU.
FALLING = [
    CostPoint(1, 8, 23.9),
    CostPoint(4, 8, 75.0),
    CostPoint(4, 14, 81.9),
    CostPoint(31, 8, 200.0),
    CostPoint(31, 23, 215.0),
    CostPoint(32, 8, 43.0),
    CostPoint(32, 21, 80.6),
    CostPoint(64, 8, 47.0),
    CostPoint(64, 24, 87.9),
]


def test_decodes_are_padded_where_more_rows_are_cheaper() -> None:
    cost = tables(FALLING)
    padded = cost.padded()
    assert [padded.rows(nodes) for nodes in (1, 2, 4, 12, 31)] == [1, 2, 32, 32, 32]
    assert verify_ms(padded, 12, 15) == verify_ms(cost, 32, 15)
    assert padded.rows(32) == 32 and padded.rows(64) == 64


@given(st.data())
def test_padding_is_the_best_number_of_rows_there_is(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))

    def table(least: float = 0.0) -> np.ndarray:
        numbers = st.lists(st.floats(least, 100), min_size=n + 1, max_size=n + 1)
        return np.array(data.draw(numbers))

    rows_ms, expert_ms, unions, context_ms = table(least=-100), table(), table(), table()
    text = data.draw(st.sampled_from([0, 7]))
    cost = CycleCost(
        rows_ms, expert_ms, np.ones(1), np.ones(1), context_ms=context_ms, unions=unions
    )
    padded, there = cost.padded(text), cost.at(text)
    for nodes in range(1, n + 1):
        rows, union = padded.rows(nodes), float(unions[nodes])
        assert nodes <= rows <= n
        times = {more: there.verify_ms(more, union) for more in range(nodes, n + 1)}
        best = min(times.values())
        near = [more for more, ms in times.items() if ms <= best + NEAR * abs(best)]
        assert rows == (1 if nodes == 1 else near[0])
        for context in (0, 7):
            for before in (Before(rows), Before(rows, repeated=False), Before(n + 1)):
                by_rows, by_nodes = cost.behind(context, before), padded.behind(context, before)
                assert by_nodes.verify_ms(nodes, 3.0) == by_rows.verify_ms(rows, 3.0)


def test_without_a_fall_nothing_is_padded() -> None:
    assert tables(MEASURED).padded().decoded is None


@given(st.data())
def test_no_profile_makes_a_cycle_free(data: st.DataObject) -> None:
    """However badly measured, wider or longer batches than top_k experts take positive time."""
    rows = data.draw(st.lists(st.integers(2, 40), unique=True, max_size=5))
    points = [CostPoint(1, 8, data.draw(st.floats(1, 200)))]
    for count in rows:
        for _ in range(data.draw(st.integers(1, 2))):
            union = data.draw(st.floats(8, 100))
            points.append(CostPoint(count, union, data.draw(st.floats(1, 1000))))
    prices = data.draw(st.none() | st.floats(0, 1).map(lambda price: np.full(65, price)))
    cost = tables(points, default_expert_ms=prices)
    assert (cost.expert_ms >= 0).all()
    for count in range(1, 65):
        for union in (8.0, 128.0):
            assert verify_ms(cost, count, union) > 0


def test_unions_that_are_all_but_equal_tell_no_price_of_an_expert() -> None:
    cost = tables([CostPoint(1, 8, 1.0), CostPoint(2, 8.0, 1.0), CostPoint(2, 8 + 1e-9, 4.0)])
    assert cost.expert_ms.max() == 0
    assert verify_ms(cost, 2, 100) == pytest.approx(2.5)


@pytest.mark.parametrize("points", [[], [CostPoint(2, 8, 5.0)], [CostPoint(0, 0, 1.0)]])
def test_needs_a_measurement_of_one_row(points: list[CostPoint]) -> None:
    with pytest.raises(ValueError, match="one row"):
        tables(points)


@pytest.mark.parametrize("ms", [0.0, -1.0, float("nan")])
def test_refuses_times_that_are_none(ms: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        tables([CostPoint(1, 8, 5.0), CostPoint(2, 8, ms)])
