"""Measures what a cycle costs here, in seconds, and remembers it.

For every row count two decodes are timed: n times the same token in n sequences of their own,
whose union of experts is that of one token, and n different tokens, whose union is wide. llama.cpp
rebuilds its graph when n changes, and a GPU needs a few equal decodes to record one: so every visit
to a shape gives a first time and, repeated, a steady one, and their difference is `switch_ms`. The
result is kept in the user's cache folder under a key of all it depends on.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import llama_cpp
import numpy as np
import platformdirs
import torch

from specfit.models.eagle3 import Eagle3Head
from specfit.planner import CostPoint, FloatArray, pack, union_per_layer

from .context import TREE_LIMIT, Context
from .errors import SpecfitError
from .model import Model, Progress

ROW_COUNTS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 31, 32, 48, TREE_LIMIT)
# A shape is visited until it has had this much time, but never more or less often than this.
SHAPE_MS = 100.0
VISITS = (2, 6)
# Decodes after the first of a visit, of which the last two count; one is enough for a dear shape.
STEADY = 4
DEAR_MS = 60.0
# A stored measurement that is off by more than this factor is taken again.
TOLERANCE = 2.0
FORMAT = 2


Shape = tuple[int, bool]  # rows, and whether they are one token repeated


@dataclass(frozen=True)
class Measured:
    """points: steady decodes. draft_level_ms: one level of the head. switch_ms: what the first
    decode of another number of rows takes more. observe_ms: what observing adds to a decode of 4
    rows, 0 for a dense model."""

    points: list[CostPoint]
    draft_level_ms: float
    switch_ms: float
    observe_ms: float

    def union_by_rows(self, max_rows: int) -> FloatArray:
        """float64 [max_rows + 1]: mean union per layer that different tokens showed."""
        widest: dict[int, float] = {}
        for point in self.points:
            widest[point.rows] = max(point.union, widest.get(point.rows, 0.0))
        return np.interp(np.arange(max_rows + 1), list(widest), list(widest.values()))


def calibrated(
    context: Context, head: Eagle3Head | None, progress: Progress | None = None
) -> Measured:
    """This machine's costs for `context`: from the cache, else measured now (and cached).

    The context must be empty and is empty afterwards. Raises SpecfitError if `progress` cancels.
    """
    path = _cache_path(context, head)
    stored = _stored(path)
    if stored is not None and _still_true(stored, context):
        return stored
    measured = measure(context, head, progress)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(asdict(measured), indent=1), encoding="utf-8")
        scratch.replace(path)
    except OSError:
        pass  # a read-only or full home folder only means measuring again next time
    return measured


def _stored(path: Path) -> Measured | None:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        points = [CostPoint(**point) for point in stored.pop("points")]
        return Measured(points, **stored)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _still_true(stored: Measured, context: Context) -> bool:
    """Whether one row takes about what was stored: a few decodes, against a measurement that was
    taken beside another program, or a machine that has changed since."""
    rng = np.random.default_rng(0)
    now = _typical([_timed(context, (1, False), rng) for _ in range(1 + STEADY)][1:])
    then = next(point.ms for point in stored.points if point.rows == 1)
    return 1 / TOLERANCE < now / then < TOLERANCE


def measure(
    context: Context, head: Eagle3Head | None, progress: Progress | None = None
) -> Measured:
    """Measures now; see `calibrated`."""
    model = context.model
    rng = np.random.default_rng(0)
    # Some text first: an empty cache would flatter the attention.
    prefix = rng.integers(0, model.n_vocab, 128).tolist()
    context.decode_prompt(prefix)
    kinds = (True, False) if model.info.n_experts else (False,)
    # In this order every shape follows one of another number of rows.
    shapes = [(rows, alike) for alike in kinds for rows in ROW_COUNTS]
    first: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    steady: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    for visit in range(VISITS[1]):
        for shape in shapes:
            if visit < VISITS[0] or sum(first[shape]) + sum(steady[shape]) < SHAPE_MS:
                times = _visit(context, shape, rng)
                first[shape].append(times[0])
                steady[shape] += times[-2:] if len(times) > 2 else times[1:]
        if progress is not None and not progress((visit + 1) / VISITS[1]):
            raise SpecfitError("measuring this machine was cancelled")
    points = [
        CostPoint(rows, _union(context, rows, alike, rng), _typical(steady[rows, alike]))
        for rows, alike in shapes
    ]
    switch_ms = median(_typical(first[shape]) - _typical(steady[shape]) for shape in shapes)
    draft_ms = 0.0 if head is None else _draft_level_ms(head, model)
    observe_ms = _observe_ms(context, rng)
    context.truncate(0)
    return Measured(points, draft_ms, max(0.0, switch_ms), observe_ms)


def _typical(times: list[float]) -> float:
    """The lower quartile: another program can only add to a time."""
    return float(np.quantile(times, 0.25))


def _visit(context: Context, shape: Shape, rng: np.random.Generator) -> list[float]:
    """Times of one shape's decodes in a row, the first of them after another number of rows."""
    times = [_timed(context, shape, rng)]
    for _ in range(STEADY if times[0] < DEAR_MS else 1):
        times.append(_timed(context, shape, rng))
    return times


def _timed(context: Context, shape: Shape, rng: np.random.Generator) -> float:
    rows, alike = shape
    tokens = _tokens(context, rows, alike, rng)
    start = time.perf_counter()
    context.measure(tokens, own_sequences=alike)
    return (time.perf_counter() - start) * 1e3


def _tokens(
    context: Context, rows: int, alike: bool, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    tokens = rng.integers(0, context.model.n_vocab, rows, dtype=np.int32)
    return np.full_like(tokens, tokens[0]) if alike else tokens


def _union(context: Context, rows: int, alike: bool, rng: np.random.Generator) -> float:
    """Mean union per layer of the measured shape: observed once, outside the timing."""
    info = context.model.info
    if not info.n_experts:
        return 0.0
    if alike or context.observer is None:
        # Unobserved, different tokens are taken to choose independently.
        share = 1 if alike else rows
        return float(info.n_experts * (1 - (1 - info.n_experts_used / info.n_experts) ** share))
    context.observer.arm()
    context.measure(_tokens(context, rows, False, rng), own_sequences=False)
    context.observer.disarm()
    ids = context.observer.selections(rows)
    if ids is None:
        return float(info.n_experts_used)
    return float(union_per_layer(pack(np.maximum(ids, 0), info.n_experts)).mean())


def _draft_level_ms(head: Eagle3Head, model: Model) -> float:
    """Typical time of one level, over the first (with its commit of two tokens) and two more."""
    features = np.zeros((2, len(head.taps) * model.n_embd), np.float32)
    head.truncate(0)
    spans = []
    for _ in range(12):
        start = time.perf_counter()
        head.commit(features, np.zeros(2, np.int64))
        head.begin_tree()
        tokens, _ = head.propose(8)
        slots, level, _ = head.expand(np.zeros(3, np.int64), tokens[:3], 1, 8)
        head.expand(slots, level[:, 0], 2, 8)
        spans.append((time.perf_counter() - start) * 1e3 / 3)
    head.truncate(0)
    return _typical(spans[2:])


def _observe_ms(context: Context, rng: np.random.Generator) -> float:
    """What an armed decode of 4 rows takes more than an unarmed one (medians, interleaved)."""
    if context.observer is None:
        return 0.0
    spent: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(8):
        for armed in (True, False):
            if armed:
                context.observer.arm()
            spent[armed].append(_timed(context, (4, False), rng))
            context.observer.disarm()
    return max(0.0, _typical(spent[True][1:]) - _typical(spent[False][1:]))


def _cache_path(context: Context, head: Eagle3Head | None) -> Path:
    info = context.model.info
    stat = info.path.stat()
    depends_on = [
        FORMAT,
        platform.node(),
        platform.processor() or platform.machine(),
        llama_cpp.__version__,
        str(info.path.resolve()),
        stat.st_size,
        int(stat.st_mtime),
        context.threads,
        asdict(context.model.placement),
        context.observer is not None,
        head is not None,
        torch.cuda.is_available(),
        ROW_COUNTS,
    ]
    key = hashlib.sha256(json.dumps(depends_on).encode()).hexdigest()[:20]
    return platformdirs.user_cache_path("specfit") / "costs" / f"{key}.json"
