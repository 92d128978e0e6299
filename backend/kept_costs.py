"""Remembers what was measured, in the user's cache folder, under a key of all it depends on."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import asdict, astuple
from pathlib import Path

import llama_cpp

from specfit.planner import CostPoint

from .cache import cache_path, identity, replace_if_possible
from .calibration import CONTEXT_ROWS, ROW_COUNTS, Measured, has_room, measure
from .context import Context
from .head import Head
from .held import HeldExperts
from .madeup import Cycles, typical
from .model import Progress

FORMAT = 8
# A plain decode, and drafts: beside another program, those are slowed down the most.
CHECKED, LOOKS = (1, 4), 6
# A decode that has become slower by less is followed while it runs. One that was stored as too slow
# is not, since then nothing may be drafted at all; and other programs can only add to a time, so
# decodes that are faster by more prove it.
SLOWER, FASTER = 3.0, 1.6


def calibrated(
    context: Context,
    head: Head | None,
    progress: Progress | None = None,
    held: HeldExperts | None = None,
) -> Measured:
    """This machine's costs for `context`: from the cache, else measured now (and cached).

    The context must be empty and is empty afterwards. held: the cache of experts, still empty; it
    holds some afterwards. Raises SpecfitError if `progress` cancels.
    """
    path = _cache_path(context, head, held)
    stored = _stored(path)
    if stored is not None and _still_true(stored, context):
        return stored
    measured = measure(context, head, progress, held)
    kept = {"model": str(context.model.info.path.resolve()), **asdict(measured)}
    replace_if_possible(path, json.dumps(kept, indent=1).encode())
    return measured


_UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, AttributeError),
    *(OverflowError, RecursionError),
)


def _stored(path: Path) -> Measured | None:
    """What `path` holds; None if that is no measurement."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored.pop("model", None)  # for those who look for its measurements
        points = [CostPoint(**point) for point in stored.pop("points")]
        measured = Measured(points, **stored)
        numbers = [number for point in points for number in (point.rows, point.union, point.ms)]
        numbers += [*measured.level_ms, *measured.context_ms]
        numbers += [
            measured.switch_ms,
            measured.settle_ms,
            *astuple(measured.overheads),
            measured.use_share,
        ]
        sound = (
            all(math.isfinite(number) and number >= 0 for number in numbers)
            and all(point.ms > 0 for point in points)
            and {point.rows for point in points} >= set(CHECKED)
            and len(measured.level_ms) > 0
            and len(measured.context_ms) in (0, len(CONTEXT_ROWS))
        )
    except _UNREADABLE:
        return None
    return measured if sound else None


def _still_true(stored: Measured, context: Context) -> bool:
    """Whether decodes of a few row counts take about what was stored."""
    cycles = Cycles.behind(context)  # whose cache of experts, if it has one, is still empty
    return all(_still_takes(stored, cycles, rows) for rows in CHECKED)


def _still_takes(stored: Measured, cycles: Cycles, rows: int) -> bool:
    # Weights that were not read from the disk yet make the first decodes many times as slow.
    then = max(point.ms for point in stored.points if point.rows == rows)
    for _ in range(LOOKS):
        now = typical(cycles.visit((rows, False))[1:])
        if now < then * SLOWER:
            return now > then / FASTER
    return False


def _cache_path(context: Context, head: Head | None, held: HeldExperts | None) -> Path:
    info = context.model.info
    depends_on = [
        FORMAT,
        platform.node(),
        platform.processor() or platform.machine(),
        llama_cpp.__version__,
        *identity(info.path),
        context.threads,
        has_room(context),
        asdict(context.model.placement),
        asdict(context.model.runtime),
        context.observer is not None,
        None if head is None else [type(head).__name__, head.n_bytes],
        ROW_COUNTS,
        held is not None,
    ]
    return cache_path("costs", depends_on, ".json")
