"""What levels of drafts really gained, against what they promised.

Before a level there is a prediction of its gain, in the measure of plans: an optimistic one, since
it knows neither which children will come nor which experts they bring, and a pessimistic one, since
only children that turn out well will be used. What the level and those behind it really gained is
seen afterwards, so predictions are calibrated by a regression, one for the first level and one for
the further ones.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .acceptance import TOGETHER
from .regression import RunningRegression
from .tree import FloatArray

# Cycles after which one weighs half, and how precise one is (the inverse of a variance in tokens
# squared).
MEMORY, PRECISION = 800.0, 40.0
_PRIOR, _DEVIATIONS = np.array([0.0, 1.0]), np.array([0.2, 0.5])
_NAMES = ("first", "further")


def if_worth(gain: float, spent: float, charge: float) -> float:
    """Tokens to expect of a level, of which `gain` is expected where nothing has to be paid for
    using it.

    spent: on the level, in vain or not. charge: for using it, which may be left; negative: for
    leaving it. What it brings, gain + spent in the mean, is never less than nothing, and taken to
    be distributed exponentially.
    """
    brings = max(gain + spent, 0.0)
    if charge <= 0.0 or not brings:
        return brings - min(charge, 0.0) - spent
    return brings * math.exp(-charge / brings) - spent


class Gains:
    """Gains of levels, the first one being 0, in tokens."""

    def __init__(self) -> None:
        self._lines = [RunningRegression(_PRIOR, _DEVIATIONS, MEMORY) for _ in range(2)]
        self._news: list[list[tuple[float, float]]] = [[], []]  # predicted, gained

    def calibrated(self, level: int, predicted: float) -> float:
        """What to expect of a level of which so much is predicted."""
        offset, slope = self._lines[level > 0].theta.tolist()
        return float(offset + slope * predicted)

    def learn(self, level: int, predicted: float, gained: float) -> None:
        news = self._news[level > 0]
        news.append((predicted, gained))
        if len(news) == TOGETHER:
            self._learn_news(level > 0)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What was learned, to be kept for the pair of models."""
        for further in (False, True):
            self._learn_news(further)
        return {name: line.state() for name, line in zip(_NAMES, self._lines, strict=True)}

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Takes over what `state` gave; raises ValueError or KeyError if that is not so."""
        for name, line in zip(_NAMES, self._lines, strict=True):
            line.restore(np.asarray(state[name], np.float64))

    def _learn_news(self, further: bool) -> None:
        if not self._news[further]:
            return
        x, y = np.array(self._news[further]).T
        design: FloatArray = np.stack([np.ones(len(x)), x], axis=1)
        self._lines[further].learn(design, y, np.full(len(x), PRECISION))
        self._news[further].clear()
