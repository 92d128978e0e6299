"""The speculation modes as policies: when to draft, what to expand, which subtree to verify.

A policy is asked in the order of a cycle: `begin` (is drafting worth it at all?), `expand` after
every level (which nodes to grow further; none: stop), `choose` (which subtree to verify), and
`learn` (what came of it). Policies never touch a model or a clock: times come from cost tables, and
what was measured is told to `learn`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from .beliefs import Beliefs
from .cost import CycleCost
from .drafting import DraftingRule
from .forecast import ExpertForecast
from .livecost import LiveCost
from .search import Plan, best_subtree
from .spec import Spec
from .tree import BoolArray, DraftTree, FloatArray, IntArray

NOTHING: IntArray = np.zeros(0, np.int32)
# A node that is committed once in a hundred cycles pays for no row on any machine we measured.
LEAST_CHANCE = 0.01
BRANCHING = 8
# Planning may take this share of a cycle; a state of the search takes about STATE_MS (LOG.md).
PLANNING_SHARE = 0.01
STATE_MS = 0.3
FIRST_PLANNING_MS = 0.5
DEEPEST = 16


@dataclass(frozen=True)
class Choice:
    """The subtree to verify, and what is expected of it.

    keep: bool [n]. committed: expected tokens. union: weighted union expected, in units of
    `CycleCost.cycle_ms`. forecast: of the kept nodes; None where the mode does not forecast.
    """

    keep: BoolArray
    committed: float
    union: float
    forecast: ExpertForecast | None = None
    proven: bool = True


@dataclass(frozen=True)
class Outcome:
    """A finished cycle.

    widths: nodes expanded for each drafted level, 0 for the root.
    union: weighted union observed, or expected where it was not.
    context: tokens of committed text at its start.
    draft_ms, plan_ms: measured time in the head and in the policy. verify_ms: all the rest of it.
    """

    rows: int
    committed: int
    widths: tuple[int, ...]
    union: float
    context: int
    draft_ms: float
    plan_ms: float
    verify_ms: float


class Policy(Protocol):
    """least_chance: children below it are not even considered. may_draft: whether this policy can
    draft at all here. forecasts: whether it plans by the experts of single nodes. planning_ms: time
    that the policy takes a level, as measured."""

    beliefs: Beliefs
    least_chance: float
    may_draft: bool
    forecasts: bool
    planning_ms: float

    def begin(self, context: int) -> bool:
        """Whether to draft in this cycle, behind `context` tokens of committed text."""

    def expand(self, tree: DraftTree, room: int) -> tuple[IntArray, int]:
        """Nodes of the last level to grow, and into how many children; no nodes: stop drafting.

        room: how deep the tree may still be before the context ends.
        """

    def choose(self, tree: DraftTree) -> Choice:
        """The subtree to verify of a tree with drafts."""

    def learn(self, outcome: Outcome) -> None: ...


class _Baseline:
    """A mode that neither plans nor learns; its expectations serve the report only."""

    least_chance = 0.0
    may_draft = True
    forecasts = False

    def __init__(self, beliefs: Beliefs, max_rows: int) -> None:
        self.beliefs = beliefs
        self.max_rows = max_rows
        self.planning_ms = FIRST_PLANNING_MS

    def begin(self, context: int) -> bool:
        return True

    def learn(self, outcome: Outcome) -> None:
        self.planning_ms = _followed(self.planning_ms, outcome)

    def _expected(self, tree: DraftTree, keep: BoolArray) -> Choice:
        chances = self.beliefs.acceptance.chances(tree)
        union = float(self.beliefs.expected_unions[int(keep.sum())])
        return Choice(keep, float(chances[keep].sum()), union)


class Off(_Baseline):
    """Plain autoregressive decoding."""

    may_draft = False

    def begin(self, context: int) -> bool:
        return False

    def expand(self, tree: DraftTree, room: int) -> tuple[IntArray, int]:
        return NOTHING, 0

    def choose(self, tree: DraftTree) -> Choice:
        return self._expected(tree, np.ones(len(tree), np.bool_))


class Chain(_Baseline):
    """A chain of the head's likeliest tokens, always of the same length."""

    def __init__(self, beliefs: Beliefs, max_rows: int, length: int) -> None:
        super().__init__(beliefs, max_rows)
        self.length = min(length, max_rows - 1)

    def expand(self, tree: DraftTree, room: int) -> tuple[IntArray, int]:
        if len(tree) > min(self.length, room):
            return NOTHING, 0
        return np.array([len(tree) - 1], np.int32), 1

    def choose(self, tree: DraftTree) -> Choice:
        return self._expected(tree, np.ones(len(tree), np.bool_))


class Eagle3(_Baseline):
    """EAGLE-3's own tree (arXiv 2503.01840; the dynamic tree is EAGLE-2's, arXiv 2406.16858).

    Level 1 are the K best children of the root; then `depth` times the K best nodes of the level
    grow K children each; the `total` best nodes by path probability are verified, root included.
    """

    def __init__(
        self, beliefs: Beliefs, max_rows: int, total: int, depth: int, branching: int
    ) -> None:
        super().__init__(beliefs, max_rows)
        self.total = min(total, max_rows)
        self.depth = depth
        self.branching = branching

    def expand(self, tree: DraftTree, room: int) -> tuple[IntArray, int]:
        level = int(tree.depths[-1])
        if level > self.depth or level >= room:
            return NOTHING, 0
        nodes = np.flatnonzero(tree.depths == level)
        scores = tree.path_products(tree.probs)[nodes]
        best = nodes[np.argsort(-scores, kind="stable")[: self.branching]]
        return np.sort(best).astype(np.int32), self.branching

    def choose(self, tree: DraftTree) -> Choice:
        scores = tree.path_products(tree.probs)
        # Stable: of equals the earlier node, so a parent before its children.
        keep = np.zeros(len(tree), np.bool_)
        keep[np.argsort(-scores, kind="stable")[: self.total]] = True
        return self._expected(tree, keep)


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
    ) -> None:
        self.beliefs = beliefs
        self.live = live
        cost = live.now
        self.max_rows = min(max_rows, cost.max_rows)
        self.forecasts = not by_count and beliefs.forecast is not None
        self.ratio = ratio
        root_union = float(beliefs.expected_unions[1])
        plain_ms = cost.at(0).verify_ms(1, root_union)
        self.max_states = 1 + int(PLANNING_SHARE * plain_ms / STATE_MS)
        self.planning_ms = FIRST_PLANNING_MS
        with_planning = replace(cost, level_ms=cost.level_ms + self.planning_ms)
        self.rule = DraftingRule(with_planning, root_union, self.max_rows)
        self.may_draft = self.rule.may_draft
        self._rows_before = 1
        self._context = 0
        self._widths: tuple[int, ...] = ()
        self._newest: tuple[DraftTree, Plan, ExpertForecast | None] | None = None

    def begin(self, context: int) -> bool:
        self._context = context
        self._widths = ()
        return self.rule.begin()

    def expand(self, tree: DraftTree, room: int) -> tuple[IntArray, int]:
        depth = int(tree.depths[-1])
        if depth == 0:
            self._widths = (0,)
            return np.zeros(1, np.int32), BRANCHING
        self.beliefs.acceptance.learn_level(tree)
        chances, forecast = self._expectations(tree)
        now = self._best(tree, chances, forecast, self._widths)
        self._newest = (tree, now, forecast)
        if depth >= min(room, DEEPEST):
            return NOTHING, 0
        # One more level at its most favourable: each node gets a child at the usual chance, whose
        # experts are all there already.
        frontier = np.flatnonzero(tree.depths == depth).astype(np.int32)
        hoped = np.full(len(frontier), self.beliefs.acceptance.next_level(depth + 1))
        wider = self._best(
            tree.grown(frontier, np.zeros_like(frontier), hoped),
            np.concatenate([chances, chances[frontier] * hoped]),
            None if forecast is None else forecast.with_likenesses(frontier),
            (*self._widths, len(frontier)),
        )
        if self._value(wider) <= self._value(now):
            return NOTHING, 0
        nodes = frontier[wider.keep[len(tree) :]]
        self._widths = (*self._widths, len(nodes))
        return nodes, BRANCHING

    def choose(self, tree: DraftTree) -> Choice:
        if self._newest is None or self._newest[0] is not tree:
            chances, forecast = self._expectations(tree)
            plan = self._best(tree, chances, forecast, self._widths)
            self._newest = (tree, plan, forecast)
        _, plan, forecast = self._newest
        self._newest = None
        if len(tree) > 1:
            self.rule.weigh(plan.committed, plan.ms)
        if forecast is None:
            union = float(self.beliefs.expected_unions[int(plan.keep.sum())])
            return Choice(plan.keep, plan.committed, union, proven=plan.proven)
        kept = ExpertForecast(forecast.sets[plan.keep], forecast.unforeseen[plan.keep])
        return Choice(plan.keep, plan.committed, self._union(kept), kept, plan.proven)

    def learn(self, outcome: Outcome) -> None:
        cost = self.live.now
        rows = min(outcome.rows, cost.max_rows)
        ms = cost.at(outcome.context, self._rows_before).verify_ms(rows, outcome.union)
        ms += cost.draft_ms(outcome.widths) + len(outcome.widths) * self.planning_ms
        self.rule.learn(outcome.committed, ms, outcome.draft_ms + outcome.plan_ms)
        self._rows_before = rows
        self.planning_ms = _followed(self.planning_ms, outcome)

    def _value(self, plan: Plan) -> float:
        if self.ratio:
            return plan.committed / plan.ms
        return plan.committed - self.rule.rate * plan.ms

    def _expectations(self, tree: DraftTree) -> tuple[FloatArray, ExpertForecast | None]:
        forecast = self.beliefs.forecast if self.forecasts else None
        chances = self.beliefs.acceptance.chances(tree)
        return chances, None if forecast is None else forecast.of(tree)

    def _best(
        self,
        tree: DraftTree,
        chances: FloatArray,
        forecast: ExpertForecast | None,
        widths: tuple[int, ...],
    ) -> Plan:
        return best_subtree(
            tree.parents,
            chances,
            None if forecast is None else forecast.sets,
            None if forecast is None else forecast.unforeseen,
            self._adjusted_cost(forecast),
            spent_ms=self.live.now.draft_ms(widths) + len(widths) * self.planning_ms,
            rate=None if self.ratio else self.rule.rate,
            max_rows=self.max_rows,
            max_states=self.max_states,
        )

    def _adjusted_cost(self, forecast: ExpertForecast | None) -> CycleCost:
        """The cost tables of this cycle, planning and what is known about unions folded in.

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
        forecast = self.beliefs.forecast
        return 1.0 if forecast is None else forecast.scale

    def _forecast_root(self, forecast: ExpertForecast) -> float:
        root = np.zeros(len(forecast.unforeseen), np.bool_)
        root[0] = True
        return forecast.weighted_union(root, self.beliefs.layer_weights)

    def _union(self, kept: ExpertForecast) -> float:
        everyone = np.ones(len(kept.unforeseen), np.bool_)
        root = self._forecast_root(kept)
        grown = kept.weighted_union(everyone, self.beliefs.layer_weights) - root
        return root + self._scale * grown


def _followed(planning_ms: float, outcome: Outcome) -> float:
    """The running mean of the planning time a level, after one more cycle."""
    if not outcome.widths:
        return planning_ms
    return planning_ms + 0.1 * (outcome.plan_ms / len(outcome.widths) - planning_ms)


def make_policy(spec: Spec, beliefs: Beliefs, live: LiveCost, max_rows: int) -> Policy:
    """The policy that `spec` names, planning for the machine of `live`."""
    match spec.mode:
        case "off":
            return Off(beliefs, max_rows)
        case "chain":
            return Chain(beliefs, max_rows, *spec.numbers)
        case "eagle3":
            return Eagle3(beliefs, max_rows, *spec.numbers)
        case mode:
            return Planned(
                beliefs,
                live,
                max_rows,
                by_count=mode == "count",
                ratio=mode == "specfit:ratio",
            )
