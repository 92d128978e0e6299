"""The acceptance rule and the sequences of a tree, without any model."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specfit.backend.context import leaf_paths
from specfit.backend.verify import walk
from specfit.planner import DraftTree


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Breadth-first trees whose siblings have different tokens."""
    n = draw(st.integers(1, 12))
    depth = [0]
    parents = [-1]
    for _ in range(1, n):
        floor = max(0, depth[-1] - 1)
        choices = [v for v in range(len(parents)) if depth[v] >= floor]
        parent = draw(st.sampled_from(choices))
        if parents[-1] > parent:
            parent = parents[-1]
        parents.append(parent)
        depth.append(depth[parent] + 1)
    tokens = [0] + [i % 5 + 10 * (parents[i] + 1) for i in range(1, n)]
    return DraftTree(np.array(parents, np.int32), np.array(tokens, np.int32), np.full(n, 0.5))


@given(trees(), st.randoms())
def test_one_sampler_call_a_committed_token_in_the_order_of_the_path(tree, random) -> None:
    calls = []

    def sample(node: int) -> int:
        calls.append(node)
        below = [t for t, p in zip(tree.tokens, tree.parents, strict=True) if p == node]
        return int(random.choice([*below, 999]))

    path, committed = walk(tree, sample, lambda _token: True)
    assert calls == path
    assert len(committed) == len(path)
    assert committed[:-1] == tree.tokens[path[1:]].tolist()
    assert path == tree.path(path[-1])


def test_the_text_ends_with_the_token_that_ends_it() -> None:
    tree = DraftTree(
        np.array([-1, 0, 1], np.int32), np.array([5, 6, 7], np.int32), np.array([1, 0.9, 0.9])
    )
    path, committed = walk(tree, lambda node: 6 + node, lambda token: token != 6)
    assert (path, committed) == ([0], [6])


@given(trees())
def test_each_leaf_has_its_path_the_likeliest_first(tree: DraftTree) -> None:
    paths = leaf_paths(tree)
    assert sorted(paths) == sorted(map(tree.path, tree.leaves))
    chances = [tree.path_probs[path[-1]] for path in paths]
    assert chances == sorted(chances, reverse=True)
