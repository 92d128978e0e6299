"""Drafts that are looked up, as deep as they go, anywhere in a tree."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

import numpy as np

from .native import as_bytes, library
from .ngram import NgramIndex
from .tree import DRAFTERS, LOOKUP, DraftTree, FloatArray, IntArray, named_by

# Nodes that are asked for children have at least this chance; when so many were added, none is.
LIKELY, MOST, DEEPEST = 0.1, 56, 48
# Candidates of a node that count.
CHILDREN = 3

_native = library.specfit_ngrams_complete
_i32, _f64, _array, _address = ctypes.c_int32, ctypes.c_double, ctypes.c_char_p, ctypes.c_void_p
_native.argtypes = (
    *(_address, _i32, _array, _array, _array, _array, _i32),
    *(_i32, _f64, _f64, _i32, _i32, _address, _address, _address),
)


def completed(
    tree: DraftTree,
    indices: Sequence[NgramIndex],
    room: int,
    least_chance: float,
    nodes: Iterable[int] | None = None,
) -> tuple[DraftTree, IntArray]:
    """`tree` with all that the indices have behind `nodes` and behind what is added, the likeliest
    first; and where its nodes have gone, as `DraftTree.joined` tells. Found by `ngram.cpp`.

    indices: one a line, of the text before its root. room: how deep the tree may be. nodes: that
    were not asked about before; None: all.
    """
    n, most = len(tree), MOST + CHILDREN
    asked = np.arange(n) if nodes is None else np.array(list(nodes), np.int32)
    parents, tokens, probs = (_i32 * most)(), (_i32 * most)(), (_f64 * most)()
    added = _native(
        (_address * len(indices))(*[index.handle for index in indices]),
        *(n, as_bytes(tree.parents, np.int32), as_bytes(tree.tokens, np.int32)),
        *(as_bytes(tree.path_probs, np.float64), as_bytes(asked, np.int32), len(asked)),
        *(min(room, DEEPEST), least_chance, LIKELY, MOST, CHILDREN, parents, tokens, probs),
    )
    if added < 0:
        raise MemoryError("no memory to look up what followed before")
    if not added:
        return tree, np.arange(n, dtype=np.int32)
    named = named_by(LOOKUP, np.array(probs[:added]))
    if n == tree.n_lines:
        return tree.headed(parents[:added], tokens[:added], named), np.arange(n + added)
    return tree.joined(parents[:added], tokens[:added], named)


def children_of(
    tree: DraftTree, indices: Sequence[NgramIndex], nodes: IntArray, branching: int
) -> tuple[list[int], list[int], FloatArray]:
    """Parents, tokens and `DraftTree.named` of the best children that are found of `nodes`."""
    parents, tokens, probs = [], [], []
    for node in nodes.tolist():
        path = tree.path(node)
        found = indices[path[0]].following(tree.tokens[path].tolist())
        for token, prob in found[:branching]:
            parents.append(node)
            tokens.append(token)
            probs.append(prob)
    named = named_by(LOOKUP, np.array(probs)) if probs else np.zeros((0, len(DRAFTERS)))
    return parents, tokens, named
