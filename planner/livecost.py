"""The cost tables as they are believed to be at present.

A calibration is seconds of measuring, and a machine changes: another program takes cores, a laptop
throttles, a text uses other experts than random tokens do. So every cycle corrects the tables. What
is tracked are the logarithms of factors,

    T = f[n] * (rows_ms[n] + context_ms[n] * context + x * expert_ms[n] * union)
        + s * (switch_ms or settle_ms)
    T_draft = d_0 * level_ms[0] + d_1 * (level_ms of the further levels)

f at row counts 1, 2, 4 … (linear in log2 n between), x of an expert's price against its row's, s,
d_0 and d_1: the state of an extended Kalman filter that sees log T. That a machine gets slower as a
whole, and that neighbouring row counts cost alike, lies in the state's prior covariance. What was
learned is forgotten towards it (stabilised forgetting: Kulhavy and Zarrop 1993), so that a row
count seldom seen follows the others, and nothing is ever too certain to be corrected.

Single times are wild (page faults, other programs), so one counts up to CLIP standard deviations.
If surprises last in one direction, the machine has changed: the state is opened to follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np

from .cost import PLAINLY, Before, CycleCost, Levels
from .tree import FloatArray

# Standard deviations of the log-factors: common to all, the curve over row counts (correlated over
# so many octaves), and each one's own.
COMMON, CURVE, OCTAVES = 0.3, 0.3, 2.0
EXPERT, SWITCH, DRAFT, LEVEL = 0.4, 0.4, 0.3, 0.2
# Standard deviation of the log of one cycle's time, and what is left of it in a mean of many.
NOISE, LEAST_NOISE = 0.12, 0.02
# Share of the prior covariance that a calibration leaves; share that is forgotten every cycle, and
# while surprises last.
CALIBRATED, FORGET, REOPEN = 0.1, 3e-4, 0.2
# A time counts up to CLIP deviations. Surprises last when their running mean, with this weight of a
# new one, exceeds LASTING deviations.
CLIP, SURPRISE_WEIGHT, LASTING = 2.5, 0.25, 1.2
# Plain cycles are short, so up to so many are learned from at once: by their median, and earlier
# when their excesses over what was predicted add up to ENOUGH predictions.
TOGETHER, AT_LEAST, ENOUGH = 16, 3, 1.5
# Less text makes no difference to how decodes are padded.
SHORT = 256
# Drafted cycles that are learned from at once: once a cycle Python works with cold caches.
CYCLES = 4


class LiveCost:
    """A machine's costs, followed while it runs.

    follows: False keeps to the tables as given, for plans that are made for another machine than
    the one that runs.
    """

    def __init__(self, table: CycleCost, *, follows: bool) -> None:
        self.follows = follows
        # uint64 [layer, word], the experts in the cache in this cycle; set where there is one.
        self.resident = table.resident
        self._table = table
        self._now: CycleCost | None = table.padded()
        self._stretch = 0  # of text that decodes are padded for
        # Single entries of lists are read faster than those of arrays.
        self._rows_ms: list[float] = table.rows_ms.tolist()
        self._expert_ms: list[float] = table.expert_ms.tolist()
        self._level_ms: list[float] = table.level_ms.tolist()
        self._context_ms = [0.0] * len(self._rows_ms)
        if table.context_ms is not None:
            self._context_ms = table.context_ms.tolist()
        # Where rows alone cost less than nothing, experts must not get cheaper.
        self._negative = bool((table.rows_ms[1:] < 0).any())
        # float64 [max_rows + 1, knots]: how much of each knot's factor a row count has.
        octaves = np.log2(np.maximum(np.arange(table.max_rows + 1), 1))
        knots = np.arange(math.ceil(octaves[-1]) + 1)
        self._shares = np.maximum(0.0, 1 - np.abs(octaves[:, None] - knots))
        # The state: the knots, then expert, switch, first and further levels.
        self._state = np.zeros(len(knots) + 4)
        self._prior = _prior(len(knots))
        self._covariance = CALIBRATED * self._prior
        # Drafts that keep surprising say nothing about decodes, which are seen every cycle.
        only_drafts = np.zeros_like(self._prior)
        only_drafts[-2:, -2:] = DRAFT**2 + LEVEL**2 * np.eye(2)
        self._openings = {"verify": self._prior, "draft": only_drafts}
        self._surprise = {"verify": 0.0, "draft": 0.0}
        self._stale = False  # the state has moved on from these
        self._factors = np.ones(len(self._rows_ms))
        self._row_factors: list[float] = self._factors.tolist()
        self._others: list[float] = [1.0] * 4
        self._plain: list[float] = []  # measured / predicted by the first table
        self._plain_at = (0.0, 0)  # union and context of the last one
        self._plain_excess = 0.0
        self._news: list[Callable[[], None]] = []

    @property
    def now(self) -> CycleCost:
        """The tables, corrected by what was measured, by nodes that are verified. Everything else
        here is told the rows that were or will be decoded (`rows`)."""
        if self._stale:
            self._refresh()
        if self._now is None:
            table, factors = self._table, self._factors
            expert, switch, first, further = self._others
            level_ms = table.level_ms * further
            level_ms[0] = table.level_ms[0] * first
            self._now = replace(
                table,
                rows_ms=table.rows_ms * factors,
                expert_ms=table.expert_ms * (factors * expert),
                level_ms=level_ms,
                switch_ms=table.switch_ms * switch,
                settle_ms=table.settle_ms * switch,
                context_ms=None if table.context_ms is None else table.context_ms * factors,
            ).padded(self._stretch)
        return self._now

    def rows(self, nodes: int) -> int:
        """Rows of the decode that verifies so many nodes."""
        return self.now.rows(nodes)

    def padding(self, nodes: int) -> int:
        """Those of them that are no nodes."""
        return self.rows(nodes) - nodes

    def turn_to(self, context: int) -> None:
        """Decodes are behind so much text from now on: about, since it tells only how they are
        padded, and tables are made anew."""
        stretch = 1 << context.bit_length() - 1 if context >= SHORT else 0
        if stretch != self._stretch:
            self._stretch = stretch
            self._now = None

    def verify_ms(
        self, rows: int, union: float, context: int, before: Before | None = None
    ) -> float:
        """`now.behind(context, before).verify_ms(rows, union)`, without making tables; without
        `before` that of a steady decode."""
        return sum(self._parts(rows, union, context, before))

    def cycle_ms(
        self,
        rows: int,
        union: float,
        context: int,
        before: Before,
        levels: Levels,
        planning_ms: float,
    ) -> float:
        """All of a cycle: drafting levels, planning each, and verifying."""
        drafting = self.now.draft_ms(levels) + len(levels) * planning_ms
        return drafting + self.verify_ms(rows, union, context, before)

    def learn_verify(
        self, rows: int, union: float, context: int, before: Before, ms: float
    ) -> None:
        """Learns from a cycle's time outside of the head and the policy.

        union: weighted union of the rows' experts.
        """
        if not self.follows:
            return
        if not rows == before.rows == 1 or self._table.extra_ms(rows, before):
            if len(self._plain) >= AT_LEAST:  # a run of them has ended
                self._learn_plain(*self._plain_at)
            self._put_off(partial(self._learn, rows, union, context, before, ms))
            return
        predicted = sum(self._parts(1, union, context))
        if not (ms > 0 and predicted > 0):
            return
        self._plain_at = (union, context)
        self._plain.append(ms / self._plain_base(union, context))
        self._plain_excess += min(max(ms / predicted - 1, -0.5), 1.0)
        n = len(self._plain)
        if n == TOGETHER or (n >= AT_LEAST and abs(self._plain_excess) >= ENOUGH):
            self._learn_plain(union, context)

    def _learn_plain(self, union: float, context: int) -> None:
        ms = median(self._plain) * self._plain_base(union, context)
        self._learn(1, union, context, PLAINLY, ms, len(self._plain))
        self._forget_plain()

    def _plain_base(self, union: float, context: int) -> float:
        """ms of a plain cycle by the first table."""
        return self._rows_ms[1] + self._context_ms[1] * context + self._expert_ms[1] * union

    def learn_draft(self, levels: Levels, ms: float) -> None:
        """Learns from the time that drafting took."""
        if not self.follows or not levels:
            return
        self._put_off(partial(self._learn_draft, levels, ms))

    def _put_off(self, learn: Callable[[], None]) -> None:
        self._news.append(learn)
        if len(self._news) >= 2 * CYCLES:
            self.settle()

    def settle(self) -> None:
        """Learns from what it was told and has put off."""
        for learn in self._news:
            learn()
        self._news.clear()

    def _learn(
        self, rows: int, union: float, context: int, before: Before, ms: float, n: int = 1
    ) -> None:
        """Learns from the median time of n cycles."""
        parts = self._parts(rows, union, context, before)
        predicted = sum(parts)
        if not (ms > 0 and predicted > 0):
            return
        steady, expert, switch = parts
        slopes = np.zeros(len(self._state))
        slopes[:-4] = self._shares[rows] * ((steady + expert) / predicted)
        slopes[-4] = expert / predicted
        slopes[-3] = switch / predicted
        self._covariance *= 1 - FORGET * n
        self._covariance += (FORGET * n) * self._prior
        self._correct(slopes, math.log(ms / predicted), n, "verify")

    def _learn_draft(self, levels: Levels, ms: float) -> None:
        first, further = map(math.exp, self._state[-2:].tolist())
        last = len(self._level_ms) - 1
        begun = first * len(levels[0]) * self._level_ms[0]
        widths = (width for level in levels[1:] for width in level)
        grown = further * sum(self._level_ms[min(width, last)] for width in widths)
        predicted = begun + grown
        if not (ms > 0 and predicted > 0):
            return
        slopes = np.zeros(len(self._state))
        slopes[-2:] = begun / predicted, grown / predicted
        self._correct(slopes, math.log(ms / predicted), 1, "draft")

    def _parts(
        self, rows: int, union: float, context: int, before: Before | None = None
    ) -> tuple[float, float, float]:
        """Predicted ms of rows, experts and a switch."""
        if self._stale:
            self._refresh()
        factor = self._row_factors[rows]
        return (
            factor * (self._rows_ms[rows] + self._context_ms[rows] * context),
            factor * self._others[0] * self._expert_ms[rows] * union,
            0.0 if before is None else self._others[1] * self._table.extra_ms(rows, before),
        )

    def _correct(self, slopes: FloatArray, surprise: float, n: int, kind: str) -> None:
        """One step of the filter.

        slopes: of log T, by the state. surprise: log of measured / predicted, the median of n
        cycles. kind: of cost, a key of `_openings`.
        """
        noise = LEAST_NOISE**2 + NOISE**2 / n
        # `dot` takes a third of the time that `@` does on arrays as small as these.
        along = self._covariance.dot(slopes)
        variance = float(slopes.dot(along)) + noise
        deviations = surprise / math.sqrt(variance)
        if n == 1:
            clipped = min(max(deviations, -CLIP), CLIP)
            self._surprise[kind] += SURPRISE_WEIGHT * (clipped - self._surprise[kind])
            changed = abs(self._surprise[kind]) > LASTING
        else:  # a median that far off is no accident
            changed = abs(deviations) > CLIP
        if changed:
            self._forget_plain()
            self._covariance += REOPEN * (self._openings[kind] - self._covariance)
            along = self._covariance.dot(slopes)
            variance = float(slopes.dot(along)) + noise
        limit = CLIP * math.sqrt(variance)
        self._state += along * (min(max(surprise, -limit), limit) / variance)
        if self._negative and self._state[-4] < 0:
            self._state[-4] = 0.0
        self._covariance -= along[:, None].dot((along / variance)[None])
        self._stale = True

    def _forget_plain(self) -> None:
        self._plain.clear()
        self._plain_excess = 0.0

    def _refresh(self) -> None:
        self._factors = np.exp(self._shares.dot(self._state[:-4]))
        self._row_factors = self._factors.tolist()
        self._others = np.exp(self._state[-4:]).tolist()
        self._now = None
        self._stale = False


def _prior(n_knots: int) -> FloatArray:
    """float64 [n_knots + 4, n_knots + 4]: covariance of the state of a machine not measured."""
    knots = np.arange(n_knots)
    distances = np.abs(knots[:, None] - knots) / OCTAVES
    covariance = np.zeros((n_knots + 4, n_knots + 4))
    covariance[:n_knots, :n_knots] = CURVE**2 * np.exp(-distances)
    covariance[-2:, -2:] = DRAFT**2
    covariance += np.diag([0.0] * n_knots + [EXPERT**2, SWITCH**2, LEVEL**2, LEVEL**2])
    shared = np.ones(n_knots + 4)
    shared[-4] = 0.0  # an expert's price is told relative to its row's
    return covariance + COMMON**2 * np.outer(shared, shared)
