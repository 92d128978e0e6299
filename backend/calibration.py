"""Measures what a cycle costs here, in seconds, and remembers it.

For every row count two decodes are timed: n times the same token in n sequences of their own,
whose union of experts is that of one token, and n different tokens, whose union is wide. Row counts
are alternated, since llama.cpp rebuilds its graph when n changes, as it does between cycles of
different size. The result is kept in the user's cache folder under a key of all it depends on.
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

ROW_COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 31, 32, 48, 60, TREE_LIMIT)
# Repeat until a point has had this much time, but never fewer or more often than this.
POINT_MS = 60.0
REPEATS = (3, 12)
FORMAT = 1


@dataclass(frozen=True)
class Measured:
    """points: decodes. draft_level_ms: one level of the head. observe_ms: what observing adds to a
    decode of 4 rows; none of it for a dense model."""

    points: list[CostPoint]
    draft_level_ms: float
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
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        points = [CostPoint(**point) for point in stored.pop("points")]
        return Measured(points, **stored)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        measured = measure(context, head, progress)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(asdict(measured), indent=1), encoding="utf-8")
        scratch.replace(path)
    except OSError:
        pass  # a read-only or full home folder only means measuring again next time
    return measured


def measure(
    context: Context, head: Eagle3Head | None, progress: Progress | None = None
) -> Measured:
    model = context.model
    rng = np.random.default_rng(0)
    # Some text first: an empty cache would flatter the attention.
    prefix = rng.integers(0, model.n_vocab, 128).tolist()
    context.decode_prompt(prefix)
    shapes = [(rows, alike) for rows in ROW_COUNTS for alike in (True, False)]
    if not model.info.n_experts:
        shapes = [(rows, False) for rows in ROW_COUNTS]
    times: dict[tuple[int, bool], list[float]] = {shape: [] for shape in shapes}
    for turn in range(REPEATS[1]):
        for shape in shapes:
            spent = times[shape]
            if turn < REPEATS[0] or sum(spent) < POINT_MS:
                spent.append(_timed(context, shape, rng, warm=turn > 0))
        if progress is not None and not progress((turn + 1) / REPEATS[1]):
            raise SpecfitError("measuring this machine was cancelled")
    points = [
        CostPoint(rows, _union(context, rows, alike, rng), median(times[rows, alike]))
        for rows, alike in shapes
    ]
    draft_ms = 0.0 if head is None else _draft_level_ms(head, model)
    observe_ms = _observe_ms(context, rng)
    context.truncate(0)
    return Measured(points, draft_ms, observe_ms)


def _timed(
    context: Context, shape: tuple[int, bool], rng: np.random.Generator, *, warm: bool
) -> float:
    rows, alike = shape
    tokens = _tokens(context, rows, alike, rng)
    if not warm:
        context.measure(tokens, own_sequences=alike)
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
    """Median time of one level, over the first (with its commit of two tokens) and two more."""
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
    return median(spans[2:])


def _observe_ms(context: Context, rng: np.random.Generator) -> float:
    """What an armed decode of 4 rows takes more than an unarmed one (medians, interleaved)."""
    if context.observer is None:
        return 0.0
    spent: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(8):
        for armed in (True, False):
            if armed:
                context.observer.arm()
            spent[armed].append(_timed(context, (4, False), rng, warm=turn > 0))
            context.observer.disarm()
    return max(0.0, median(spent[True]) - median(spent[False]))


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
