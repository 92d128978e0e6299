"""What decodes cost with a cache of experts: measured with none and with all of those in it that
they use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from specfit.planner import CostPoint, FloatArray
from specfit.planner.cost import LEAST_APART

from .expert_cache import MAX_ROWS
from .held import HeldExperts
from .madeup import STEADY, Cycles

# A use of a missing expert costs no more than so many missing experts.
MOST_USE_SHARE = 2.0


def hit_cycles(cycles: Cycles, held: HeldExperts, rows: int) -> tuple[list[float], FloatArray]:
    """Times of a few cycles alike, so many of one token repeated that the cache holds all experts
    of; and what was missing in the last one."""
    tree, times, missing = cycles.tree((rows, True)), [], np.zeros((1, 2))
    for _ in range(2):  # a hit is computed otherwise, so that a row may choose anew
        held.skip()
        cycles.timed(tree)
        cycles.context.truncate(cycles.n_text)
        held.hold_used()
    for _ in range(STEADY):
        held.skip()
        times.append(cycles.timed(tree))
        cycles.context.truncate(cycles.n_text)
        missing = held.counted().missing
    return times[-2:], missing


def paid_points(
    points: Sequence[CostPoint], hits: Sequence[tuple[CostPoint, FloatArray]], top_k: int
) -> tuple[list[CostPoint], float]:
    """What was measured, in experts that are paid for, and the price of a use of one.

    points: with an empty cache, by the union of experts. hits: with a full one; and what was
    missing all the same, float64 [layer, 2], experts and uses of them.
    """
    wide = {p.rows: max((o for o in points if o.rows == p.rows), key=_union) for p in points}
    narrow = {p.rows: min((o for o in points if o.rows == p.rows), key=_union) for p in points}
    shares = []
    for hit, _ in hits:
        low, high = narrow[hit.rows], wide[hit.rows]
        price = (high.ms - low.ms) / max(high.union - low.union, LEAST_APART)
        if hit.rows > 1 and price > 0:
            shares.append(((low.ms - hit.ms) / price - low.union) / (hit.rows * top_k))
    use_share = min(max(median(shares), 0.0), MOST_USE_SHARE) if shares else 1.0
    paid = [
        CostPoint(p.rows, p.union + use_share * p.rows * top_k, p.ms)
        for p in wide.values()
        if p.rows <= MAX_ROWS
    ]
    paid += [
        replace(hit, union=float(missing.mean(axis=0) @ (1.0, use_share))) for hit, missing in hits
    ]
    # More rows take llama.cpp's ordinary path, whatever lies in the cache.
    return [*paid, *(replace(p, union=0.0) for p in wide.values() if p.rows > MAX_ROWS)], use_share


def _union(point: CostPoint) -> float:
    return point.union
