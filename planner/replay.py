"""What any mode would have made of a recorded text, under any machine's costs.

A trace holds the whole candidate tree behind every token, so a mode can be taken through the text
cycle by cycle: it drafts and plans on what the head proposed, its plan is paid for with the experts
that were really used, its drafts are accepted as far as they are the text that the target wrote.
A planner learns what it would have learned: the experts of what it verified, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .cost import CycleCost
from .experts import union_per_layer
from .livecost import LiveCost
from .policies import Outcome, Policy
from .trace import TracedStep, TracedText
from .tree import DraftTree, IntArray

# What planning takes a level, a forecast of experts in addition, and observing experts a layer
# (LOG.md), in ms.
PLANNING_MS = 0.3
FORECAST_MS = 0.5
OBSERVE_MS = 0.03


@dataclass(frozen=True)
class ReplayedCycle:
    """predicted_*: what was expected of it. union: weighted, as really used."""

    rows: int
    levels: int
    committed: int
    union: float
    ms: float
    predicted_committed: float
    predicted_union: float
    predicted_ms: float
    observed: bool


class Candidates:
    """The part of a step's candidate tree that a policy has asked for."""

    def __init__(self, step: TracedStep) -> None:
        self.step = step
        self.members: IntArray = np.zeros(1, np.int32)  # of the step's tree
        self.tree = DraftTree.of_root(int(step.tree.tokens[0]))

    def grow(
        self, nodes: IntArray, branching: int, least_chance: float, reads_states: bool
    ) -> bool:
        """Adds the best `branching` children of `nodes`; False if there are none."""
        full, parents, members = self.step.tree, [], []
        chances = self.tree.path_products(self.tree.probs)
        for node in nodes.tolist():
            first, last = np.searchsorted(full.parents, self.members[node] + np.arange(2))
            last = min(int(last), int(first) + branching)
            for child in range(int(first), last):
                if chances[node] * full.probs[child] >= least_chance:
                    parents.append(node)
                    members.append(child)
        if not members:
            return False
        new = np.array(members, np.int32)
        states = None
        if reads_states:
            rows = np.searchsorted(self.step.expanded, self.members[np.unique(parents)])
            states = self.step.hidden[rows].astype(np.float32)
        self.members = np.concatenate([self.members, new])
        self.tree = self.tree.grown(np.array(parents), full.tokens[new], full.probs[new], states)
        return True


def replay(
    texts: Sequence[TracedText],
    policy: Policy,
    live: LiveCost,
    true_cost: Callable[[int], CycleCost],
) -> list[ReplayedCycle]:
    """Takes `policy` through all steps of `texts`.

    live: the costs that the policy plans by. true_cost: what cycle number i really costs.
    """
    cycles: list[ReplayedCycle] = []
    rows_before = 1
    for text in texts:
        at = 0
        while at < len(text.steps):
            cost = true_cost(len(cycles)).at(text.steps[at].context, rows_before)
            cycle = _cycle(text.steps[at:], policy, live, cost, rows_before)
            cycles.append(cycle)
            rows_before = cycle.rows
            at += cycle.committed
    return cycles


def _cycle(
    steps: Sequence[TracedStep],
    policy: Policy,
    live: LiveCost,
    cost: CycleCost,
    rows_before: int,
) -> ReplayedCycle:
    step, room = steps[0], len(steps)
    context, weights = step.context, cost.layer_weights
    if not policy.begin(context, int(step.tree.tokens[0])):
        union = float(weights @ union_per_layer(step.experts[:1]))
        ms = cost.verify_ms(1, union)
        predicted = live.verify_ms(1, union, context, rows_before)
        live.learn_verify(1, union, context, rows_before, ms)
        policy.learn_plain(context)
        return ReplayedCycle(1, 0, 1, union, ms, 1.0, union, predicted, False)

    candidates = Candidates(step)
    widths: list[int] = []
    while True:
        nodes, branching = policy.expand(candidates.tree, room)
        if not len(nodes):
            break
        widths.append(len(nodes) if widths else 0)
        if not candidates.grow(nodes, branching, policy.least_chance, policy.reads_states):
            break
    choice = policy.choose(candidates.tree)
    tree = candidates.tree.subtree(choice.keep)
    experts = step.experts[candidates.members[choice.keep]]
    looked = len(weights) > 0 and policy.looks(tree)
    path = accepted_nodes(tree, steps)
    union = float(weights @ union_per_layer(experts))
    planning_ms = len(widths) * PLANNING_MS
    if choice.forecast is not None:
        planning_ms += len(widths) * FORECAST_MS
    observe_ms = OBSERVE_MS * len(weights) if looked else 0.0
    draft_ms, verify_ms = cost.draft_ms(widths), cost.verify_ms(len(tree), union)
    predicted = observe_ms + live.cycle_ms(
        len(tree), choice.union, context, rows_before, widths, policy.planning_ms
    )
    seen = union if looked else choice.union
    live.learn_verify(len(tree), seen, context, rows_before, verify_ms)
    live.learn_draft(tuple(widths), draft_ms)
    policy.learn(
        Outcome(
            tree=tree,
            path=path,
            choice=choice,
            widths=tuple(widths),
            context=context,
            experts=experts if looked else None,
            draft_ms=draft_ms,
            plan_ms=planning_ms,
            verify_ms=verify_ms,
        )
    )
    return ReplayedCycle(
        rows=len(tree),
        levels=len(widths),
        committed=len(path),
        union=union,
        ms=draft_ms + planning_ms + verify_ms + observe_ms,
        predicted_committed=choice.committed,
        predicted_union=choice.union,
        predicted_ms=predicted,
        observed=looked,
    )


def accepted_nodes(tree: DraftTree, steps: Sequence[TracedStep]) -> list[int]:
    """The nodes that are the text which the target wrote, the root first."""
    path = [0]
    while len(path) < len(steps):
        children = np.flatnonzero(tree.parents == path[-1])
        hit = children[tree.tokens[children] == steps[len(path) - 1].next]
        if not len(hit):
            break
        path.append(int(hit[0]))
    return path
