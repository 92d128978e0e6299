"""The acceptance rule.

Drafts are deterministic, so the rule is the simplest there is: sample the next token from the
target with the user's own sampler; if it is a child of the node, move there and go on, else it is
the new root. Each committed token costs one sampler call, in the order of plain decoding, so
penalties, grammars and the random numbers are those of plain decoding, and the text keeps the
target's distribution however the tree was pruned.
"""

from __future__ import annotations

from collections.abc import Callable

from specfit.planner import DraftTree


def walk(
    tree: DraftTree, sample: Callable[[int], int], goes_on: Callable[[int], bool], root: int = 0
) -> tuple[list[int], list[int]]:
    """The accepted path behind a root (nodes, root first), and as many committed tokens.

    sample:  draws the target's token after a node.
    goes_on: told every token as it is committed; False ends the text with that token.
    """
    edges = zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
    children = {edge: node for node, edge in enumerate(edges)}
    path, committed = [root], []
    while True:
        token = sample(path[-1])
        committed.append(token)
        child = children.get((path[-1], token))
        if not goes_on(token) or child is None:
            return path, committed
        path.append(child)
