"""What a cycle costs.

    T(S) = draft_ms(levels) + rows_ms[n] + expert_ms[n] * sum_l w_l |U_l(S)|
           + context_ms[n] * context + switch_ms [n new] + settle_ms [n new the decode before]

n is the number of rows verified, roots included; U_l(S) is the union of the experts that those
rows use at layer l. The tables over n are measured, with whatever cliffs the machine has. w_l is 0
for a layer whose experts cost nothing extra (it lies on the GPU). llama.cpp rebuilds its graph when
the number of rows changes from one decode to the next: that is switch_ms. A GPU records the graph
with the second decode of that number, which is settle_ms; until then it is told every kernel.

Where the tables fall, a decode is padded: from 32 rows on ggml copies experts to the GPU instead of
computing with them on the CPU, and with weights in pinned memory that takes less than the CPU does
for 8. Further copies of a root use its experts, so n nodes take

    min over m >= n of rows_ms[m] + expert_ms[m] * U,

which is not of T's form, since the best m hangs on U. It is chosen for the union that n nodes have
in the mean (`CycleCost.padded`), and T is exact for the rows that are really decoded.

With a cache of experts R on the GPU, only what is missing there is paid for, and every row that
uses a missing expert pays again, since the CPU computes it row by row:

    sum_l w_l (|U_l(S) - R_l| + use_share * sum_{v in S} |E_vl - R_l|)

takes the place of the sum over unions, and rows_ms[n] is what n rows take whose experts are all
resident. That is still a union's weight and a number for every node, so the search stays exact.

Hits and misses of a layer are computed side by side, so what a layer really takes is the longer of
the two, which is not submodular. Hits are taken to be free here, so this T is never more than

    T_max(S) = T(S) + sum_l (hit_l - miss_l where that is positive),

hit_l and miss_l being what the hits and the misses of layer l take. The best S by this T loses at
most rate * (T_max - T)(S) against the best by T_max: nothing, where every layer has misses that
take as long as its hits, and at most all its hits' time where it has none. On an H200 a hit takes
less than 0.1 us a layer up to 8 rows and 3 us at 32, a miss 50.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .experts import Bitsets, sizes, union_per_layer
from .tree import FloatArray

# For every level that was drafted, the nodes expanded in each line that went on: 0 for its root.
Levels = Sequence[Sequence[int]]


@dataclass(frozen=True)
class CostPoint:
    """One measurement: `ms` of a decode of `rows` tokens using `union` experts a layer (mean)."""

    rows: int
    union: float
    ms: float


@dataclass(frozen=True)
class Overheads:
    """What drafting takes beside its cycles, in milliseconds.

    observe_ms:  observing the experts of a decode; unsettled_ms: what the next ones take more.
    features_ms: having a decode hand out features. position_ms: the head's catching up on a
    position of text that was decoded without drafts.
    """

    observe_ms: float = 0.0
    features_ms: float = 0.0
    position_ms: float = 0.0
    unsettled_ms: float = 0.0


NO_OVERHEADS = Overheads()


# Rows of a decode that no cycle's is like: of a prompt.
PROMPT = 0


class Before(NamedTuple):
    """The last decode. rows: that it had, or PROMPT. repeated: the one before it had as many."""

    rows: int
    repeated: bool = True

    def then(self, rows: int) -> Before:
        """What a decode of so many rows is to the next one."""
        return Before(rows, rows == self.rows)


# Plain cycles, for long.
PLAINLY = Before(1)


@dataclass(frozen=True)
class CycleCost:
    """Cost of a cycle on one machine, model and placement; times in milliseconds.

    rows_ms:       float64 [N + 1]; rows_ms[n] is the cost of n rows without their experts,
                   everything fixed included. Entry 0 is unused.
    expert_ms:     float64 [N + 1]; cost of one unit of weighted union at n rows, never negative.
    layer_weights: float64 [layer]; weight of one expert of that layer, never negative.
    level_ms:      float64 [W + 1]; cost of drafting a line's next level by expanding w nodes, the
                   last entry also of more. Entry 0 is the first level, the root's children, with
                   the head's catching up on committed tokens.
    switch_ms:     what a decode costs more when the one before had another number of rows.
    settle_ms:     what the second decode of another number of rows costs more.
    context_ms:    float64 [N + 1]; what a token of committed text adds to a decode of n rows; None:
                   nothing.
    use_share:     what a row's use of a missing expert costs, as a share of that expert's own
                   price; of a machine with a cache of experts.
    resident:      uint64 [layer, word], the experts in the cache; None: there is none.
    unions:        float64 [N + 1]; the weighted union that n different tokens have in the mean;
                   None: decodes are not padded.
    decoded:       int64 [N + 1], in tables by nodes that are verified: rows that they are decoded
                   in. None: in as many.
    """

    rows_ms: FloatArray
    expert_ms: FloatArray
    layer_weights: FloatArray
    level_ms: FloatArray
    switch_ms: float = 0.0
    settle_ms: float = 0.0
    context_ms: FloatArray | None = None
    use_share: float = 0.0
    resident: Bitsets | None = None
    unions: FloatArray | None = None
    decoded: NDArray[np.int64] | None = None

    @property
    def max_rows(self) -> int:
        return len(self.rows_ms) - 1

    def rows(self, nodes: int) -> int:
        """Rows of the decode that verifies so many nodes, roots included."""
        return nodes if self.decoded is None else int(self.decoded[nodes])

    @property
    def all_rows(self) -> NDArray[np.int64]:
        """int64 [N + 1]: the same of every number of nodes."""
        return np.arange(len(self.rows_ms)) if self.decoded is None else self.decoded

    def padded(self, context: int = 0) -> CycleCost:
        """The same by nodes, where these are tables by rows, for decodes behind so much text; plain
        decoding of one line stays as it is."""
        if self.unions is None:
            return self
        nodes = np.arange(len(self.rows_ms))
        rows_ms = self.rows_ms
        if self.context_ms is not None:
            rows_ms = rows_ms + self.context_ms * context
        ms = rows_ms + np.outer(self.unions, self.expert_ms)  # [nodes, rows]
        ms[nodes[:, None] > nodes] = np.inf
        # The fewest rows that are about the best; a badly measured profile has times below zero.
        best = ms.min(axis=1, keepdims=True)
        decoded = (ms <= best + NEAR * abs(best)).argmax(axis=1)
        decoded[:2] = 0, 1
        if (decoded == nodes).all():
            return self
        return replace(
            self,
            rows_ms=self.rows_ms[decoded],
            expert_ms=self.expert_ms[decoded],
            context_ms=None if self.context_ms is None else self.context_ms[decoded],
            unions=None,
            decoded=decoded,
        )

    @property
    def around_ms(self) -> float:
        """What a single decode of other rows costs more than its own, with the way back."""
        return 2 * self.switch_ms + self.settle_ms

    def extra_ms(self, rows: int, before: Before) -> float:
        """What a decode of so many rows costs more than a steady one."""
        if rows != before.rows:
            return self.switch_ms
        return 0.0 if before.repeated else self.settle_ms

    def draft_ms(self, levels: Levels) -> float:
        """Cost of drafting."""
        last = len(self.level_ms) - 1
        widths = (min(width, last) for level in levels for width in level)
        return float(sum(map(self.level_ms.item, widths)))

    def verify_ms(self, rows: int, weighted_union: float) -> float:
        """Cost of a decode like the one before, in tables that are folded by `at`."""
        return float(self.rows_ms.item(rows) + self.expert_ms.item(rows) * weighted_union)

    def paid(self, sets: Bitsets, alone: FloatArray | None) -> tuple[Bitsets, FloatArray | None]:
        """What is paid for of the experts `sets` [n, layer, word] of some nodes: those that are not
        resident, shared by all who use them, and weighted numbers [n] of each node alone, beside
        those given."""
        if self.resident is None:
            return sets, alone
        missing = sets & ~self.resident
        if self.use_share:
            uses = self.use_share * (sizes(missing) @ self.layer_weights)
            alone = uses if alone is None else alone + uses
        return missing, alone

    def weighted_union(self, sets: Bitsets) -> float:
        """What is paid for of the experts `sets` [n, layer, word] together, in weighted experts."""
        if not len(self.layer_weights):
            return 0.0
        missing, uses = self.paid(sets, None)
        union = float(self.layer_weights @ union_per_layer(missing))
        return union if uses is None else union + float(uses.sum())

    def at(self, context: int, extra_ms: FloatArray | None = None) -> CycleCost:
        """The tables for one cycle, with `context_ms` and what switching costs folded into
        `rows_ms`.

        context: tokens of committed text. extra_ms: float64 [N + 1], what switching adds; None:
        nothing.
        """
        rows_ms = self.rows_ms.copy()
        if self.context_ms is not None:
            rows_ms += self.context_ms * context
        if extra_ms is not None:
            rows_ms += extra_ms
        return replace(self, rows_ms=rows_ms, switch_ms=0.0, settle_ms=0.0, context_ms=None)

    def behind(self, context: int, before: Before) -> CycleCost:
        """The same, for a cycle as it will take."""
        as_before, same_ms = self.all_rows == before.rows, self.extra_ms(before.rows, before)
        return self.at(context, np.where(as_before, same_ms, self.switch_ms))


# A decode is padded to no more rows than bring its time this near to the least, as a share.
NEAR = 0.05
# Unions that are nearer to each other, in experts, tell nothing of what an expert costs.
LEAST_APART = 0.1


def cost_from_points(
    points: Sequence[CostPoint],
    *,
    top_k: int,
    layer_weights: FloatArray,
    level_ms: FloatArray,
    max_rows: int,
    switch_ms: float = 0.0,
    settle_ms: float = 0.0,
    context_ms: FloatArray | None = None,
    default_expert_ms: FloatArray | None = None,
) -> CycleCost:
    """Cost tables through measured points.

    A row count with two points of different union gives both table entries; with one, the price of
    an expert is `default_expert_ms` [max_rows + 1] (ms per unit of weighted union; 0 if None).
    Between measured row counts the tables are linear. Beyond the last they go on as through the
    last two, except that more rows of the same union never get cheaper and no price negative.

    Raises ValueError without a measurement of one row, or if a time is not positive.
    """
    weight = float(layer_weights.sum())
    counts = sorted({point.rows for point in points})
    if not counts or counts[0] != 1:
        raise ValueError("a cost profile needs a measurement of one row")
    if not all(0 < point.ms < np.inf and 0 <= point.union < np.inf for point in points):
        raise ValueError("a cost profile's times must be positive, its unions not negative")
    prices: list[float] = []  # of one unit of weighted union
    floors: list[float] = []  # cost of that many rows that use top_k experts together
    for rows in counts:
        here = sorted((p for p in points if p.rows == rows), key=lambda p: p.union)
        low, high = here[0], here[-1]
        ms, spread = low.ms, (high.union - low.union) * weight
        if high.union - low.union < LEAST_APART:
            ms, spread = (low.ms + high.ms) / 2, 0.0
        if spread > 0 and high.ms < low.ms:  # by noise: experts cost nothing
            ms, price = (low.ms + high.ms) / 2, 0.0
        elif spread > 0:
            price = (high.ms - low.ms) / spread
        elif default_expert_ms is not None:
            price = float(default_expert_ms[min(rows, max_rows)])
        else:
            price = 0.0
        beyond = (low.union - top_k) * weight
        if beyond > 0:  # experts cost no more than everything measured
            price = min(price, ms / (low.union * weight))
        prices.append(price)
        floors.append(ms - price * beyond)
    if len(counts) > 1 and len([p for p in points if p.rows == 1]) == 1:
        # One row always uses top_k experts, so their price cannot be told apart: take the next one.
        prices[0] = prices[1]
    floor_ms = _table(counts, floors, max_rows, least_slope=0.0)
    expert_ms = np.maximum(_table(counts, prices, max_rows, least_slope=-np.inf), 0.0)
    rows_ms = floor_ms - expert_ms * top_k * weight
    widest = [max(point.union for point in points if point.rows == rows) for rows in counts]
    return CycleCost(
        rows_ms,
        expert_ms,
        layer_weights,
        level_ms,
        switch_ms,
        settle_ms,
        context_ms,
        unions=np.interp(np.arange(max_rows + 1), counts, widest) * weight,
    )


def _table(
    counts: list[int], values: list[float], max_rows: int, *, least_slope: float
) -> FloatArray:
    """float64 [max_rows + 1]: `values` at `counts`, linear between, extrapolated beyond."""
    table = np.interp(np.arange(max_rows + 1), counts, values)
    if len(counts) > 1 and max_rows > counts[-1]:
        slope = max(least_slope, (values[-1] - values[-2]) / (counts[-1] - counts[-2]))
        beyond = np.arange(counts[-1] + 1, max_rows + 1)
        table[beyond] = values[-1] + slope * (beyond - counts[-1])
    return table
