"""Drafts that are looked up, as deep as they go, anywhere in a tree."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from .tree import DRAFTERS, LOOKUP, DraftTree, FloatArray, IntArray, named_by

# Nodes that are asked for children have at least this chance; when so many were added, none is.
LIKELY, MOST, DEEPEST = 0.1, 56, 48
# Candidates of a node that count.
CHILDREN = 3


class Lookup(Protocol):
    """A drafter whose drafts take no time to speak of: it needs the text and nothing of the model.

    It is told the text by `extend` and `truncate`.
    """

    def __len__(self) -> int:
        """Tokens of the text that it has."""

    def extend(self, tokens: Sequence[int]) -> None: ...

    def truncate(self, n: int) -> None: ...

    def following(self, path: Sequence[int] = ()) -> list[tuple[int, float]]:
        """Tokens that may follow the text and `path`, and their probabilities, falling."""


def completed(
    tree: DraftTree,
    lookups: Sequence[Lookup],
    room: int,
    least_chance: float,
    nodes: Iterable[int] | None = None,
) -> tuple[DraftTree, IntArray]:
    """`tree` with all that lookups know behind `nodes` and behind what they add; and where its
    nodes have gone, as `DraftTree.joined` tells.

    lookups: one a line, of the text before its root. room: how deep the tree may be. nodes: that
    were not asked about before; None: all.
    """
    n = len(tree)
    chances = tree.path_probs.tolist()
    tokens = tree.tokens.tolist()
    known = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tokens, strict=True))
    }
    waiting = []
    for node in range(n) if nodes is None else nodes:
        if chances[node] >= LIKELY:
            path = tree.path(node)
            waiting.append((-chances[node], node, [tokens[i] for i in path], path[0]))
    heapq.heapify(waiting)
    parents: list[int] = []
    added: list[int] = []
    probs: list[float] = []
    deepest = min(room, DEEPEST)
    while waiting and len(parents) < MOST:
        chance, node, path, line = heapq.heappop(waiting)
        depth = len(path) - 1
        if depth >= deepest:
            continue
        for token, prob in lookups[line].following(path)[:CHILDREN]:
            if -chance * prob < least_chance:
                break
            parents.append(node)
            added.append(token)
            probs.append(prob)
            if (node, token) not in known and -chance * prob >= LIKELY:
                new = n + len(parents) - 1
                heapq.heappush(waiting, (chance * prob, new, [*path, token], line))
    if not parents:
        return tree, np.arange(n, dtype=np.int32)
    return tree.joined(parents, added, named_by(LOOKUP, np.array(probs)))


def children_of(
    tree: DraftTree, lookups: Sequence[Lookup], nodes: IntArray, branching: int
) -> tuple[list[int], list[int], FloatArray]:
    """Parents, tokens and `DraftTree.named` of the best children that are found of `nodes`."""
    parents, tokens, probs = [], [], []
    for node in nodes.tolist():
        path = tree.path(node)
        found = lookups[path[0]].following(tree.tokens[path].tolist())
        for token, prob in found[:branching]:
            parents.append(node)
            tokens.append(token)
            probs.append(prob)
    named = named_by(LOOKUP, np.array(probs)) if probs else np.zeros((0, len(DRAFTERS)))
    return parents, tokens, named
