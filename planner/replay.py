"""What any mode would have made of a recorded text, under any machine's costs.

A trace holds the whole candidate tree behind every token, so a mode can be taken through the text
cycle by cycle: it drafts and plans on what the head proposed, its plan is paid for with the experts
that were really used, its drafts are accepted as far as they are the text that the target wrote.
A planner learns what it would have learned: the experts of what it verified, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .cost import PROMPT, Before, CycleCost
from .experts import Bitsets, unpack
from .found import NOTHING_FOUND, found_by
from .livecost import LiveCost
from .lookup import completed
from .ngram import NgramIndex
from .policies import Outcome, Policy, widths_of
from .residency import Residency, Rule, after
from .trace import TracedStep, TracedText
from .tree import DRAFTERS, HEAD, LOOKUP, BoolArray, DraftTree, IntArray, named_by

# What planning takes a level, a forecast of experts in addition, and observing experts a layer
# (LOG.md), in ms.
PLANNING_MS = 0.3
FORECAST_MS = 0.5
OBSERVE_MS = 0.03


@dataclass(frozen=True)
class ReplayedCycle:
    """predicted_*: what was expected of it. union: weighted, as really used; with a cache of
    experts, as paid for.

    padding: rows beside those. looked_up: whether some of what lookups found was verified. used,
    hits: pairs of row and expert, and how many were resident; uploads: experts loaded behind it.
    These of machines with a cache.
    """

    rows: int
    levels: int
    committed: int
    union: float
    ms: float
    predicted_committed: float
    predicted_union: float
    predicted_ms: float
    observed: bool
    padding: int = 0
    looked_up: bool = False
    used: int = 0
    hits: int = 0
    uploads: int = 0

    @property
    def drafted(self) -> bool:
        return self.levels > 0 or self.looked_up


@dataclass(frozen=True)
class Cache:
    """A cache of experts: by which rule, and what lies in it at first."""

    rule: Rule
    begun: Residency

    def behind(
        self, held: Residency, cycle: ReplayedCycle, experts: Bitsets
    ) -> tuple[Residency, ReplayedCycle]:
        """What is resident after the cycle that used `experts` [n, layer, word]; and that cycle
        with what came of the cache. Uploads take the machine's time as the rule says."""
        shape = held.resident.shape
        rows = unpack(experts, shape[1]).sum(axis=0, dtype=np.int64).reshape(shape)
        following, uploads = after(held, rows, self.rule, cycle.committed)
        counted = replace(
            cycle,
            ms=cycle.ms + self.rule.upload_ms * len(uploads),
            used=int(rows.sum()),
            hits=int(rows[held.resident].sum()),
            uploads=len(uploads),
        )
        return following, counted


class Candidates:
    """The parts of the candidate trees of steps, one a line, that a policy has asked for, and what
    lookups add.

    A head knows only what it drafted when the text was recorded: it has nothing behind a token that
    was found by a lookup alone. Such a token is taken to use the experts of the text's own token in
    its place, which it often is.
    """

    def __init__(
        self,
        going: Sequence[Sequence[TracedStep]],
        found: DraftTree | None = None,
        lookups: Sequence[NgramIndex] = (),
        room: int = 0,
    ) -> None:
        """going: what is left of each line."""
        self._going, self._lookups, self._room = going, lookups, room
        self.steps = [steps[0] for steps in going]
        self.tree = found or DraftTree.of_roots([int(step.tree.tokens[0]) for step in self.steps])
        # Of the trees of their lines' steps; -1 for what these do not have.
        self.members = self._found_members()

    def grow(
        self, nodes: IntArray, branching: int, least_chance: float, reads_states: bool
    ) -> bool:
        """Adds the best `branching` children of `nodes`; False if there are none."""
        parents, members = [], []
        chances, lines = self.tree.path_probs, self.tree.lines
        known = set(zip(self.tree.parents.tolist(), self.tree.tokens.tolist(), strict=True))
        for node in nodes.tolist():
            full = self.steps[lines[node]].tree
            if self.members[node] < 0:
                continue
            first, last = np.searchsorted(full.parents, self.members[node] + np.arange(2))
            last = min(int(last), int(first) + branching)
            for child in range(int(first), last):
                is_known = (node, int(full.tokens[child])) in known
                if is_known or chances[node] * full.probs[child] >= least_chance:
                    parents.append(node)
                    members.append(child)
        if not members:
            return False
        new = np.array(members, np.int32)
        trees = [self.steps[line].tree for line in lines[parents]]
        tokens = np.array([tree.tokens[i] for tree, i in zip(trees, members, strict=True)])
        probs = np.array([tree.probs[i] for tree, i in zip(trees, members, strict=True)])
        states = self._states(np.unique(parents)) if reads_states else None
        if self.tree.named is None and not self._lookups:
            self.members = np.concatenate([self.members, new])
            self.tree = self.tree.grown(np.array(parents), tokens, probs, states)
            return True
        n = len(self.tree)
        named = named_by(HEAD, probs)
        self.tree, places = self.tree.joined(parents, tokens.tolist(), named, states)
        if self._lookups:
            fresh = sorted(set(places[n:].tolist()) - set(places[:n].tolist()))
            self.tree, _ = completed(self.tree, self._lookups, self._room, least_chance, fresh)
        self.members = self._found_members()
        return True

    def experts(self, keep: BoolArray) -> Bitsets:
        """uint64 [kept, layer, word]: what the nodes of keep [n] really used."""
        of = (self.tree.lines[keep], self.members[keep], self.tree.depths[keep])
        used = []
        for line, member, depth in zip(*(array.tolist() for array in of), strict=True):
            steps = self._going[line]
            step = steps[0] if member >= 0 else steps[min(depth, len(steps) - 1)]
            used.append(step.experts[max(member, 0)])
        return np.stack(used)

    def _found_members(self) -> IntArray:
        tree, n = self.tree, self.tree.n_lines
        members = np.zeros(len(tree), np.int32)
        if len(tree) == n:
            return members
        known = [
            dict(
                zip(
                    zip(step.tree.parents.tolist(), step.tree.tokens.tolist(), strict=True),
                    range(len(step.tree)),
                    strict=True,
                )
            )
            for step in self.steps
        ]
        for node in range(n, len(tree)):
            above = int(members[tree.parents[node]])
            token = int(tree.tokens[node])
            members[node] = known[tree.lines[node]].get((above, token), -1) if above >= 0 else -1
        return members

    def _states(self, nodes: NDArray[np.integer]) -> NDArray[np.float32]:
        """float32 [m, width]: the head's states of expanded nodes."""
        states = []
        for node in nodes.tolist():
            step = self.steps[self.tree.lines[node]]
            states.append(step.hidden[np.searchsorted(step.expanded, self.members[node])])
        return np.stack(states).astype(np.float32)


def replay(
    texts: Sequence[TracedText],
    policy: Policy,
    live: LiveCost,
    true_cost: Callable[[int], CycleCost],
    lines: int = 1,
    cache: Cache | None = None,
    drafters: Sequence[str] = DRAFTERS[:1],
) -> list[ReplayedCycle]:
    """Takes `policy` through all steps of `texts`, of so many at a time while there are.

    live: the costs that the policy plans by. true_cost: what cycle number i really costs. cache:
    of experts, which then cost what they do when they are missing there. drafters: those there are.
    No draft knows where a text ends: each has room for the longest of them, as for a -n.
    """
    held = None if cache is None else cache.begun
    cycles: list[ReplayedCycle] = []
    before = Before(PROMPT)
    waiting = [text for text in reversed(texts) if text.steps]
    longest = max((len(text.steps) for text in texts), default=0)
    going: list[Sequence[TracedStep]] = []  # what is left of each line
    rooms: list[int] = []  # tokens that each line may still have
    indices: list[NgramIndex] = []  # of what is behind it
    while going or waiting:
        while waiting and len(going) < lines:
            text, before = waiting.pop(), Before(PROMPT)
            going.append(text.steps)
            rooms.append(longest)
            indices.append(NgramIndex())
            indices[-1].extend(text.prompt.tolist())
        policy.behind(before)
        cost = true_cost(len(cycles)).behind(_context(going), before)
        if held is not None:
            live.resident = held.sets
            cost = replace(cost, resident=live.resident)
        lookups = indices if DRAFTERS[LOOKUP] in drafters else []
        has_head = DRAFTERS[HEAD] in drafters
        room = min(rooms)
        cycle, taken, experts = _cycle(going, room, policy, live, cost, before, lookups, has_head)
        if cache is not None and held is not None:
            held, cycle = cache.behind(held, cycle, experts)
        cycles.append(cycle)
        before = before.then(cycle.rows + cycle.padding)
        for steps, n, index in zip(going, taken, indices, strict=True):
            index.extend([int(step.tree.tokens[0]) for step in steps[:n]])
        left = [steps[n:] for steps, n in zip(going, taken, strict=True)]
        indices = [index for index, steps in zip(indices, left, strict=True) if steps]
        rooms = [room - n for room, n, steps in zip(rooms, taken, left, strict=True) if steps]
        going = [steps for steps in left if steps]
    return cycles


def _context(going: Sequence[Sequence[TracedStep]]) -> int:
    """Tokens of committed text, the mean of the lines."""
    return sum(steps[0].context for steps in going) // len(going)


def _cycle(
    going: Sequence[Sequence[TracedStep]],
    room: int,
    policy: Policy,
    live: LiveCost,
    cost: CycleCost,
    before: Before,
    lookups: Sequence[NgramIndex] = (),
    has_head: bool = True,
) -> tuple[ReplayedCycle, list[int], Bitsets]:
    """A cycle, how many steps each line gets on by it, and the experts it used [n, layer, word]."""
    context, weights = _context(going), cost.layer_weights
    roots = [int(steps[0].tree.tokens[0]) for steps in going]
    found = NOTHING_FOUND
    if lookups:
        found = found_by(lambda: lookups, roots, policy, room, context, has_head=has_head)
    used = lookups if policy.looks_up else ()
    candidates = Candidates(going, found.tree, used, room)
    drafting = has_head and policy.begin(context, roots)
    if len(going) == 1 and not drafting and not found.taken:
        experts = going[0][0].experts[:1]
        union = cost.weighted_union(experts)
        ms = cost.verify_ms(1, union)
        predicted = live.verify_ms(1, union, context, before)
        live.learn_verify(1, union, context, before, ms)
        policy.learn_plain(context, None if cost.resident is None else union)
        if found.first:
            spent_ms = 0.0 if found.tree is None else PLANNING_MS
            policy.learn_found(found.first, going[0][0].next, spent_ms)
            ms += spent_ms
        return ReplayedCycle(1, 0, 1, union, ms, 1.0, union, predicted, False), [1], experts

    levels: list[tuple[int, ...]] = []
    while drafting:
        nodes, branching = policy.expand(candidates.tree, room)
        if not len(nodes):
            break
        levels.append(widths_of(candidates.tree, nodes))
        if not candidates.grow(nodes, branching, policy.least_chance, policy.reads_states):
            break
    choice = policy.choose(candidates.tree)
    tree = candidates.tree.subtree(choice.keep)
    experts = candidates.experts(choice.keep)
    looked = len(weights) > 0 and policy.looks(tree)
    paths = [accepted_nodes(tree, steps, line) for line, steps in enumerate(going)]
    union = cost.weighted_union(experts)
    planned = len(levels) + found.taken
    planning_ms = planned * PLANNING_MS
    if choice.forecast is not None:
        planning_ms += planned * FORECAST_MS
    # A cache of experts knows what was used.
    observe_ms = OBSERVE_MS * len(weights) if looked and cost.resident is None else 0.0
    rows = len(tree) + choice.padding
    draft_ms, verify_ms = cost.draft_ms(levels), cost.verify_ms(rows, union)
    predicted = observe_ms + found.taken * policy.planning_ms
    predicted += live.cycle_ms(rows, choice.union, context, before, levels, policy.planning_ms)
    seen = union if looked or cost.resident is not None else choice.union
    live.learn_verify(rows, seen, context, before, verify_ms)
    live.learn_draft(levels, draft_ms)
    policy.learn(
        Outcome(
            tree=tree,
            path=[node for path in paths for node in path],
            choice=choice,
            levels=levels,
            context=context,
            experts=experts if looked else None,
            draft_ms=draft_ms,
            plan_ms=planning_ms,
            verify_ms=verify_ms,
            paid_union=None if cost.resident is None else union,
            looked_up=found.taken,
        )
    )
    cycle = ReplayedCycle(
        rows=len(tree),
        levels=len(levels),
        committed=sum(map(len, paths)),
        union=union,
        ms=draft_ms + planning_ms + verify_ms + observe_ms,
        predicted_committed=choice.committed,
        predicted_union=choice.union,
        predicted_ms=predicted,
        observed=looked,
        padding=choice.padding,
        looked_up=found.taken,
    )
    return cycle, [len(path) for path in paths], experts


def accepted_nodes(tree: DraftTree, steps: Sequence[TracedStep], root: int = 0) -> list[int]:
    """The nodes behind `root` that are the text which the target wrote, the root first."""
    path = [root]
    while len(path) < len(steps):
        children = np.flatnonzero(tree.parents == path[-1])
        hit = children[tree.tokens[children] == steps[len(path) - 1].next]
        if not len(hit):
            break
        path.append(int(hit[0]))
    return path
