"""What lookups find in the texts of a cycle, before a head drafts anything, or without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .lookup import CHILDREN, children_of, completed
from .ngram import NgramIndex
from .policies import Policy
from .tree import LOOKUP, DraftTree, named_by


@dataclass(frozen=True)
class Found:
    """tree: the roots and what was found behind them; None where nothing was, or it was not worth
    a plan. taken: whether to verify some of it.

    first: of one line, the tokens found behind its root, with their probabilities.
    """

    tree: DraftTree | None = None
    taken: bool = False
    first: Sequence[tuple[int, float]] = ()


NOTHING_FOUND = Found()


def found_by(
    lookups: Callable[[], Sequence[NgramIndex]],
    roots: Sequence[int],
    policy: Policy,
    room: int,
    context: int,
    *,
    has_head: bool,
) -> Found:
    """What a cycle begins with. lookups: gives them, one a root, if they are to be asked. has_head:
    modes that do not plan draft by it alone."""
    if policy.looks_up:
        return looked_up(lookups(), roots, policy, room, context)
    if has_head or not policy.begin(context, roots):
        return NOTHING_FOUND
    return drafted_by_lookup(lookups(), roots, policy, room)


def looked_up(
    lookups: Sequence[NgramIndex], roots: Sequence[int], policy: Policy, room: int, context: int
) -> Found:
    """All that there is, if `policy` thinks that it may pay; lookups, roots: one a line."""
    if not policy.finds:
        return NOTHING_FOUND
    firsts = [
        lookup.following([root])[:CHILDREN] for lookup, root in zip(lookups, roots, strict=True)
    ]
    best = max((first[0][1] for first in firsts if first), default=0.0)
    if not best:
        return NOTHING_FOUND
    if not policy.hopes(best):
        return Found(first=firsts[0])
    tree, _ = completed(DraftTree.of_roots(roots), lookups, room, policy.least_chance)
    taken = policy.takes(context, tree)
    return Found(tree, taken, firsts[0])


def first_level(found: Sequence[tuple[int, float]], token: int) -> tuple[DraftTree, list[int]]:
    """The tree of tokens that were found behind a root, and its path that `token` would have been:
    what there is to learn from a cycle that verified none of them."""
    tokens, probs = zip(*found, strict=True)
    named = named_by(LOOKUP, np.array([0.0, *probs]))
    parents = np.array([-1, *[0] * len(tokens)], np.int32)
    chances = np.array([1.0, *probs])
    tree = DraftTree(parents, np.array([-1, *tokens], np.int32), chances, None, named)
    return tree, [0, *(node for node, one in enumerate(tokens, 1) if one == token)]


def drafted_by_lookup(
    lookups: Sequence[NgramIndex], roots: Sequence[int], policy: Policy, room: int
) -> Found:
    """The tree of a mode that does not plan, level by level."""
    tree = DraftTree.of_roots(roots)
    while True:
        nodes, branching = policy.expand(tree, room)
        parents, tokens, named = children_of(tree, lookups, nodes, branching)
        if not parents:
            return Found(tree, taken=True) if len(tree) > len(roots) else NOTHING_FOUND
        tree, _ = tree.joined(parents, tokens, named)
