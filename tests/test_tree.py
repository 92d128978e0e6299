"""The planner's value types: draft trees and expert sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfit.planner import DRAFTERS, HEAD, LOOKUP, DraftTree, pack, union_per_layer
from specfit.planner.acceptance import BY_HEAD, DENIED, kinds_of
from specfit.planner.experts import n_words, sizes

#       0
#     1   2
#    3 4   5
#    6
PARENTS = [-1, 0, 0, 1, 1, 2, 3]


@pytest.fixture
def tree() -> DraftTree:
    return DraftTree(
        np.array(PARENTS, np.int32),
        np.arange(100, 107, dtype=np.int32),
        np.array([1.0, 0.6, 0.3, 0.5, 0.25, 1.0, 0.5]),
    )


def test_a_root_alone() -> None:
    tree = DraftTree.of_root(7)
    assert len(tree) == 1
    assert tree.tokens.tolist() == [7]
    assert tree.depths.tolist() == [0]
    assert tree.leaves == [0]
    assert tree.path(0) == [0]
    assert tree.path_products(tree.probs).tolist() == [1.0]


def test_shape(tree: DraftTree) -> None:
    assert tree.depths.tolist() == [0, 1, 1, 2, 2, 2, 3]
    assert tree.leaves == [4, 5, 6]
    assert tree.path(6) == [0, 1, 3, 6]
    assert tree.path(5) == [0, 2, 5]


def test_path_products(tree: DraftTree) -> None:
    products = tree.path_products(tree.probs)
    assert products == pytest.approx([1.0, 0.6, 0.3, 0.3, 0.15, 0.3, 0.15])
    assert tree.probs[3] == 0.5  # not changed in place


def test_grows_by_a_level(tree: DraftTree) -> None:
    grown = tree.grown(np.array([6, 6]), np.array([8, 9]), np.array([0.5, 0.25]))
    assert grown.parents.tolist() == [*PARENTS, 6, 6]
    assert grown.tokens.tolist()[-2:] == [8, 9]
    assert grown.depths.tolist()[-2:] == [4, 4]
    assert grown.parents.dtype == np.int32
    assert grown.tokens.dtype == np.int32
    assert len(tree) == 7


def test_subtree(tree: DraftTree) -> None:
    kept = tree.subtree(np.array([True, True, False, True, True, False, True]))
    assert kept.tokens.tolist() == [100, 101, 103, 104, 106]
    assert kept.parents.tolist() == [-1, 0, 1, 1, 2]
    assert kept.probs.tolist() == [1.0, 0.6, 0.5, 0.25, 0.5]
    assert tree.parents.tolist() == PARENTS


def test_a_draft_that_the_head_denied_stays_one_without_what_the_head_named() -> None:
    named = np.zeros((3, len(DRAFTERS)))
    named[1, HEAD], named[2, LOOKUP] = 0.05, 0.9
    probs = named.max(axis=1)
    probs[0] = 1.0
    ids = np.array([-1, 0, 0], np.int32), np.array([5, 6, 7], np.int32)
    tree = DraftTree(*ids, probs, None, named)
    kept = tree.subtree(np.array([True, False, True]))
    assert kinds_of(tree).tolist() == [BY_HEAD, BY_HEAD, DENIED]
    assert kinds_of(kept).tolist() == [BY_HEAD, DENIED]


def test_subtree_of_the_root(tree: DraftTree) -> None:
    assert tree.subtree(np.arange(7) == 0).parents.tolist() == [-1]


@pytest.mark.parametrize("dropped", [0, 1, 2, 3])
def test_a_subtree_is_closed(tree: DraftTree, dropped: int) -> None:
    keep = np.ones(7, np.bool_)
    keep[dropped] = False
    with pytest.raises(ValueError, match="ancestor-closed"):
        tree.subtree(keep)


def test_words() -> None:
    assert [n_words(n) for n in (1, 64, 65, 128, 129)] == [1, 1, 2, 2, 3]


@given(
    st.integers(1, 200).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.integers(1, 5).flatmap(
                lambda k: st.lists(
                    st.lists(st.integers(0, n - 1), min_size=2 * k, max_size=2 * k), min_size=1
                )
            ),
        )
    )
)
def test_bitsets_are_sets(case: tuple[int, list[list[int]]]) -> None:
    n_experts, rows = case
    ids = np.array(rows, np.int32).reshape(len(rows), 2, -1)  # two layers
    sets = pack(ids, n_experts)
    assert sets.shape == (len(rows), 2, n_words(n_experts))
    for layer in range(2):
        of_node = [set(node[layer].tolist()) for node in ids]
        assert sizes(sets)[:, layer].tolist() == [len(experts) for experts in of_node]
        assert union_per_layer(sets)[layer] == len(set().union(*of_node))
        for node, experts in enumerate(of_node):
            words = sets[node, layer].tolist()
            present = {e for e in range(n_experts) if words[e // 64] >> (e % 64) & 1}
            assert present == experts


def test_empty_bitsets() -> None:
    sets = pack(np.zeros((3, 2, 0), np.int32), 128)
    assert sizes(sets).tolist() == [[0, 0]] * 3
    assert union_per_layer(sets).tolist() == [0, 0]


@pytest.mark.parametrize("expert", [-1, 128])
def test_refuses_experts_that_do_not_exist(expert: int) -> None:
    with pytest.raises(ValueError, match=r"\[0, 128\)"):
        pack(np.array([[3, expert]]), 128)
