"""What a cycle costs.

    T(S) = levels * draft_ms + rows_ms[n] + expert_ms[n] * sum_l w_l |U_l(S)|

n is the number of rows verified, the root included; U_l(S) is the union of the experts that those
rows use at layer l. `rows_ms` and `expert_ms` are measured tables over n, with whatever cliffs the
machine has. w_l is 0 for a layer whose experts cost nothing extra (it lies on the GPU).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .tree import FloatArray


@dataclass(frozen=True)
class CostPoint:
    """One measurement: `ms` of a decode of `rows` tokens using `union` experts a layer (mean)."""

    rows: int
    union: float
    ms: float


@dataclass(frozen=True)
class CycleCost:
    """Cost of a cycle on one machine, model and placement; times in milliseconds.

    rows_ms:       float64 [N + 1]; rows_ms[n] is the cost of n rows without their experts,
                   everything fixed included. Entry 0 is unused.
    expert_ms:     float64 [N + 1]; cost of one unit of weighted union at n rows.
    layer_weights: float64 [layer]; weight of one expert of that layer.
    draft_ms:      cost of drafting one level.
    """

    rows_ms: FloatArray
    expert_ms: FloatArray
    layer_weights: FloatArray
    draft_ms: float

    @property
    def max_rows(self) -> int:
        return len(self.rows_ms) - 1

    def cycle_ms(self, rows: int, weighted_union: float, levels: int = 0) -> float:
        """T for `rows` rows whose experts weigh `weighted_union` after `levels` draft levels."""
        verify = self.rows_ms[rows] + self.expert_ms[rows] * weighted_union
        return float(levels * self.draft_ms + verify)


def cost_from_points(
    points: Sequence[CostPoint],
    *,
    top_k: int,
    layer_weights: FloatArray,
    draft_ms: float,
    max_rows: int,
    default_expert_ms: FloatArray | None = None,
) -> CycleCost:
    """Cost tables through measured points.

    A row count with two points of different union gives both table entries; with one, the price of
    an expert is `default_expert_ms` [max_rows + 1] (ms per unit of weighted union; 0 if None).
    Between measured row counts the tables are linear, beyond the last they go on as through the
    last two.

    Raises ValueError without a measurement of one row.
    """
    weight = float(layer_weights.sum())
    counts = sorted({point.rows for point in points})
    if not counts or counts[0] != 1:
        raise ValueError("a cost profile needs a measurement of one row")
    at_count: list[tuple[float, float]] = []
    for rows in counts:
        here = sorted((p for p in points if p.rows == rows), key=lambda p: p.union)
        low, high = here[0], here[-1]
        spread = (high.union - low.union) * weight
        if spread > 0:
            price = max(0.0, (high.ms - low.ms) / spread)
        else:
            price = 0.0 if default_expert_ms is None else float(default_expert_ms[rows])
        at_count.append((low.ms - price * low.union * weight, price))
    if len(at_count) > 1 and len([p for p in points if p.rows == 1]) == 1:
        # One row always uses top_k experts, so its price cannot be told apart; take the next one's
        # and keep the measured total.
        price = at_count[1][1]
        total = at_count[0][0] + at_count[0][1] * top_k * weight
        at_count[0] = (total - price * top_k * weight, price)
    rows_ms = _table(counts, [rows for rows, _ in at_count], max_rows)
    expert_ms = _table(counts, [price for _, price in at_count], max_rows)
    return CycleCost(rows_ms, np.maximum(expert_ms, 0.0), layer_weights, draft_ms)


def _table(counts: list[int], values: list[float], max_rows: int) -> FloatArray:
    """float64 [max_rows + 1]: `values` at `counts`, linear between, extrapolated beyond."""
    table = np.interp(np.arange(max_rows + 1), counts, values)
    if len(counts) > 1 and max_rows > counts[-1]:
        slope = (values[-1] - values[-2]) / (counts[-1] - counts[-2])
        beyond = np.arange(counts[-1] + 1, max_rows + 1)
        table[beyond] = values[-1] + slope * (beyond - counts[-1])
    return table
