"""The speculation modes as policies: when to draft, what to expand, which subtree to verify.

A policy is asked in the order of a cycle: `begin` (is drafting worth it at all?), `expand` after
every level (which nodes to grow further; none: stop), `choose` (which subtree to verify), `looks`
(should its experts be observed?), and `learn` (what came of it). Policies never touch a model or a
clock: times come from cost tables, and what was measured is told to `learn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from .beliefs import Beliefs
from .cost import Before, Levels
from .experts import Bitsets
from .forecast import ExpertForecast
from .livecost import LiveCost
from .reason import Reason
from .tree import BoolArray, DraftTree, FloatArray, IntArray, best_nodes

NOTHING: IntArray = np.zeros(0, np.int32)
FIRST_PLANNING_MS, LONGEST = 0.3, 4.0
# Drafted cycles between two looks at the experts when nothing new is expected of them.
LOOK_EVERY = 16


@dataclass(frozen=True)
class Choice:
    """The subtree to verify, and what is expected of it.

    keep: bool [n]. chances: float64 [kept], of being committed. union: weighted union expected.
    forecast: of the kept nodes; None where the mode does not forecast. padding: further rows to
    decode, copies of a root.
    """

    keep: BoolArray
    chances: FloatArray
    union: float
    forecast: ExpertForecast | None = None
    padding: int = 0

    @property
    def committed(self) -> float:
        """Tokens expected to be committed."""
        return float(self.chances.sum())


@dataclass(frozen=True)
class Outcome:
    """A finished cycle of several lines, or of one in which something was drafted.

    tree:    what was verified; path: the accepted nodes, the roots included.
    choice:  what the policy chose, of which `tree` is the kept part.
    levels:  that were drafted.
    context: tokens of committed text at its start, the mean of the lines.
    experts: uint64 [n, layer, word], what the nodes used; None if that was not observed.
    paid_union: what a cache of experts counted, as `CycleCost.weighted_union`; None without one.
    looked_up: whether lookups found candidates, and were planned with.
    draft_ms, plan_ms: measured time in the head and in the policy. verify_ms: all the rest of it.
    catch_up_ms: of the head, beside draft_ms, on text that was decoded without drafts.
    """

    tree: DraftTree
    path: list[int]
    choice: Choice
    levels: Levels
    context: int
    experts: Bitsets | None
    draft_ms: float
    plan_ms: float
    verify_ms: float
    catch_up_ms: float = 0.0
    paid_union: float | None = None
    looked_up: bool = False

    @property
    def rows(self) -> int:
        """That were decoded."""
        return len(self.tree) + self.choice.padding

    @property
    def planned(self) -> int:
        """How often something was planned: after every level, and with lookups."""
        return len(self.levels) + self.looked_up


class Policy(Protocol):
    """least_chance: children below it are not even considered. looks_up: its trees take what
    lookups find beside the head's drafts, or without a head."""

    beliefs: Beliefs
    least_chance: float
    looks_up: bool

    @property
    def planning_ms(self) -> float:
        """Time that the policy takes a level in this cycle, as measured before."""

    def tracks(self, prompt: int, missing_ms: float, lines: int = 1) -> bool:
        """Whether drafts may be wanted in an answer to so many tokens, so that the head's features
        are to be kept.

        missing_ms: what it takes to process text anew of which they were not. lines: answers at a
        time, this one among them.
        """

    def behind(self, before: Before) -> None:
        """A cycle begins, and this was the last decode, whoever's."""

    @property
    def reads_states(self) -> bool:
        """Whether the trees of this cycle should carry the head's states."""

    @property
    def finds(self) -> bool:
        """Whether anything that a lookup finds could pay; asked in every cycle of those that look
        up."""

    def hopes(self, prob: float) -> bool:
        """Whether it may pay to verify a token that a lookup found behind a root and gives `prob`,
        with all that it finds behind it; asked before `takes`."""

    def takes(self, context: int, found: DraftTree) -> bool:
        """Whether to verify anything of what lookups found, behind so many committed tokens, if the
        head drafts nothing. What was found is part of this cycle's tree then; asked before `begin`.
        """

    def begin(self, context: int, roots: Sequence[int], waiting: int = 0) -> bool:
        """Whether the head is to draft behind the tokens `roots`, one a line, before which
        `context` tokens are committed, in the mean of the lines.

        waiting: positions that the heads would first have to catch up on.
        """

    def expand(self, tree: DraftTree, room: int) -> tuple[IntArray, int]:
        """Nodes of the head's last level to grow, and into how many children; no nodes: stop.

        room: how deep the tree may still be before a context ends.
        """

    def choose(self, tree: DraftTree) -> Choice:
        """The subtree to verify; of roots alone all, where nothing was drafted."""

    def looks(self, tree: DraftTree) -> bool:
        """Whether to observe the experts of this tree's verification."""

    def learn(self, outcome: Outcome) -> None: ...

    def learned(self, ms: float) -> None:
        """What learning took from a cycle whose experts were observed."""

    def learn_plain(self, context: int, paid_union: float | None = None) -> None:
        """Learns from a cycle of one line that drafted nothing, quicker than by `learn`."""

    def learn_found(self, found: Sequence[tuple[int, float]], token: int, spent_ms: float) -> None:
        """Learns from a plain cycle, whose token this is, what came of those that a lookup found
        behind its root with their probabilities.

        spent_ms: on a plan that took none of them; 0 where none was made.
        """

    def passed(self, rows: int) -> None:
        """A cycle of so many rows has ended; part of learning from it, and all of it where no more
        is to be learned."""

    def reason(self, *, begun: bool) -> Reason:
        """Why the cycle just finished drafted as it did.

        begun: whether `begin` was asked in it; else the policy could not draft at all.
        """


class Baseline:
    """A mode that does not plan; what it learns serves its expectations, which are reported."""

    least_chance = 0.0
    reads_states = False
    looks_up = finds = False

    def __init__(self, beliefs: Beliefs, max_rows: int) -> None:
        self.beliefs = beliefs
        self.max_rows = max_rows
        self.planning_ms = FIRST_PLANNING_MS
        self._unseen = LOOK_EVERY  # drafted cycles since the last look; the first is looked at

    def tracks(self, prompt: int, missing_ms: float, lines: int = 1) -> bool:
        return True

    def behind(self, before: Before) -> None:
        pass

    def begin(self, context: int, roots: Sequence[int], waiting: int = 0) -> bool:
        return True

    def hopes(self, prob: float) -> bool:
        return True

    def takes(self, context: int, found: DraftTree) -> bool:
        return True

    def learn_found(self, found: Sequence[tuple[int, float]], token: int, spent_ms: float) -> None:
        pass

    def looks(self, tree: DraftTree) -> bool:
        self._unseen += 1
        return self._unseen > LOOK_EVERY

    def learn(self, outcome: Outcome) -> None:
        if outcome.experts is not None:
            self._unseen = 0
        forecast, experts = outcome.choice.forecast, outcome.experts
        self.beliefs.learn(
            outcome.tree, outcome.path, forecast, experts, paid_union=outcome.paid_union
        )
        self.planning_ms = followed(self.planning_ms, outcome.plan_ms, outcome.planned)

    def learned(self, ms: float) -> None:
        pass

    def learn_plain(self, context: int, paid_union: float | None = None) -> None:
        self.beliefs.learn_paid(1, paid_union)

    def passed(self, rows: int) -> None:
        pass

    def reason(self, *, begun: bool) -> Reason:
        return Reason("mode")

    def _expected(self, tree: DraftTree, keep: BoolArray) -> Choice:
        chances = self.beliefs.acceptance.chances(tree)
        union = self.beliefs.expected_union(int(np.count_nonzero(keep)))
        return Choice(keep, chances[keep], union)


class Off(Baseline):
    """Plain autoregressive decoding. live: the machine that decodes of several lines are padded
    for."""

    def __init__(self, beliefs: Beliefs, max_rows: int, live: LiveCost) -> None:
        super().__init__(beliefs, max_rows)
        self._live = live

    def tracks(self, prompt: int, missing_ms: float, lines: int = 1) -> bool:
        return False

    def begin(self, context: int, roots: Sequence[int], waiting: int = 0) -> bool:
        return False

    def expand(self, tree: DraftTree, room: int) -> tuple[IntArray, int]:
        return NOTHING, 0

    def choose(self, tree: DraftTree) -> Choice:
        plain = self._expected(tree, np.ones(len(tree), np.bool_))
        return replace(plain, padding=self._live.padding(len(tree)))

    def learn(self, outcome: Outcome) -> None:
        super().learn(outcome)
        self._live.turn_to(outcome.context)


class Chain(Baseline):
    """A chain of the head's likeliest tokens behind every line, always of the same length."""

    def __init__(self, beliefs: Beliefs, max_rows: int, length: int) -> None:
        super().__init__(beliefs, max_rows)
        self.length = min(length, max_rows - 1)

    def expand(self, tree: DraftTree, room: int) -> tuple[IntArray, int]:
        depth = int(tree.depths[-1])
        if depth >= min(self.length, self.max_rows // tree.n_lines - 1, room):
            return NOTHING, 0
        return np.flatnonzero(tree.depths == depth).astype(np.int32), 1

    def choose(self, tree: DraftTree) -> Choice:
        return self._expected(tree, np.ones(len(tree), np.bool_))


class Eagle3(Baseline):
    """EAGLE-3's own tree (arXiv 2503.01840; the dynamic tree is EAGLE-2's, arXiv 2406.16858).

    Level 1 are the K best children of the root; then `depth` times the K best nodes of the level
    grow K children each; the `total` best nodes by path probability are verified, root included.
    Several lines have such a tree each, as far as there are rows: no level has more nodes than
    could be verified.
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
        of_level, most = tree.depths == level, max(1, self.max_rows // tree.n_lines - 1)
        nodes = np.flatnonzero(_best_by_line(tree, of_level, min(self.branching, most)))
        return nodes.astype(np.int32), self.branching

    def choose(self, tree: DraftTree) -> Choice:
        total = min(self.total, self.max_rows // tree.n_lines)
        return self._expected(tree, _best_by_line(tree, np.ones(len(tree), np.bool_), total))


def _best_by_line(tree: DraftTree, eligible: BoolArray, n: int) -> BoolArray:
    """bool: of the eligible nodes the n of each line with the highest path probability."""
    scores, keep = tree.path_probs, np.zeros(len(tree), np.bool_)
    for line in range(tree.n_lines):
        nodes = np.flatnonzero(eligible & (tree.lines == line))
        keep[nodes] = best_nodes(scores[nodes], n)
    return keep


def widths_of(tree: DraftTree, nodes: IntArray) -> tuple[int, ...]:
    """How many of `nodes` each line has that has any; 0 for a root."""
    if not len(nodes) or not tree.depths[nodes[0]]:
        return (0,) * len(nodes)
    if tree.n_lines == 1:
        return (len(nodes),)
    return tuple(np.unique(tree.lines[nodes], return_counts=True)[1].tolist())


def followed(planning_ms: float, spent_ms: float, steps: int = 1) -> float:
    """The running mean of the time that a step of planning takes, after so many more.

    A process that was suspended in a plan says nothing of plans, so none counts for more than
    LONGEST of them.
    """
    if not steps:
        return planning_ms
    return planning_ms + 0.1 * (min(spent_ms / steps, LONGEST * planning_ms) - planning_ms)
