"""The drafts of `planner/lookup.py` in Python, to check the compiled ones by."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from specfit.planner import DraftTree, NgramIndex
from specfit.planner.lookup import CHILDREN, DEEPEST, LIKELY, MOST


def drafts(
    tree: DraftTree,
    indices: Sequence[NgramIndex],
    room: int,
    least_chance: float,
    nodes: Iterable[int] | None = None,
) -> list[tuple[int, int, float]]:
    """Parents, tokens and probabilities of what `completed` adds to `tree`, in its order."""
    n = len(tree)
    chances = tree.path_probs.tolist()
    tokens = tree.tokens.tolist()
    known = set(zip(tree.parents.tolist(), tokens, strict=True))
    waiting = []
    for node in range(n) if nodes is None else nodes:
        if chances[node] >= LIKELY:
            path = tree.path(node)
            waiting.append((-chances[node], node, [tokens[i] for i in path], path[0]))
    heapq.heapify(waiting)
    added: list[tuple[int, int, float]] = []
    while waiting and len(added) < MOST:
        chance, node, path, line = heapq.heappop(waiting)
        if len(path) - 1 >= min(room, DEEPEST):
            continue
        for token, prob in indices[line].following(path)[:CHILDREN]:
            if -chance * prob < least_chance:
                break
            added.append((node, token, prob))
            if (node, token) not in known and -chance * prob >= LIKELY:
                new = n + len(added) - 1
                heapq.heappush(waiting, (chance * prob, new, [*path, token], line))
    return added
