"""How often experts are looked at."""

from __future__ import annotations

import pytest

from specfit.planner.looking import FIRST_LOOKS_MS, LOOKING_SHARE, Looking


def looks(learning_ms: float, cycles: int = 20_000) -> int:
    """In cycles of 5 ms; a look itself takes 0.3."""
    looking, found = Looking(0.3), 0
    for _ in range(cycles):
        if looking.begins():
            found += 1
            looking.looked()
            looking.learned(learning_ms)
        looking.passed(5.0)
    return found


@pytest.mark.parametrize("learning_ms", [0.0, 2.0, 40.0])
def test_looks_and_learning_from_them_take_their_share_of_the_time(learning_ms: float) -> None:
    share_ms = LOOKING_SHARE * 20_000 * 5.0 + FIRST_LOOKS_MS
    assert looks(learning_ms) * (0.3 + learning_ms) == pytest.approx(share_ms, rel=0.1)


def test_nothing_is_too_dear_to_be_looked_at_once() -> None:
    looking = Looking(100.0)
    assert looking.begins()
