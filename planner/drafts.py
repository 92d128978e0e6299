"""The candidates of a cycle, with all that plans weigh them by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .beliefs import Beliefs
from .cost import CycleCost
from .forecast import ExpertForecast, Forecast
from .tree import BoolArray, DraftTree, FloatArray


class Drafts:
    """The candidates of a cycle after a level, and what is expected of them.

    chances: float64 [n]. cost: the tables of this cycle, as measured. by_rows: the same for plans
    of which nothing but the number of rows is known. forecast: of the nodes' experts, once it was
    asked for, and by_experts: the tables for plans by it.

    root_union: the weighted union of the roots.
    """

    def __init__(
        self,
        tree: DraftTree,
        conditional: FloatArray,
        cost: CycleCost,
        unions: FloatArray,
        root_union: float,
    ) -> None:
        self.tree = tree
        self.chances = tree.path_products(conditional)
        self.cost = cost
        self.by_rows = without_experts(cost, unions)
        self.by_experts = cost
        self.forecast: ExpertForecast | None = None
        self._root_union = root_union
        self._scale = 1.0

    def foresee(self, forecast: Forecast, beliefs: Beliefs) -> None:
        """Forecasts the experts of the candidates.

        The forecast's growth over the roots' experts is scaled to what was observed. The roots' own
        number is not taken from it: one root's is certain, and of so many lines, or with a cache,
        the mean is known.
        """
        cost, scale, forecast_of = self.cost, forecast.scale, forecast.of(self.tree)
        if cost.resident is not None:
            unforeseen = forecast_of.unforeseen * beliefs.paid(cost).missing_share
            forecast_of = replace(forecast_of, unforeseen=unforeseen)
        self.forecast, self._scale = forecast_of, scale
        known = self._root_union - scale * self._foreseen_roots()
        self.by_experts = replace(
            cost,
            rows_ms=cost.rows_ms + cost.expert_ms * known,
            expert_ms=cost.expert_ms * scale,
        )

    def union(self, keep: BoolArray) -> float:
        """The weighted union to expect of the nodes to `keep`, of which a forecast was made."""
        return self._root_union + self._scale * (self._foreseen(keep) - self._foreseen_roots())

    def _foreseen_roots(self) -> float:
        return self._foreseen(self.tree.depths == 0)

    def _foreseen(self, keep: BoolArray) -> float:
        assert self.forecast is not None
        union = self.cost.weighted_union(self.forecast.sets[keep])
        return union + float(self.forecast.unforeseen[keep].sum())


def without_experts(cost: CycleCost, unions: FloatArray) -> CycleCost:
    """Tables for plans by rows alone: n rows use the weighted union unions[n]."""
    rows_ms = cost.rows_ms + cost.expert_ms * unions[: cost.max_rows + 1]
    return replace(cost, rows_ms=rows_ms, expert_ms=np.zeros_like(cost.expert_ms))
