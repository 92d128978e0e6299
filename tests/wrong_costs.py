"""Replays a trace on a machine that is not as it was measured: python tests/wrong_costs.py TRACE.

Prints what `specfit` makes of plain decoding there, for every shipped profile of a machine without
a cache of experts, and how many of its cycles drafted. The first texts are taken, as many as asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from test_lab import speed

from specfit.backend.profiles import load_profile
from specfit.backend.trace_file import read_trace
from specfit.planner import DRAFTERS, CycleCost
from specfit.planner.lab import MAX_ROWS, Lab

PROFILES = ("cpu-experts", "gpu", "half-layers", "streamed")
# The share of a plain cycle by which plain ones were measured too dear, and drafted ones too cheap.
OFF_BY = 0.3


def right(cost: CycleCost) -> CycleCost:
    return cost


def plain_too_dear(cost: CycleCost) -> CycleCost:
    return _dearer(cost, slice(0, 2), -OFF_BY)


def drafts_too_cheap(cost: CycleCost) -> CycleCost:
    return _dearer(cost, slice(2, None), OFF_BY)


def rows_too_cheap(cost: CycleCost) -> CycleCost:
    factors = np.where(np.arange(len(cost.rows_ms)) > 1, 1.5, 1.0)
    return replace(cost, rows_ms=cost.rows_ms * factors, expert_ms=cost.expert_ms * factors)


def _dearer(cost: CycleCost, rows: slice, share: float) -> CycleCost:
    rows_ms = cost.rows_ms.copy()
    rows_ms[rows] += share * plain_ms(cost)
    return replace(cost, rows_ms=rows_ms)


def plain_ms(cost: CycleCost) -> float:
    return cost.verify_ms(1, 8 * float(cost.layer_weights.sum()))


def main(path: Path, texts: int = 90) -> None:
    lab = Lab(read_trace(path))
    lab.texts = lab.texts[:texts]
    mistakes: list[Callable[[CycleCost], CycleCost]]
    mistakes = [right, plain_too_dear, drafts_too_cheap, rows_too_cheap]
    for profile in PROFILES:
        believed = load_profile(profile, lab.layer_weights, MAX_ROWS)
        for mistake in mistakes:
            real = mistake(believed)
            if real.rows_ms[1] <= 0:  # its experts are most of a plain cycle there
                continue
            cycles = lab.take("specfit", believed, lambda _, real=real: real, drafters=DRAFTERS)
            ratio = speed(cycles) / speed(lab.take("off", real))
            drafted = np.mean([cycle.drafted for cycle in cycles])
            print(f"{profile:<12} {mistake.__name__:<17} {ratio:.3f} of off, {drafted:.0%} drafted")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
