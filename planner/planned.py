"""The planning modes: `specfit`, `specfit:ratio`, and `count`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .beliefs import Beliefs
from .cost import CycleCost
from .drafting import DraftingRule
from .forecast import ExpertForecast
from .livecost import LiveCost
from .policies import FIRST_PLANNING_MS, LOOK_EVERY, NOTHING, Choice, Outcome, followed
from .search import Plan, best_subtree
from .tree import DraftTree, FloatArray, IntArray

# A node that is committed once in a hundred cycles pays for no row on any machine we measured.
LEAST_CHANCE = 0.01
BRANCHING = 8
# Planning may take this share of a cycle; a state of the search takes about STATE_MS (LOG.md).
PLANNING_SHARE = 0.01
STATE_MS = 0.02
DEEPEST = 16
# Observing experts may take this share of the time, and so much at first.
LOOKING_SHARE = 0.005
FIRST_LOOKS_MS = 30.0
CERTAIN: FloatArray = np.ones(1)


@dataclass(frozen=True)
class _Expected:
    """What is expected of the nodes of a tree, and what its plans cost then.

    chances: float64 [n]. forecast: None where only the number of rows counts. cost: of this cycle,
    folded so that a plan's weighted union by the forecast gives its time.
    """

    tree: DraftTree
    chances: FloatArray
    forecast: ExpertForecast | None
    cost: CycleCost


class Planned:
    """Keeps the subtree with the best predicted throughput, and drafts only while that can improve.

    beliefs: what was learned. live: the machine to plan for. by_count: plan by the number of rows
    alone, as EVICT does (arXiv 2605.00342). ratio: maximise E/T of the cycle, as the SpecFit paper
    does (arXiv 2610.15417); else E - rate * T at the long-run rate.
    """

    least_chance = LEAST_CHANCE

    def __init__(
        self,
        beliefs: Beliefs,
        live: LiveCost,
        max_rows: int,
        *,
        by_count: bool = False,
        ratio: bool = False,
        observe_ms: float = 0.0,
    ) -> None:
        self.beliefs = beliefs
        self.live = live
        self.max_rows = min(max_rows, live.now.max_rows)
        self._forecast = None if by_count else beliefs.forecast
        self.ratio = ratio
        self.planning_ms = FIRST_PLANNING_MS
        self._observe_ms = observe_ms
        self._rows_before = 1
        self._context = 0
        self._root_union = float(beliefs.expected_unions[1])
        self.rule = DraftingRule(live, self._root_union, self.max_rows)
        self._widths: tuple[int, ...] = ()
        self._newest: tuple[_Expected, Plan] | None = None
        # Of the levels of this cycle: predicted gain, and the value of the best plan before.
        self._hopes: list[tuple[float, float]] = []
        self._unseen = LOOK_EVERY
        self._time_ms = self._looking_ms = 0.0

    @property
    def may_draft(self) -> bool:
        return self.rule.may_draft(self.planning_ms)

    def begin(self, context: int, root: int) -> bool:
        self._context = context
        self._widths = ()
        self._newest = None
        self._hopes.clear()
        if not self.rule.may_draft(self.planning_ms):
            return False
        # A chain of one draft that brings no experts.
        hoped = float(self.beliefs.outlook.best_child(np.array([root]), CERTAIN)[0])
        plain_ms = self.live.verify_ms(1, self._root_union, context, self._rows_before)
        draft_ms = self.live.verify_ms(2, self._root_union, context, self._rows_before)
        draft_ms += self.live.now.draft_ms((0,)) + self.planning_ms
        plain = self._worth(1.0, plain_ms)
        gain = self._worth(1.0 + hoped, draft_ms) - plain
        self._hopes.append((gain, plain))
        return self.rule.begins(gain)

    def expand(self, tree: DraftTree, room: int) -> tuple[IntArray, int]:
        depth = int(tree.depths[-1])
        if depth == 0:
            self._widths = (0,)
            return np.zeros(1, np.int32), BRANCHING
        conditional = self.beliefs.acceptance.conditional(tree)
        self.beliefs.outlook.learn(tree, conditional)
        now = self._expected(tree, conditional)
        plan = self._best(now, self._widths)
        self._newest = (now, plan)
        if depth >= min(room, DEEPEST):
            return NOTHING, 0
        # One more level: each node gets the child to expect, whose experts are all there already.
        frontier = np.flatnonzero(tree.depths == depth).astype(np.int32)
        hoped = self.beliefs.outlook.best_child(tree.tokens[frontier], conditional[frontier])
        wider = self._best(_with_hopes(now, frontier, hoped), (*self._widths, len(frontier)))
        nodes = frontier[wider.keep[len(tree) :]]
        value = self._value(plan)
        gain = self._value(wider) - value
        if not len(nodes) or not self.rule.goes_on(gain):
            return NOTHING, 0
        self._hopes.append((gain, value))
        self._widths = (*self._widths, len(nodes))
        return nodes, BRANCHING

    def choose(self, tree: DraftTree) -> Choice:
        if self._newest is None or self._newest[0].tree is not tree:
            expected = self._expected(tree, self.beliefs.acceptance.conditional(tree))
            self._newest = (expected, self._best(expected, self._widths))
        expected, plan = self._newest
        value = self._value(plan)
        for level, (predicted, before) in enumerate(self._hopes):
            self.rule.learn_gain(level, predicted, value - before)
        chances = expected.chances[plan.keep]
        if expected.forecast is None:
            union = float(self.beliefs.expected_unions[len(chances)])
            return Choice(plan.keep, chances, union, proven=plan.proven)
        kept = expected.forecast.only(plan.keep)
        return Choice(plan.keep, chances, self._union(kept), kept, plan.proven)

    def looks(self, tree: DraftTree) -> bool:
        self._unseen += 1
        if self._looking_ms + self._observe_ms > LOOKING_SHARE * self._time_ms + FIRST_LOOKS_MS:
            return False
        news = self._forecast is not None and not self._forecast.knows(tree.tokens)
        return news or (len(tree) > 1 and self._unseen > LOOK_EVERY)

    def learn(self, outcome: Outcome) -> None:
        if outcome.experts is not None:
            self._unseen = 0
            self._looking_ms += self._observe_ms
        choice = outcome.choice
        self.beliefs.learn(outcome.tree, outcome.path, choice.forecast, outcome.experts)
        ms = len(outcome.widths) * self.planning_ms + self.live.now.draft_ms(outcome.widths)
        rows = min(outcome.rows, self.live.now.max_rows)
        ms += self.live.verify_ms(rows, choice.union, outcome.context, self._rows_before)
        self.rule.learn(len(outcome.path), ms, outcome.draft_ms + outcome.plan_ms)
        self._time_ms += ms
        self._rows_before = rows
        self.planning_ms = followed(self.planning_ms, outcome)

    def learn_plain(self, context: int) -> None:
        ms = self.live.verify_ms(1, self._root_union, context, self._rows_before)
        self.rule.learn(1, ms, 0.0)
        self._time_ms += ms
        self._rows_before = 1

    def _value(self, plan: Plan) -> float:
        return self._worth(plan.committed, plan.ms)

    def _worth(self, committed: float, ms: float) -> float:
        """A cycle's worth in tokens: for the ratio, those of a plain decode's time."""
        if self.ratio:
            return committed / ms * self.live.verify_ms(1, self._root_union, self._context, 1)
        return committed - self.rule.rate * ms

    def _expected(self, tree: DraftTree, conditional: FloatArray) -> _Expected:
        chances = tree.path_products(conditional)
        forecast = None if self._forecast is None else self._forecast.of(tree)
        return _Expected(tree, chances, forecast, self._folded_cost(forecast))

    def _best(self, expected: _Expected, widths: tuple[int, ...]) -> Plan:
        forecast, cost = expected.forecast, expected.cost
        states = 1 + int(PLANNING_SHARE * float(cost.rows_ms[1]) / STATE_MS)
        return best_subtree(
            expected.tree.parents,
            expected.chances,
            None if forecast is None else forecast.sets,
            None if forecast is None else forecast.unforeseen,
            cost,
            spent_ms=self.live.now.draft_ms(widths) + len(widths) * self.planning_ms,
            rate=None if self.ratio else self.rule.rate,
            max_rows=self.max_rows,
            max_states=states,
        )

    def _folded_cost(self, forecast: ExpertForecast | None) -> CycleCost:
        """The cost tables of this cycle, what is known about unions folded in.

        By count, the mean union of that many rows. With a forecast, its growth over the root's
        experts is scaled to what was observed, while the root's own number is certain.
        """
        cost = self.live.now.at(self._context, self._rows_before)
        if forecast is None:
            unions = self.beliefs.expected_unions[: cost.max_rows + 1]
            rows_ms = cost.rows_ms + cost.expert_ms * unions
            return replace(cost, rows_ms=rows_ms, expert_ms=np.zeros_like(cost.expert_ms))
        known_root = (1 - self._scale) * self._forecast_root(forecast)
        return replace(
            cost,
            rows_ms=cost.rows_ms + cost.expert_ms * known_root,
            expert_ms=cost.expert_ms * self._scale,
        )

    @property
    def _scale(self) -> float:
        return 1.0 if self._forecast is None else self._forecast.scale

    def _forecast_root(self, forecast: ExpertForecast) -> float:
        root = np.zeros(len(forecast.unforeseen), np.bool_)
        root[0] = True
        return forecast.weighted_union(root, self.beliefs.layer_weights)

    def _union(self, kept: ExpertForecast) -> float:
        everyone = np.ones(len(kept.unforeseen), np.bool_)
        root = self._forecast_root(kept)
        grown = kept.weighted_union(everyone, self.beliefs.layer_weights) - root
        return root + self._scale * grown


def _with_hopes(expected: _Expected, frontier: IntArray, hoped: FloatArray) -> _Expected:
    """One more node behind each of the frontier's, with the chance hoped for and no new experts."""
    tree, forecast = expected.tree, expected.forecast
    return replace(
        expected,
        tree=tree.grown(frontier, np.zeros_like(frontier), hoped),
        chances=np.concatenate([expected.chances, expected.chances[frontier] * hoped]),
        forecast=None if forecast is None else forecast.with_likenesses(frontier),
    )
