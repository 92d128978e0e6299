"""Grows draft trees with the EAGLE-3 head, level by level, as far as the policy wants: those of
several lines side by side, each by a head of its own with the same weights.

The head's KV cache holds pairs (feature of token i, token i + 1) of committed text. It catches up
lazily: features of committed tokens are kept here, and its forward over them runs when drafting
resumes, so that the first token of an answer does not wait for the head, and plain decoding pays a
copy a token. Only where more than PENDING positions wait does the head take them before that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specfit.planner import (
    HEAD,
    DraftTree,
    FloatArray,
    IntArray,
    Levels,
    NgramIndex,
    Policy,
    completed,
    named_by,
    widths_of,
)

from .context import BATCH, Features
from .head import Head

# Positions whose features may wait for the head: 50 MB at most for a model of width 2048, of which
# a system gives only what is written to.
PENDING = 4 * BATCH
# Positions that a drafted cycle may commit: catching up on these is part of its first level.
OF_A_CYCLE = 16


@dataclass(frozen=True)
class Draft:
    """tree: all candidates, before planning. head_ms: time in the head, planning excluded, and so
    is catch_up_ms, that of text which was decoded without drafts."""

    tree: DraftTree
    head_ms: float = 0.0
    levels: Levels = ()
    catch_up_ms: float = 0.0


class Drafter:
    """The head of one line, and the features that it is still to be given.

    pending: positions whose features may wait.
    """

    def __init__(self, head: Head, pending: int | None = None) -> None:
        self.head = head
        self._features = np.empty((pending or PENDING, head.n_features), np.float32)
        self._n_pending = 0

    @property
    def waiting(self) -> int:
        """Positions to catch up on, if they are more than a drafted cycle leaves."""
        return self._n_pending if self._n_pending > OF_A_CYCLE else 0

    @property
    def n_known(self) -> int:
        """Positions, from the first on, whose features the head has or can still be given."""
        return self.head.n_pairs + self._n_pending

    def remember(self, features: Features, text: Sequence[int] = ()) -> None:
        """Copies the features [m, taps, n_embd] of the next m committed tokens.

        text: the committed text up to them. Without it the head cannot catch up, and all are kept.
        """
        size = self._n_pending + len(features)
        if size > len(self._features):
            if len(text) > self.n_known:
                self.catch_up(text)
                size = len(features)
            self._reserve(size)
        self._features[self._n_pending : size] = features.reshape(len(features), -1)
        self._n_pending = size

    def truncate(self, n: int) -> None:
        """Forgets positions from `n` on."""
        self.head.truncate(n)
        self._n_pending = max(0, min(self._n_pending, n - self.head.n_pairs))

    def adopt(self, other: Drafter, n: int) -> None:
        """Takes over what `other` knows of the first n positions; n is at most its n_known."""
        pairs = min(n, other.head.n_pairs)
        self.head.adopt(other.head, pairs)
        self._n_pending = 0
        self._reserve(n - pairs)
        self._n_pending = n - pairs
        self._features[: n - pairs] = other._features[: n - pairs]

    def kept(self, text: Sequence[int]) -> NDArray[np.uint8]:
        """What `restore` needs to know the committed `text` again, but for its last token."""
        self.truncate(min(self.n_known, len(text) - 1))
        self.catch_up(text)
        return self.head.kept()

    def restore(self, kept: NDArray[np.uint8]) -> None:
        """Knows the text again that was `kept`."""
        self._n_pending = 0
        self.head.restore(kept)

    def catch_up(self, text: Sequence[int]) -> None:
        """Gives the head all that it lacks; `text` goes on for at least a token behind that."""
        n, done = self._n_pending, self.head.n_pairs
        if n:
            self._n_pending = 0
            self.head.commit(self._features[:n], text[done + 1 : done + 1 + n])

    def _reserve(self, n: int) -> None:
        if n > len(self._features):
            grown = np.empty((max(n, 2 * len(self._features)), self.head.n_features), np.float32)
            grown[: self._n_pending] = self._features[: self._n_pending]
            self._features = grown


def draft(
    drafters: Sequence[Drafter],
    texts: Sequence[Sequence[int]],
    policy: Policy,
    room: int,
    found: DraftTree | None = None,
    lookups: Sequence[NgramIndex] = (),
) -> Draft:
    """Candidates for the continuations of `texts`, whose last tokens are the roots.

    drafters: one for each text. room: depth at which a context ends. found: what lookups found, to
    which the heads' drafts are added. lookups: one for each text, to look behind these as well.
    """
    tree, spent = found or DraftTree.of_roots([text[-1] for text in texts]), 0.0
    slots = dict.fromkeys(range(len(texts)), 0)  # node -> its head's slot that drafts its children
    levels: list[tuple[int, ...]] = []
    catch_up_ms = 0.0
    while True:
        nodes, branching = policy.expand(tree, room)
        if not len(nodes):
            break
        lines = tree.lines[nodes]
        of_level = sorted(set(lines.tolist()))
        if not levels:
            catch_up_ms = _caught_up([(drafters[line], texts[line]) for line in of_level])
        start = time.perf_counter()
        grown = [
            _children(drafters[line], texts[line], tree, nodes[lines == line], branching, slots)
            for line in of_level
        ]
        tokens, probs = (np.concatenate(parts) for parts in zip(*grown, strict=True))
        states = _states(drafters, tree, nodes, slots) if policy.reads_states else None
        spent += time.perf_counter() - start
        levels.append(widths_of(tree, nodes))
        parents = np.repeat(nodes, probs.shape[1])
        level = Level(parents, tokens.reshape(-1), probs.reshape(-1), states)
        level = _likely(tree, level, policy.least_chance)
        if not len(level.parents):
            break
        if tree.named is None and not lookups:
            tree = tree.grown(level.parents, level.tokens, level.probs, level.states)
        else:
            tree, places = _with_both(tree, level, policy.least_chance, lookups, room)
            slots = {int(places[node]): slot for node, slot in slots.items()}
    return Draft(tree, spent * 1e3, levels, catch_up_ms)


def _caught_up(behind: Sequence[tuple[Drafter, Sequence[int]]]) -> float:
    """Has heads catch up where much text waits for them; the ms that this took."""
    begun = time.perf_counter()
    for drafter, text in behind:
        if drafter.waiting:
            drafter.catch_up(text)
            drafter.head.synchronize()
    return (time.perf_counter() - begun) * 1e3


def _children(
    drafter: Drafter,
    text: Sequence[int],
    tree: DraftTree,
    nodes: IntArray,
    branching: int,
    slots: dict[int, int],
) -> tuple[NDArray[np.int32], FloatArray]:
    """Tokens and probabilities [m, branching] of the children of `nodes`, which are of one line."""
    depth, head = int(tree.depths[nodes[0]]), drafter.head
    if depth == 0:
        drafter.catch_up(text)
        head.begin_tree()
        tokens, probs = head.propose(branching)
        return tokens[None], probs[None]
    # A node of depth 1 hangs on its line's root, whose slot is the head's first.
    parents = [slots[parent] for parent in tree.parents[nodes].tolist()]
    new_slots, tokens, probs = head.expand(parents, tree.tokens[nodes], depth, branching)
    slots.update(zip(nodes.tolist(), new_slots.tolist(), strict=True))
    return tokens, probs


def _states(
    drafters: Sequence[Drafter], tree: DraftTree, nodes: IntArray, slots: dict[int, int]
) -> NDArray[np.float32]:
    """float32 [m, width]: the heads' states behind `nodes`."""
    lines, first = tree.lines[nodes].tolist(), [slots[node] for node in nodes.tolist()]
    if len(drafters) == 1:  # whose slots are in a row
        return drafters[0].head.states(first[0], first[-1] + 1)
    return np.concatenate(
        [drafters[line].head.states(at, at + 1) for line, at in zip(lines, first, strict=True)]
    )


@dataclass(frozen=True)
class Level:
    """What heads propose: parents, tokens, probs [m]; states [nodes, width] of the parents, in
    ascending order, None if they are not wanted."""

    parents: IntArray
    tokens: NDArray[np.int32]
    probs: FloatArray
    states: NDArray[np.float32] | None

    def only(self, kept: NDArray[np.bool_]) -> Level:
        """Of kept [m]; a node that has got no child needs no state."""
        parents, states = self.parents[kept], self.states
        if states is not None:
            states = states[np.isin(np.unique(self.parents), parents)]
        return Level(parents, self.tokens[kept], self.probs[kept], states)


def _likely(tree: DraftTree, level: Level, least_chance: float) -> Level:
    """Of the level those whose path probability is at least `least_chance`, and those that `tree`
    has already, however unlikely the head takes them to be."""
    if least_chance <= 0:
        return level
    kept = tree.path_probs[level.parents] * level.probs >= least_chance
    if tree.named is not None:
        known = set(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
        pairs = zip(level.parents.tolist(), level.tokens.tolist(), strict=True)
        kept |= [pair in known for pair in pairs]
    return level.only(kept)


def _with_both(
    tree: DraftTree, level: Level, least_chance: float, lookups: Sequence[NgramIndex], room: int
) -> tuple[DraftTree, IntArray]:
    """`tree` with the level, behind which lookups look as well; and where its nodes went."""
    n = len(tree)
    wider, places = tree.joined(
        level.parents.tolist(), level.tokens.tolist(), named_by(HEAD, level.probs), level.states
    )
    if lookups:
        fresh = set(places[n:].tolist()) - set(places[:n].tolist())
        wider, then = completed(wider, lookups, room, least_chance, sorted(fresh))
        places = then[places]
    return wider, places[:n]
