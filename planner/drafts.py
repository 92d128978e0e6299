"""The candidates of a cycle, with all that plans weigh them by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .beliefs import Beliefs
from .cost import CycleCost
from .forecast import ExpertForecast, Forecast
from .reason import Step, best_left_out
from .search import Plan, best_subtree
from .tree import BoolArray, DraftTree, FloatArray, IntArray

# Planning may take this share of a cycle; a state of the search takes about STATE_MS (LOG.md).
PLANNING_SHARE = 0.01
STATE_MS = 0.1


class Drafts:
    """The candidates of a cycle after a level, and what is expected of them.

    chances: float64 [n]. cost: the tables of this cycle, as measured. by_rows: the same for plans
    of which nothing but the number of rows is known. forecast: of the nodes' experts, once it was
    asked for, and by_experts: the tables for plans by it.

    root_union: the weighted union of the roots. rate: tokens per ms, that plans are weighed by;
    None: the ratio is maximised. max_rows: of a plan.
    """

    def __init__(
        self,
        tree: DraftTree,
        conditional: FloatArray,
        cost: CycleCost,
        unions: FloatArray,
        root_union: float,
        rate: float | None,
        max_rows: int,
    ) -> None:
        self.tree = tree
        self.chances = tree.path_products(conditional)
        self.cost = cost
        self.by_rows = without_experts(cost, unions)
        self.by_experts = cost
        self.forecast: ExpertForecast | None = None
        self._root_union = root_union
        self._rate, self._max_rows = rate, max_rows
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

    def left(self, nodes: IntArray) -> FloatArray:
        """float64 [m]: what the children that there are of `nodes` leave of their chances to
        others, as a share."""
        tree, n = self.tree, self.tree.n_lines
        if tree.named is None:
            return np.ones(len(nodes))
        taken = np.zeros(len(tree))
        np.add.at(taken, tree.parents[n:], self.chances[n:])
        return np.maximum(1 - taken[nodes] / np.maximum(self.chances[nodes], 1e-9), 0.0)

    def searched(
        self,
        frontier: IntArray,
        chances: FloatArray,
        forecast: ExpertForecast | None,
        cost: CycleCost,
        spent_ms: float,
    ) -> Plan:
        """The best plan of the candidates, and of a child behind each node of `frontier`, whose
        chances [n + m] and experts these are, by the tables `cost`; see `best_subtree`."""
        parents = self.tree.parents
        return best_subtree(
            np.concatenate([parents, frontier]) if len(frontier) else parents,
            chances,
            None if forecast is None else forecast.sets,
            None if forecast is None else forecast.unforeseen,
            cost,
            spent_ms=spent_ms,
            rate=self._rate,
            max_rows=self._max_rows,
            max_states=1 + int(PLANNING_SHARE * self.by_rows.rows_ms[1] / STATE_MS),
        )

    def planned_by_rows(self, unions: FloatArray, spent_ms: float) -> tuple[float, float]:
        """What the plan that would be made without the forecast commits, and takes by it."""
        by_rows = without_experts(self.cost, unions)
        plan = self.searched(np.zeros(0, np.int32), self.chances, None, by_rows, spent_ms)
        ms = self.cost.verify_ms(int(plan.keep.sum()), self.union(plan.keep))
        return plan.committed, spent_ms + ms

    def best_left_out(self, keep: BoolArray, token_ms: float) -> Step | None:
        """The best candidate that is not in the plan `keep`, as the function of that name tells."""
        cost = self.by_rows if self.forecast is None else self.by_experts
        return best_left_out(keep, self.tree.parents, self.chances, self.forecast, cost, token_ms)

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
