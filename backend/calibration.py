"""Measures what a cycle costs here, in seconds.

Cycles are timed as the engine runs them, drafting and planning left out: a tree is decoded, walked
and committed, its features are taken. For every row count there is a tree of one token repeated,
whose union of experts is narrow, and one of different tokens, whose union is wide: about a text's,
since they are tokens that texts are made of. llama.cpp rebuilds its graph when the row count
changes, and a GPU records it with the second equal decode: so only the last times of a visit to a
shape are its own, and by how much the first and the second one exceed them, as plain cycles and
single drafts take turns, is `switch_ms` and `settle_ms`. Where a single draft is best padded it is
so here, too: a graph whose experts are copied to the GPU is another than one of two rows. The head
is timed between decodes, where it finds the caches as in a cycle.

Beside other programs a decode can take a thousand times as long, since all threads wait for the
slowest after every operation. So after some time only what is indispensable is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from specfit.planner import CostPoint, FloatArray, Overheads

from .cached_cost import hit_cycles, paid_points
from .context import TREE_LIMIT, Context
from .errors import SpecfitError
from .expert_cache import MAX_ROWS
from .head import Head
from .held import HeldExperts
from .madeup import DEAR_MS, STEADY, Cycles, Shape, typical
from .model import Progress

# A CPU's attention has a cliff at 64 rows, which are cheaper than 50 behind much text.
ROW_COUNTS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 31, 32, 48, TREE_LIMIT - 1, TREE_LIMIT)
# After so many seconds no further shape is visited but INDISPENSABLE ones, and the rest is measured
# once. The tables are linear between row counts, so some tell more than others.
ENOUGH_S, TELLING = 30.0, (1, 2, 4, 8, 16, 32, TREE_LIMIT)
INDISPENSABLE: tuple[Shape, ...] = ((1, False), (2, False), (4, False))
# A shape is visited until it has had this much time, but never more or less often than this; one
# that is beyond reason already, once.
SHAPE_MS, VISITS, BEYOND_MS = 100.0, (2, 6), 1000.0
# Text before the measured cycles: an empty cache would flatter the attention.
PREFIX = 128
# What more text costs is measured at these row counts, behind so many tokens, if those of the
# prefix show that they can be processed within a second.
CONTEXT_ROWS, LONG_TEXT = (1, 4, 16, 31, TREE_LIMIT - 1, TREE_LIMIT), 5 * PREFIX
# Plain cycles and single drafts take turns so often, and no more often than within this time.
SWITCHES, SWITCHES_MS = (4, 24), 1500.0
LEVEL_WIDTHS, LEVEL_ROUNDS, BRANCHING = (1, 2, 4, 8), 10, 8
LOOKS = 5


@dataclass(frozen=True)
class Measured:
    """points: steady cycles, drafting left out, behind no text. level_ms: drafting a level, by the
    nodes expanded; entry 0: the root's children, after two committed tokens. switch_ms, settle_ms:
    what the first and the second decode of another number of rows take more. context_ms: what a
    token of text before it adds to a cycle of CONTEXT_ROWS rows; empty if not measured. observe_ms:
    what observing adds to a decode of 4 rows, 0 for a dense model; unsettled_ms: to those after it.
    features_ms: what handing out the head's features adds to one row. position_ms: the head's
    catching up on a position. cached: with a cache of experts; unions are then of what is paid for,
    a use counting use_share of an expert."""

    points: list[CostPoint]
    level_ms: list[float]
    switch_ms: float
    settle_ms: float
    context_ms: list[float]
    observe_ms: float
    features_ms: float
    position_ms: float
    unsettled_ms: float
    cached: bool = False
    use_share: float = 0.0

    @property
    def overheads(self) -> Overheads:
        return Overheads(self.observe_ms, self.features_ms, self.position_ms, self.unsettled_ms)

    def union_by_rows(self, max_rows: int) -> FloatArray:
        """float64 [max_rows + 1]: mean union per layer that different tokens showed."""
        widest: dict[int, float] = {}
        for point in sorted(self.points, key=lambda point: point.rows):
            widest[point.rows] = max(point.union, widest.get(point.rows, 0.0))
        return np.interp(np.arange(max_rows + 1), list(widest), list(widest.values()))

    def context_by_rows(self, max_rows: int) -> FloatArray | None:
        """float64 [max_rows + 1]: `context_ms` at every number of rows."""
        if not self.context_ms:
            return None
        return np.interp(np.arange(max_rows + 1), CONTEXT_ROWS, self.context_ms)


def measure(
    context: Context,
    head: Head | None,
    progress: Progress | None = None,
    held: HeldExperts | None = None,
) -> Measured:
    """Measures now. The context must be empty and is empty afterwards.

    held: the cache of experts, still empty; it holds some afterwards. Raises SpecfitError if
    `progress` cancels.
    """

    def done(fraction: float) -> None:
        if progress is not None and not progress(fraction):
            raise SpecfitError("measuring this machine was cancelled")

    begun = time.perf_counter()

    def enough() -> bool:
        return time.perf_counter() - begun > ENOUGH_S

    text = context.model.made_up(np.random.default_rng(1), PREFIX)
    text = text[: max(1, context.ctx - 4 * STEADY)]
    context.tap(0, wanted=True)
    try:
        token_s = _prefill_s(context, text.tolist())
        context_ms = _context_ms(context, token_s, enough) if held is None else []
        done(0.1)
        cycles = Cycles.behind(context)
        steady = _visit_all(cycles, enough, lambda fraction: done(0.1 + 0.6 * fraction))
        draft = _single_draft(steady, padded=held is None)
        switching_ms = _switching_ms(
            cycles, draft, enough, lambda fraction: done(0.7 + 0.1 * fraction)
        )
        level_ms, position_ms = ([0.0], 0.0) if head is None else _head_ms(cycles, head, enough)
        done(0.9)
        observe_ms, unsettled_ms = _observe_ms(cycles, enough)
        features_ms = _features_ms(cycles, enough)
        unions = {shape: cycles.union(shape) for shape in steady}
        hits = {}
        if held is not None:  # not before, since then it is empty no more
            both = [n for n in ROW_COUNTS if n <= MAX_ROWS and (n == 1 or (n, True) in steady)]
            hits = {n: hit_cycles(cycles, held, n) for n in both if (n, False) in steady}
            context_ms = _context_ms(context, token_s, enough, held)
        done(1.0)
    finally:
        context.truncate(0)
        context.tap(0, wanted=False)
    slopes = np.interp(ROW_COUNTS, CONTEXT_ROWS, context_ms or [0.0] * len(CONTEXT_ROWS))
    due = dict(zip(ROW_COUNTS, slopes * len(text), strict=True))

    def point(rows: int, union: float, ms: float) -> CostPoint:
        # However noisy the slope is, most of a cycle is not due to so little text.
        return CostPoint(rows, union, max(ms - due[rows], ms / 2))

    points = [point(s[0], unions[s], typical(times)) for s, times in steady.items()]
    points.sort(key=lambda point: (point.rows, point.union))
    measured = Measured(
        points,
        level_ms,
        *switching_ms,
        context_ms,
        observe_ms,
        features_ms,
        position_ms,
        unsettled_ms,
    )
    if held is None:
        return measured
    hit = [(point(n, 0.0, typical(times)), missing) for n, (times, missing) in hits.items()]
    points, use_share = paid_points(points, hit, context.model.info.n_experts_used)
    return replace(measured, points=points, cached=True, use_share=use_share)


def _visit_all(
    cycles: Cycles, enough: Callable[[], bool], done: Callable[[float], None]
) -> dict[Shape, list[float]]:
    """Steady times of the shapes, which take turns; of all, if that is soon enough."""
    kinds = (False, True) if cycles.context.model.info.n_experts else (False,)
    rest = [rows for rows in ROW_COUNTS if rows not in TELLING]
    # In this order every shape follows one of another number of rows.
    order = [(rows, alike) for counts in (TELLING, rest) for alike in kinds for rows in counts]
    shapes = [shape for shape in order if shape != (1, True)]
    steady: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    spent = dict.fromkeys(shapes, 0.0)
    for visit in range(VISITS[1]):
        for at, shape in enumerate(shapes):
            done((visit + at / len(shapes)) / VISITS[1])
            if enough() and (visit or shape not in INDISPENSABLE):
                continue
            if spent[shape] < SHAPE_MS or (visit < VISITS[0] and spent[shape] < BEYOND_MS):
                times = cycles.visit(shape)
                last = times[-2:] if len(times) > 2 else times[1:]
                steady[shape] += last
                spent[shape] += times[0] + sum(last)
    return {shape: times for shape, times in steady.items() if times}


def _single_draft(steady: dict[Shape, list[float]], *, padded: bool) -> Shape:
    """What a single draft is decoded as; padded if that may be, and takes less."""
    alike = [shape for shape in steady if padded and shape[1] and shape[0] > 2]
    return min([(2, False), *alike], key=lambda shape: typical(steady[shape]))


def _switching_ms(
    cycles: Cycles, draft: Shape, enough: Callable[[], bool], done: Callable[[float], None]
) -> tuple[float, float]:
    """By how much the first and the second cycle exceed the later ones, where plain cycles and
    single drafts take turns: the mean of both. Medians, or noise would look like a price."""
    excess: dict[Shape, list[tuple[float, float]]] = {draft: [], (1, False): []}
    began = time.perf_counter()
    for turn in range(SWITCHES[1]):
        for shape, seen in excess.items():
            first, second, *later = cycles.visit(shape)
            usual = sum(later[-2:]) / 2
            seen.append((first - usual, second - usual))
        done((turn + 1) / SWITCHES[1])
        long = turn + 1 >= SWITCHES[0] and (time.perf_counter() - began) * 1e3 > SWITCHES_MS
        if long or enough():
            break
    there, back = (np.median(seen, axis=0) for seen in excess.values())
    switch_ms, settle_ms = np.maximum((there + back) / 2, 0.0).tolist()
    return switch_ms, settle_ms


def _prefill_s(context: Context, text: list[int]) -> float:
    """Seconds that a token of text took, which is in the context then."""
    start = time.perf_counter()
    context.decode_prompt(text)
    return (time.perf_counter() - start) / len(text)


def _context_ms(
    context: Context,
    token_s: float,
    enough: Callable[[], bool],
    held: HeldExperts | None = None,
) -> list[float]:
    """What a token of text more than there is adds to a cycle of CONTEXT_ROWS rows; empty where
    much text takes long to process, or there is no time left."""
    n_text = context.n_past[0]
    n_more = LONG_TEXT - n_text
    if token_s * n_more > 1 or not has_room(context):
        return []
    more = context.model.made_up(np.random.default_rng(2), n_more)
    context.decode_prompt(more.tolist())
    behind_much = _context_times(context, enough, held)
    context.truncate(n_text)
    behind_this = _context_times(context, enough, held)
    if enough():
        return []
    return [float(slope) for slope in np.maximum((behind_much - behind_this) / n_more, 0.0)]


def has_room(context: Context) -> bool:
    """Whether cycles can be measured behind LONG_TEXT."""
    return context.ctx >= LONG_TEXT + 2 * (1 + STEADY)


def _context_times(
    context: Context, enough: Callable[[], bool], held: HeldExperts | None
) -> FloatArray:
    """float64: typical cycles of CONTEXT_ROWS rows, nan if there is no time; with a cache of
    experts, of such as it holds, since what missing ones take varies by more than the text."""
    cycles = Cycles.behind(context)
    times: dict[int, list[float]] = {rows: [] for rows in CONTEXT_ROWS}
    for _ in range(VISITS[0]):
        for rows in CONTEXT_ROWS:
            if enough():
                return np.full(len(CONTEXT_ROWS), np.nan)
            if held is not None and rows <= MAX_ROWS:
                times[rows] += hit_cycles(cycles, held, rows)[0]
            else:
                times[rows] += cycles.visit((rows, False))[-2:]
    return np.array([typical(spent) for spent in times.values()])


def _head_ms(cycles: Cycles, head: Head, enough: Callable[[], bool]) -> tuple[list[float], float]:
    """Typical times of the first level and of expanding 1, 2, … nodes, each after a decode; and of
    catching up on a position of much text."""
    context, spent = cycles.context, {width: [0.0] * 0 for width in (0, *LEVEL_WIDTHS)}
    n_features = len(head.taps) * context.model.n_embd
    features = np.zeros((cycles.n_text, n_features), np.float32)
    few = features[:2]  # as many as a cycle may commit, where the context has room for two
    catching_up: list[float] = []
    for _ in range(3):
        head.truncate(0)
        start = time.perf_counter()
        head.commit(features, [0] * len(features))
        head.synchronize()
        catching_up.append((time.perf_counter() - start) * 1e3 / len(features))
    tree = cycles.tree((4, False))
    rounds = LEVEL_ROUNDS if cycles.timed(tree) < DEAR_MS else LEVEL_ROUNDS // 2
    for _ in range(rounds):
        for width in LEVEL_WIDTHS:
            if spent[1] and enough():
                break
            cycles.timed(tree)
            context.truncate(cycles.n_text)
            start = time.perf_counter()
            head.commit(few, [0] * len(few))
            head.begin_tree()
            tokens, _ = head.propose(BRANCHING)
            begun = time.perf_counter()
            slots, level, _ = head.expand([0] * width, np.resize(tokens, width), 1, BRANCHING)
            head.expand(slots, level[:, 0], 2, BRANCHING)
            spent[0].append((begun - start) * 1e3)
            spent[width].append((time.perf_counter() - begun) * 1e3 / 2)
    head.truncate(0)
    usual = {width: typical(times) for width, times in spent.items() if times}
    widths = range(LEVEL_WIDTHS[-1] + 1)
    levels = np.interp(widths, list(usual), list(usual.values()))
    return [float(ms) for ms in levels], min(catching_up)


def _observe_ms(cycles: Cycles, enough: Callable[[], bool]) -> tuple[float, float]:
    """What an armed decode of 4 rows takes more than a steady one, and the two behind it: a graph
    that is looked into is taken to pieces, and a GPU records it anew."""
    observer, shape = cycles.context.observer, (4, False)
    if observer is None:
        return 0.0, 0.0
    cycles.visit(shape)
    looks: list[list[float]] = []  # armed, behind it, and steady
    while not looks or (len(looks) < LOOKS and not enough()):
        observer.arm()
        looks.append([])
        for _ in range(4):
            looks[-1].append(cycles.timed(cycles.tree(shape)))
            observer.disarm()
            cycles.context.truncate(cycles.n_text)
    armed, first, second, steady = np.median(looks, axis=0).tolist()
    return max(0.0, armed - steady), max(0.0, first + second - 2 * steady)


def _features_ms(cycles: Cycles, enough: Callable[[], bool]) -> float:
    """What one row takes more where features are handed out (interleaved)."""
    context = cycles.context
    if not context.taps:
        return 0.0
    spent: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(VISITS[1]):
        for wanted in (False, True):
            context.tap(0, wanted=wanted)
            spent[wanted] += cycles.visit((1, False))[-2:]
        if enough():
            break
    usual = typical(spent[False])
    # Beside another program noise can be any number of small cycles.
    return min(max(0.0, typical(spent[True]) - usual), usual)
