"""What switching between plain cycles and drafts is charged with, against the best there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfit.planner import Before, CycleCost, FloatArray, LiveCost
from specfit.planner.cost import PLAINLY, PROMPT
from specfit.planner.gains import if_worth
from specfit.planner.streak import Streak, Switching

DRAFTED = 2


def cost(switch_ms: float, settle_ms: float) -> CycleCost:
    flat = np.ones(9)
    return CycleCost(flat, flat, np.ones(1), np.ones(1), switch_ms=switch_ms, settle_ms=settle_ms)


def play(gains: FloatArray, machine: CycleCost, streak: Streak) -> float:
    """Milliseconds a cycle that are gained by drafting wherever that pays as `streak` charges it,
    all switching paid for. gains: [cycle], what drafting would gain without."""
    before, total = PLAINLY, 0.0
    for gain in gains.tolist():
        extra = {rows: streak.extra_ms(machine, rows, before, 1) for rows in (1, DRAFTED)}
        rows = DRAFTED if gain - extra[DRAFTED] > -extra[1] else 1
        total += gain * (rows == DRAFTED) - machine.extra_ms(rows, before)
        streak.learn(gain, machine.around_ms)
        on = before.rows == rows == DRAFTED
        streak.goes_on(machine.extra_ms(rows, before) if on else None, machine.around_ms)
        before = before.then(rows)
    return total / len(gains)


def best(gains: FloatArray, machine: CycleCost) -> float:
    """The same of the best pair of thresholds, one in each state, chosen in hindsight."""
    found = 0.0
    levels = [-np.inf, *np.quantile(gains, np.linspace(0, 1, 12)).tolist(), np.inf]
    for enter, stay in product(levels, levels):
        before, total = PLAINLY, 0.0
        for gain in gains.tolist():
            rows = DRAFTED if gain > (enter if before.rows == 1 else stay) else 1
            total += gain * (rows == DRAFTED) - machine.extra_ms(rows, before)
            before = before.then(rows)
        found = max(found, total / len(gains))
    return found


GAINS = {
    "a good head": lambda rng, n: rng.normal(6.0, 4.0, n),
    "a fair head": lambda rng, n: rng.normal(1.5, 6.0, n),
    "a poor head": lambda rng, n: rng.normal(-6.0, 4.0, n),
    "rare lookups that gain much": lambda rng, n: np.where(rng.random(n) < 0.05, 60.0, -8.0),
    "rare lookups that gain less than a switch": lambda rng, n: np.where(
        rng.random(n) < 0.05, 8.0, -8.0
    ),
}


@pytest.mark.parametrize("name", GAINS)
@pytest.mark.parametrize(("switch_ms", "settle_ms"), [(2.0, 3.0), (6.0, 9.0), (0.05, 0.0)])
def test_what_is_learned_comes_near_the_best_thresholds(
    name: str, switch_ms: float, settle_ms: float
) -> None:
    machine, rng = cost(switch_ms, settle_ms), np.random.default_rng(0)
    streak = Streak()
    play(GAINS[name](rng, 1000), machine, streak)
    gains = GAINS[name](rng, 1000)
    learned, possible = play(gains, machine, streak), best(gains, machine)
    assert learned > possible - 0.03 * max(possible, machine.around_ms)


def test_a_head_that_always_gains_is_used_after_a_while_however_dear_the_switch() -> None:
    machine, streak = cost(6.0, 9.0), Streak()
    assert streak.extra_ms(machine, DRAFTED, PLAINLY, 1) == machine.around_ms == 21.0
    play(np.full(200, 4.0), machine, streak)
    assert streak.extra_ms(machine, DRAFTED, PLAINLY, 1) < 4.0
    assert play(np.full(200, 4.0), machine, streak) > 3.8


def test_behind_a_prompt_only_the_way_back_is_charged() -> None:
    machine, streak, prompted = cost(6.0, 9.0), Streak(), Before(PROMPT)
    assert machine.extra_ms(1, prompted) == machine.extra_ms(DRAFTED, prompted) == 6.0
    assert streak.extra_ms(machine, 1, prompted, 1) == 0.0
    assert streak.extra_ms(machine, DRAFTED, prompted, 1) == 6.0 + 9.0
    streak.share = 1.0  # every cycle gains by a draft: plain ones give up the way there
    assert streak.extra_ms(machine, DRAFTED, prompted, 1) == 0.0
    assert streak.extra_ms(machine, 1, prompted, 1) == 6.0


@given(st.floats(-3.0, 3.0), st.floats(0.0, 3.0), st.floats(-3.0, 30.0), st.floats(0.0, 3.0))
def test_what_may_be_left_loses_no_more_than_looking_at_it(
    gain: float, spent: float, charge: float, more: float
) -> None:
    worth = if_worth(gain, spent, charge)
    assert worth >= -spent
    assert worth >= if_worth(gain, spent, charge + more) - 1e-9
    assert worth >= gain - charge - 1e-9  # what using it always would bring
    if gain >= -spent:
        assert if_worth(gain, spent, 0.0) == pytest.approx(gain)


def test_a_lookup_now_and_then_does_not_make_switching_look_cheap() -> None:
    machine, streak = cost(6.0, 9.0), Streak()
    play(np.tile([8.0, *[-np.inf] * 19], 50), machine, streak)
    assert streak.extra_ms(machine, DRAFTED, PLAINLY, 1) > 20.0


def test_all_rows_are_charged_as_each_one() -> None:
    switching = Switching(Streak(), LiveCost(cost(2.0, 3.0), follows=False))
    for roots, before in product((1, 3), (PLAINLY, Before(2), Before(3, repeated=False))):
        switching.turn_to(roots)
        switching.before = before
        charged = switching.by_nodes()
        assert charged is not None
        assert charged[1:].tolist() == [switching.extra_ms(rows) for rows in range(1, 9)]
    free = Switching(Streak(), LiveCost(cost(0.0, 0.0), follows=False))
    assert free.by_nodes() is None


def test_decodes_that_are_padded_alike_cost_no_switch() -> None:
    table = replace(cost(2.0, 3.0), rows_ms=np.array([9.0, 1, 2, 3, 4, 5, 6, 2, 2]))
    switching = Switching(Streak(), LiveCost(replace(table, unions=np.zeros(9)), follows=False))
    switching.before = Before(7)  # of any 3 to 7 nodes
    charged = switching.by_nodes()
    assert charged is not None
    assert charged[1:].tolist() == [switching.extra_ms(nodes) for nodes in range(1, 9)]
    assert charged[3:8].tolist() == [0.0] * 5
    assert charged[2] == charged[8] == 5.0


def charge_after(cycles: int, hoped_ms: float, found_ms: float, *, hoped: bool) -> float:
    """What a draft behind plain cycles is charged with after so many cycles in which a head hoped
    for so much without switching, every eighth of which saw what there was."""
    switching = Switching(Streak(), LiveCost(cost(6.0, 9.0), follows=False))
    for cycle in range(cycles):
        switching.hope(hoped_ms)
        if cycle % 8 == 0:
            switching.offer(found_ms, hoped=hoped)
        switching.passed(1)
    return switching.entry_ms


def test_hopes_are_corrected_by_what_drafts_turn_out_to_gain() -> None:
    assert charge_after(200, hoped_ms=4.0, found_ms=4.0, hoped=True) < 4.0
    assert charge_after(200, hoped_ms=4.0, found_ms=-4.0, hoped=True) > 19.0
    assert charge_after(1000, hoped_ms=-1.0, found_ms=4.0, hoped=True) < 4.0


def test_what_lookups_gain_says_nothing_of_the_head() -> None:
    assert charge_after(1000, hoped_ms=-2.0, found_ms=10.0, hoped=False) > 18.0


def test_where_switching_costs_nothing_nothing_is_charged() -> None:
    for rows, before in product((1, 2, 5), (PLAINLY, Before(2), Before(2, repeated=False))):
        assert Streak().extra_ms(cost(0.0, 0.0), rows, before, 1) == 0.0


@given(
    st.lists(st.one_of(st.just(-np.inf), st.floats(-1e6, 1e6)), max_size=60),
    st.floats(0.0, 1e3),
    st.floats(1e-6, 1e3),
)
def test_charges_are_never_negative_nor_more_than_there_and_back(
    gains: list[float], switch_ms: float, settle_ms: float
) -> None:
    machine, streak = cost(switch_ms, settle_ms), Streak()
    play(np.array(gains or [0.0]), machine, streak)
    again = Streak()
    again.restore(streak.state())
    for rows, before in product(
        (1, 2, 5), (PLAINLY, Before(1, repeated=False), Before(2), Before(PROMPT))
    ):
        charge = again.extra_ms(machine, rows, before, 1)
        assert 0.0 <= charge <= machine.around_ms * (1 + 1e-9)
        assert charge == streak.extra_ms(machine, rows, before, 1)


@pytest.mark.parametrize("damage", [{"share": np.array(2.0)}, {"again": np.array(np.nan)}])
def test_a_damaged_state_is_refused(damage: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="streak"):
        Streak().restore({**Streak().state(), **damage})
