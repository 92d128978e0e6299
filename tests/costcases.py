"""Costs as they were measured, for tests."""

from __future__ import annotations

import numpy as np

from specfit.planner import CostPoint, FloatArray, union_per_layer
from specfit.planner.forecast import ExpertForecast

# A few rows of a machine that computes experts on the CPU, streams them from 32 rows on.
MEASURED = [
    CostPoint(1, 8, 22.3),
    CostPoint(2, 8, 28.9),
    CostPoint(2, 12.1, 32.4),
    CostPoint(8, 8, 67.3),
    CostPoint(8, 25.7, 85.3),
    CostPoint(31, 8, 120.0),
    CostPoint(31, 45.0, 187.0),
    CostPoint(32, 8, 131.0),
    CostPoint(32, 45.0, 711.0),
]


def foreseen_union(forecast: ExpertForecast, keep: np.ndarray, layer_weights: FloatArray) -> float:
    """Weighted union of the nodes of keep [n], where no experts are cached."""
    union = union_per_layer(forecast.sets[keep])
    return float(layer_weights @ union + forecast.unforeseen[keep].sum())
