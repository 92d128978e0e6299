"""What planning begins with: costs as they were measured, and what is known of a pair of models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from specfit.models.gguf_info import GgufInfo
from specfit.planner import (
    Acceptance,
    Beliefs,
    CycleCost,
    FloatArray,
    Forecast,
    Outlook,
    UnionByRows,
    best_lines,
    cost_from_points,
)

from .calibration import Measured
from .context import TREE_LIMIT
from .hostmemory import host_memory
from .memory import recall
from .plan import Plan

# Of the rows of a decode, as many may be roots; and of the free memory, so much may be their keys
# and values.
MOST_LINES, KV_SHARE = TREE_LIMIT // 2, 0.5


def own_cost(measured: Measured | None, weights: FloatArray, top_k: int) -> CycleCost:
    """Of this machine. weights: float64 [layer], what experts cost. top_k: experts of a token."""
    if measured is None:  # nothing will be planned
        flat = np.ones(TREE_LIMIT + 1)
        return CycleCost(flat, np.zeros(TREE_LIMIT + 1), weights, np.zeros(1))
    cost = cost_from_points(
        measured.points,
        top_k=0 if measured.cached else top_k,
        layer_weights=weights,
        level_ms=np.array(measured.level_ms),
        switch_ms=measured.switch_ms,
        settle_ms=measured.settle_ms,
        context_ms=measured.context_by_rows(TREE_LIMIT),
        max_rows=TREE_LIMIT,
    )
    # Rows of a cache's missing experts pay for them again, and so would padding.
    unions = None if measured.cached else cost.unions
    return replace(cost, use_share=measured.use_share, unions=unions)


def lines_that_pay(
    measured: Measured | None, weights: FloatArray, info: GgufInfo, ctx: int, plan: Plan
) -> int:
    """As many lines as pay, and as have room for their keys and values."""
    assert measured is not None
    cost = own_cost(measured, weights, info.n_experts_used)
    unions = measured.union_by_rows(TREE_LIMIT) * float(weights.sum())
    free = host_memory().free
    most = plan.lines if plan.gpu else int(KV_SHARE * free / max(1, info.kv_bytes(ctx)))
    return best_lines(cost, unions, min(most, MOST_LINES))


def beliefs_of(
    info: GgufInfo,
    weights: FloatArray,
    measured: Measured | None,
    memory: Path | None,
    missing: float,
) -> Beliefs:
    """What is known of the pair from earlier runs, or what is believed of any."""
    beliefs = _first_beliefs(info, weights, measured, missing)
    if memory is None or recall(beliefs, memory):
        return beliefs
    return _first_beliefs(info, weights, measured, missing)


def _first_beliefs(
    info: GgufInfo, weights: FloatArray, measured: Measured | None, missing: float
) -> Beliefs:
    """missing: of the uses of experts, those that a cache does not hold; 1 without one."""
    forecast = None
    unions = np.full(TREE_LIMIT + 1, float(info.n_experts_used))
    if info.n_experts and measured is not None:
        unions = measured.union_by_rows(TREE_LIMIT) * missing
        forecast = Forecast(info.n_layers, info.n_experts, info.n_experts_used, weights)
    return Beliefs(Acceptance(), Outlook(), forecast, UnionByRows(unions), weights)
