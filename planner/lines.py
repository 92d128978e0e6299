"""How many lines of text to decode at once."""

from __future__ import annotations

from .cost import CycleCost
from .tree import FloatArray

# Fewer lines that come so near to the best throughput are preferred: each is answered sooner, and
# memory and rows are left for drafts.
NEAR = 0.97


def best_lines(cost: CycleCost, unions: FloatArray, most: int) -> int:
    """The number of lines, at most `most`, that make about the most tokens per ms without drafts.

    unions: float64 [rows + 1], weighted union of experts to expect of so many lines' roots.
    """
    cost = cost.padded()
    counts = range(1, max(1, min(most, cost.max_rows)) + 1)
    speeds = [n / cost.verify_ms(n, float(unions[n])) for n in counts]
    return next(n for n in counts if speeds[n - 1] >= NEAR * max(speeds))
