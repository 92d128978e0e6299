"""What first drafts promise: worked out for a cycle, it holds for some plain ones behind it."""

from __future__ import annotations

from typing import NamedTuple

from .gains import Gains, if_worth


class First(NamedTuple):
    """First drafts behind the most promising lines, n of them, that bring no experts.

    gain: in worth, over a plain cycle. hoped: tokens. extra_ms: that the cycle takes more than a
    plain one; of it, spent_ms on drafting, and charged_ms for switching. plain_ms, plain: a plain
    cycle's time and worth.
    """

    gain: float
    n: int
    hoped: float
    extra_ms: float
    spent_ms: float
    charged_ms: float
    plain_ms: float
    plain: float


class Prospect:
    """Of first drafts. rate: tokens per ms, that cycles are weighed by."""

    def __init__(self, first: First, rate: float, gains: Gains) -> None:
        self.first, self.rate = first, rate
        self._gains = gains
        self._charge = rate * first.charged_ms
        # Of switching nothing is paid before it is known what there is to be gained by it.
        self._gain = first.gain + self._charge - first.hoped
        self._glances = 0

    def gain(self, hoped: float) -> float:
        """Tokens that they gain, were switching free, if so many are hoped for."""
        return self._gain + hoped

    def expected(self, gain: float) -> float:
        """What that is found to come to."""
        expected = self._gains.calibrated(0, gain)
        return if_worth(expected, self.rate * self.first.spent_ms, self._charge)

    def glances(self, most: int) -> bool:
        """Counts the cycles that are judged by it; False when it is to be worked out anew."""
        self._glances += 1
        return self._glances < most
