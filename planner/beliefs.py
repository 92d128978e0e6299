"""What has been learned about a model pair while it ran.

Every mode reports its expectations by it, some plan by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .acceptance import Acceptance
from .cost import CycleCost
from .experts import Bitsets, union_per_layer
from .forecast import ExpertForecast, Forecast, Paid
from .gains import Gains
from .outlook import Outlook
from .streak import Streak
from .tree import DraftTree, FloatArray

# How fast a union tells less of others, an octave of rows away: of unions from 2 rows on, and of
# those of missing experts, from the first row on. Replays are flat from 0 to 1.
NEARNESS = {2: 4.0, 1: 0.5}
# What a union weighs; looks at first more: the prior, of random tokens, is worth so many.
WEIGHT, PRIOR_WORTH = 0.1, 1
# Of experts in a cache hardly any are paid for now and then, and many at once again.
LEAST_UNION, MOST_SURPRISE = 0.01, 10.0


class _Learner(Protocol):
    def state(self) -> dict[str, NDArray[np.generic]]: ...

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None: ...


class UnionByRows:
    """Mean union of experts per layer by the number of rows: all a count-only planner knows."""

    def __init__(self, prior: FloatArray) -> None:
        """prior: float64 [rows + 1], expected union per layer; entry 0 unused."""
        self.mean = prior.astype(np.float64, copy=True)
        self._seen = 0

    def learn(self, rows: int, union_per_layer: float, first: int = 2) -> None:
        """first: the fewest rows whose union is not certain; 1 where experts are cached."""
        if first == 1:
            self.mean = np.maximum(self.mean, LEAST_UNION)
        # Neighbouring row counts are alike, so the whole curve moves with the point; what a cache
        # holds is common to all of them.
        error = min(union_per_layer / self.mean[rows] - 1, MOST_SURPRISE)
        distance = np.abs(np.log2(np.maximum(np.arange(len(self.mean)), 1) / rows))
        weight = WEIGHT
        if first > 1:
            self._seen += 1
            weight = max(WEIGHT, 1 / (PRIOR_WORTH + self._seen))
        self.mean[first:] *= 1 + weight * error * np.exp2(-NEARNESS[first] * distance[first:])

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {"mean": self.mean.copy(), "seen": np.array(self._seen)}

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        mean, seen = np.asarray(state["mean"], np.float64), int(state["seen"])
        if mean.shape != self.mean.shape or not (mean >= 0).all() or seen < 0:
            raise ValueError("the kept unions are damaged")
        self.mean, self._seen = mean.copy(), seen


@dataclass(frozen=True)
class Beliefs:
    """acceptance: chances of draft nodes. outlook: of nodes not drafted yet. forecast: experts of
    draft nodes; None for a dense model.

    unions:        unions by row count, with a cache of what is paid for; all zero for a dense
                   model.
    layer_weights: float64 [layer], what an expert of each layer costs; empty for a dense model.
    gains:         of drafting levels.
    streak:        how much cycles that draft follow one another.
    """

    acceptance: Acceptance
    outlook: Outlook
    forecast: Forecast | None
    unions: UnionByRows
    layer_weights: FloatArray
    gains: Gains = field(default_factory=Gains)
    streak: Streak = field(default_factory=Streak)

    @cached_property
    def weight(self) -> float:
        """Weighted union of one expert a layer."""
        return float(self.layer_weights.sum())

    @property
    def expected_unions(self) -> FloatArray:
        """float64 [rows + 1]: weighted union to expect of that many rows, whichever they are."""
        return self.unions.mean * self.weight

    def expected_union(self, rows: int) -> float:
        """The same of so many rows."""
        return float(self.unions.mean[rows]) * self.weight

    def per_layer(self, weighted_union: float, rows: int) -> float:
        """The mean union per layer that a weighted union stands for; what is expected of so many
        rows where no layer's experts have a weight."""
        return weighted_union / self.weight if self.weight else float(self.unions.mean[rows])

    def learn(
        self,
        tree: DraftTree,
        path: list[int],
        forecast: ExpertForecast | None,
        experts: Bitsets | None,
        cost: CycleCost | None = None,
        paid_union: float | None = None,
    ) -> None:
        """Learns from a verified tree.

        path: the accepted nodes. forecast: what was expected of this very tree. experts: uint64
        [n, layer, word], what was observed. With a cache of experts, cost: of the cycle, and
        paid_union: what the cache counted.
        """
        if len(tree) > 1:
            self.acceptance.learn(tree, path)
        self.learn_paid(len(tree), paid_union)
        if experts is None:
            return
        if paid_union is None:
            self.unions.learn(len(tree), float(union_per_layer(experts).mean()))
        if self.forecast is not None:
            paid = None if cost is None or cost.resident is None else self.paid(cost)
            self.forecast.learn(tree, forecast, experts, paid)

    def paid(self, cost: CycleCost) -> Paid:
        """What is paid for of the experts of a cycle of this cost."""
        assert self.forecast is not None
        whole = self.forecast.n_used * (1 + cost.use_share)
        return Paid(cost, min(max(float(self.unions.mean[1]) / whole, LEAST_UNION), 1.0))

    def learn_paid(self, rows: int, paid_union: float | None) -> None:
        """Learns what so many rows paid for, in weighted experts; None: there is no cache."""
        if paid_union is not None and self.weight:
            self.unions.learn(rows, paid_union / self.weight, first=1)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Everything that was learned, to be kept for the pair of models."""
        return {
            f"{part}/{name}": array
            for part, learned in self._parts.items()
            for name, array in learned.state().items()
        }

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Takes over what `state` gave. Raises ValueError or KeyError where it does not fit; the
        beliefs are of no use then."""
        for part, learner in self._parts.items():
            prefix = f"{part}/"
            learner.restore(
                {
                    name.removeprefix(prefix): array
                    for name, array in state.items()
                    if name.startswith(prefix)
                }
            )

    @property
    def _parts(self) -> dict[str, _Learner]:
        parts: dict[str, _Learner] = {
            "acceptance": self.acceptance,
            "outlook": self.outlook,
            "unions": self.unions,
            "gains": self.gains,
            "streak": self.streak,
        }
        if self.forecast is not None:
            parts["forecast"] = self.forecast
        return parts
