"""From the head's probabilities to chances of being accepted.

The head's probability of a token is not the target's, let alone what the sampler makes of it. For
every temperature the chance of a node, given that its parent is accepted, is

    logit(chance) = a * logit(p) + b + c[depth]

learned online by logistic regression (one Newton step a cycle) from a prior that believes the head.
Bands of p with counts, which we had before, predict worse than the bare head does (LOG.md): what
matters is the resolution, and two numbers do not need much to be learned.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .regression import RunningRegression
from .tree import DraftTree, FloatArray, IntArray

DEPTHS = 8
# Cycles that are learned from at once: what Python does once a cycle it does with cold caches.
TOGETHER = 8
MEMORY = 1000.0
# Prior deviations: of a, of b, of the depths' c.
_DEVIATIONS = np.full(2 + DEPTHS, 0.3)
_PRIOR = np.array([1.0, *[0.0] * (DEPTHS + 1)])
# No probability counts as more certain than this.
_SURE = 1e-4


class Acceptance:
    """Calibrated chances, learned from verified nodes."""

    def __init__(self) -> None:
        self._temperature = 1.0
        self._by_temperature: dict[float, RunningRegression] = {}
        self._news: list[tuple[DraftTree, list[int]]] = []

    def heat(self, temperature: float) -> None:
        """Turns to texts sampled at this temperature."""
        self._learn_news()
        self._temperature = round(temperature, 1)

    def conditional(self, tree: DraftTree) -> FloatArray:
        """float64 [n]: chance that a node is accepted given that its parent is; 1 for a root."""
        slope, base, *by_depth = self._regression.theta
        offsets = base + np.array([0.0, *by_depth])
        chances = 1 / (1 + np.exp(-(slope * _logits(tree.probs) + offsets[_clipped(tree.depths)])))
        chances[: tree.n_lines] = 1.0
        return chances

    def chances(self, tree: DraftTree) -> FloatArray:
        """float64 [n]: chance that a node is committed, the product along its path."""
        return tree.path_products(self.conditional(tree))

    def learn(self, tree: DraftTree, path: list[int]) -> None:
        """Learns from a verified tree whose nodes `path` (roots included) were accepted."""
        self._news.append((tree, path))
        if len(self._news) == TOGETHER:
            self._learn_news()

    def _learn_news(self) -> None:
        probs, depths, accepted = [], [], []
        for tree, path in self._news:
            on_path = np.zeros(len(tree), np.bool_)
            on_path[path] = True
            tried = on_path[tree.parents]
            tried[: tree.n_lines] = False
            probs.append(tree.probs[tried])
            depths.append(tree.depths[tried])
            accepted.append(on_path[tried])
        self._news.clear()
        if not sum(map(len, probs)):
            return
        y = np.concatenate(accepted)
        x = np.zeros((len(y), 2 + DEPTHS))
        x[:, 0] = _logits(np.concatenate(probs))
        x[:, 1] = 1.0
        x[np.arange(len(x)), 1 + _clipped(np.concatenate(depths))] = 1.0
        scores = x @ self._regression.theta
        chances = 1 / (1 + np.exp(-scores))
        spread = np.maximum(chances * (1 - chances), 1e-3)
        # The working response of a Newton step.
        self._regression.learn(x, scores + (y - chances) / spread, spread)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What was learned, to be kept for the pair of models."""
        self._learn_news()
        return {f"{t:.1f}": regression.state() for t, regression in self._by_temperature.items()}

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Takes over what `state` gave; raises ValueError if that is not so."""
        for name, kept in state.items():
            regression = _new_regression()
            regression.restore(np.asarray(kept, np.float64))
            self._by_temperature[float(name)] = regression

    @property
    def _regression(self) -> RunningRegression:
        """Of the present temperature; a new one begins with what the nearest has learned."""
        known = self._by_temperature.get(self._temperature)
        if known is None:
            known = _new_regression()
            if self._by_temperature:
                nearest = min(self._by_temperature, key=lambda t: abs(t - self._temperature))
                known = _new_regression(self._by_temperature[nearest].theta)
            self._by_temperature[self._temperature] = known
        return known


def _new_regression(prior: FloatArray = _PRIOR) -> RunningRegression:
    return RunningRegression(prior, _DEVIATIONS, MEMORY)


def _logits(probs: FloatArray) -> FloatArray:
    sure = np.minimum(np.maximum(probs, _SURE), 1 - _SURE)
    return np.log(sure / (1 - sure))


def _clipped(depths: IntArray) -> IntArray:
    """Depths as they are told apart: 0 for the root, DEPTHS for all that lie deeper."""
    return np.minimum(depths, DEPTHS)
