"""What cycles were to take and took: the costs that every mode follows, and the reports."""

from __future__ import annotations

import time
from dataclasses import dataclass

from specfit.planner import (
    DRAFTERS,
    PLAINLY,
    Bitsets,
    Choice,
    CycleCost,
    DraftTree,
    Found,
    LiveCost,
    Outcome,
    Overheads,
    Policy,
    union_per_layer,
)

from .drafter import Draft
from .held import NO_USE, CacheUse
from .report import CycleReport


@dataclass(frozen=True)
class Times:
    """Seconds, by `time.perf_counter`: when a cycle began, had its plan, had verified it, and had
    committed what was accepted."""

    begun: float
    planned: float
    verified: float
    committed: float


@dataclass(frozen=True)
class Verified:
    """What a cycle of drafts, or of several lines, came to.

    tree: what was verified, as chosen; path: the accepted nodes, the roots included. draft: where
    the tree comes from. looked_up: whether some of it was found without a head. waiting: positions
    that the heads first had to catch up on. context: tokens of committed text before it.
    committed: tokens. experts: what the nodes used, None if not seen; observed: it was looked at.
    used: by the cache of experts, None without one.
    """

    tree: DraftTree
    path: list[int]
    choice: Choice
    draft: Draft
    looked_up: bool
    waiting: int
    context: int
    committed: int
    experts: Bitsets | None
    observed: bool
    used: CacheUse | None


class Ledger:
    """costs: of cycles on this machine, as followed in each mode. measured: there is something to
    draft with, and so cycles were calibrated, to predict from. n_used: experts of a token."""

    def __init__(
        self, cost: CycleCost, overheads: Overheads, *, n_used: int, measured: bool
    ) -> None:
        self.cost = cost
        self.overheads = overheads
        self.costs: dict[Policy, LiveCost] = {}
        self._measured = measured
        self.before = PLAINLY  # the last decode
        self._learning_ms = 0.0  # in the last cycle that `enter` was told of
        # A cycle without drafts is always alike: no planner is asked about it.
        self._plain_union = float(n_used)
        self._plain_weighted = n_used * float(cost.layer_weights.sum())

    def decoded(self, rows: int) -> None:
        """Notes a decode of no cycle; rows: as in `Before`."""
        self.before = self.before.then(rows)

    def enter(self, done: Verified, policy: Policy, times: Times) -> CycleReport:
        """Has the costs and the policy learn from a cycle."""
        nodes, beliefs, draft = len(done.tree), policy.beliefs, done.draft
        observe_ms = self.overheads.observe_ms if done.observed else 0.0
        head_ms = draft.head_ms + draft.catch_up_ms
        outcome = Outcome(
            tree=done.tree,
            path=done.path,
            choice=done.choice,
            levels=draft.levels,
            context=done.context,
            experts=done.experts,
            draft_ms=draft.head_ms,
            plan_ms=self._learning_ms + (times.planned - times.begun) * 1e3 - head_ms,
            verify_ms=(times.committed - times.planned) * 1e3 - observe_ms,
            catch_up_ms=draft.catch_up_ms,
            paid_union=self._paid(done.used),
            looked_up=done.looked_up,
        )
        waited_ms = done.waiting * self.overheads.position_ms if draft.levels else 0.0
        predicted_ms = waited_ms + observe_ms + done.looked_up * policy.planning_ms
        predicted_ms += self.costs[policy].cycle_ms(
            outcome.rows,
            done.choice.union,
            done.context,
            self.before,
            draft.levels,
            policy.planning_ms,
        )
        predicted_union = beliefs.per_layer(done.choice.union, nodes)
        union = self._learn(outcome, policy)
        ended = time.perf_counter()
        self._learning_ms = (ended - times.committed) * 1e3
        if done.observed:
            policy.learned(self._learning_ms)
        lines, cached = done.tree.n_lines, done.used or NO_USE
        accepted = done.tree.source[done.path].tolist()
        return CycleReport(
            context=done.context,
            rows=nodes,
            padding=done.choice.padding,
            accepted=len(done.path) - lines,
            committed=done.committed,
            union_per_layer=union,
            union_observed=done.experts is not None or done.used is not None,
            predicted_union=predicted_union,
            draft_ms=head_ms,
            plan_ms=outcome.plan_ms,
            verify_ms=(times.verified - times.planned) * 1e3,
            observe_ms=observe_ms,
            predicted_cycle_ms=predicted_ms,
            measured_cycle_ms=(ended - times.begun) * 1e3,
            predicted_committed=done.choice.committed,
            lines=lines,
            accepted_by=tuple(
                sum(by >> bit & 1 for by in accepted) for bit in range(len(DRAFTERS))
            ),
            hits=cached.hits,
            misses=cached.misses,
            uploaded=cached.uploaded,
        )

    def enter_plain(
        self,
        policy: Policy,
        context: int,
        token: int,
        found: Found,
        used: CacheUse | None,
        times: Times,
    ) -> CycleReport:
        """Has them learn from a root alone, behind which `token` was drawn, quicker than `enter`.

        found: what was looked up and not worth verifying, to learn from.
        """
        union = predicted_union = self._plain_union
        predicted_ms, cached = 0.0, used or NO_USE
        plan_ms = (times.planned - times.begun) * 1e3
        if self._measured:
            cost, paid, before = self.costs[policy], self._paid(used), self.before
            weighted = expected = self._plain_weighted
            if paid is not None:
                weighted, expected = paid, policy.beliefs.expected_union(1)
                union = policy.beliefs.per_layer(weighted, 1)
                predicted_union = policy.beliefs.per_layer(expected, 1)
            predicted_ms = cost.verify_ms(1, expected, context, before)
            ms = (times.committed - times.planned) * 1e3
            cost.learn_verify(1, weighted, context, before, ms)
            policy.learn_plain(context, paid)
            if found.first:
                spent_ms = 0.0 if found.tree is None else plan_ms
                policy.learn_found(found.first, token, spent_ms)
            self.before = before.then(1)
        return CycleReport(
            context=context,
            rows=1,
            accepted=0,
            committed=1,
            union_per_layer=union,
            union_observed=True,
            predicted_union=predicted_union,
            draft_ms=0.0,
            plan_ms=plan_ms,
            verify_ms=(times.verified - times.planned) * 1e3,
            observe_ms=0.0,
            predicted_cycle_ms=predicted_ms,
            measured_cycle_ms=(time.perf_counter() - times.begun) * 1e3,
            predicted_committed=1.0,
            hits=cached.hits,
            misses=cached.misses,
            uploaded=cached.uploaded,
        )

    def _paid(self, used: CacheUse | None) -> float | None:
        """What a decode paid for, in weighted experts; None without a cache."""
        return None if used is None else used.paid(self.cost.layer_weights, self.cost.use_share)

    def _learn(self, outcome: Outcome, policy: Policy) -> float:
        """Returns the cycle's mean union per layer, as expected where it was not observed."""
        nodes, rows, beliefs = len(outcome.tree), outcome.rows, policy.beliefs
        weighted = outcome.choice.union
        union = beliefs.per_layer(weighted, nodes)
        if outcome.paid_union is not None:
            weighted = outcome.paid_union
            union = beliefs.per_layer(weighted, nodes)
        elif outcome.experts is not None:
            per_layer = union_per_layer(outcome.experts)
            weighted = float(per_layer @ beliefs.layer_weights)
            union = weighted / beliefs.weight if beliefs.weight else float(per_layer.mean())
        if self._measured:
            cost = self.costs[policy]
            cost.learn_draft(outcome.levels, outcome.draft_ms)
            cost.learn_verify(rows, weighted, outcome.context, self.before, outcome.verify_ms)
            policy.learn(outcome)
        self.before = self.before.then(rows)
        return union
