"""The candidates of a cycle, with all that plans weigh them by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .cost import CycleCost
from .forecast import ExpertForecast
from .tree import DraftTree, FloatArray


class Drafts:
    """The candidates of a cycle after a level, and what is expected of them.

    chances: float64 [n]. cost: the tables of this cycle, as measured. by_rows: the same for plans
    of which nothing but the number of rows is known. forecast: of the nodes' experts, once it was
    asked for, and by_experts: the tables for plans by it.
    """

    def __init__(
        self, tree: DraftTree, conditional: FloatArray, cost: CycleCost, unions: FloatArray
    ) -> None:
        self.tree = tree
        self.chances = tree.path_products(conditional)
        self.cost = cost
        self.by_rows = without_experts(cost, unions)
        self.by_experts = cost
        self.forecast: ExpertForecast | None = None


def without_experts(cost: CycleCost, unions: FloatArray) -> CycleCost:
    """Tables for plans by rows alone: n rows use the weighted union unions[n]."""
    rows_ms = cost.rows_ms + cost.expert_ms * unions[: cost.max_rows + 1]
    return replace(cost, rows_ms=rows_ms, expert_ms=np.zeros_like(cost.expert_ms))
