"""The draft tree: what the head proposes, as flat arrays.

Node 0 is the root, the last sampled token, which is not yet in the KV cache and is verified in
every cycle. Where several lines of text are decoded at once each has a root, and with its drafts a
tree of its own in the same arrays: the first nodes are the roots, in the order of the lines. Nodes
are in breadth-first order, so a parent always comes before its children and a prefix of levels is a
prefix of the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
# What proposes drafts: a head level by level, for its time; lookups all at once, for next to none.
# Columns of `DraftTree.named`, and bits of `DraftTree.source`.
DRAFTERS = ("eagle3", "ngram")
HEAD, LOOKUP = range(len(DRAFTERS))
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def best_nodes(scores: FloatArray, n: int) -> BoolArray:
    """bool: the n highest of `scores`; of equals the earlier, so a parent before its children."""
    keep = np.zeros(len(scores), np.bool_)
    keep[np.argsort(-scores, kind="stable")[:n]] = True
    return keep


@dataclass(frozen=True)
class DraftTree:
    """A rooted tree of draft tokens, or one for each of several lines.

    Most trees are so small that loops over lists take less time than numpy's over arrays.

    parents: int32 [n], index of each node's parent; -1 for a root.
    tokens:  int32 [n], token ids.
    probs:   float64 [n], the drafter's probability of the token given its parent, of several the
             highest; 1 for a root.
    states:  float32 [n, width], the head's state behind each node that was expanded, zero for the
             others; None where nobody asked for them.
    named:   float64 [n, drafter], each drafter's own probability, 0 where it did not name the token
             and for roots; None: all drafts are the head's.
    """

    parents: IntArray
    tokens: IntArray
    probs: FloatArray
    states: NDArray[np.float32] | None = None
    named: FloatArray | None = None

    @classmethod
    def of_root(cls, token: int) -> DraftTree:
        return cls.of_roots([token])

    @classmethod
    def of_roots(cls, tokens: Sequence[int]) -> DraftTree:
        """One line for each of `tokens`, without drafts."""
        n = len(tokens)
        tree = cls(np.full(n, -1, np.int32), np.array(tokens, np.int32), np.ones(n))
        depths = np.zeros(n, np.int32)
        tree.__dict__.update(n_lines=n, depths=depths, path_probs=tree.probs)
        return tree

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def n_lines(self) -> int:
        """How many lines there are; their roots are the first nodes."""
        return int(np.count_nonzero(self.parents < 0))

    @cached_property
    def lines(self) -> IntArray:
        """int32 [n]: the line that each node belongs to."""
        if self.n_lines == 1:
            return np.zeros(len(self), np.int32)
        lines: list[int] = []
        for node, parent in enumerate(self.parents.tolist()):
            lines.append(lines[parent] if parent >= 0 else node)
        return np.array(lines, np.int32)

    @cached_property
    def depths(self) -> IntArray:
        """int32 [n]: distance from the root."""
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return np.array(depths, np.int32)

    @cached_property
    def path_probs(self) -> FloatArray:
        """float64 [n]: for every node the product of `probs` along its path."""
        return self.path_products(self.probs)

    @property
    def by_drafter(self) -> FloatArray:
        """`named`, also where all drafts are the head's; a root's row means nothing."""
        return named_by(HEAD, self.probs) if self.named is None else self.named

    @cached_property
    def source(self) -> NDArray[np.uint8]:
        """uint8 [n]: bits of the drafters that named each node; 0 for a root."""
        if self.named is None:
            return np.left_shift(self.parents >= 0, HEAD, dtype=np.uint8)
        return np.packbits(self.named > 0, axis=1, bitorder="little")[:, 0]

    @cached_property
    def expanded(self) -> BoolArray:
        """bool [n]: nodes whose children the head named, also in a subtree without these."""
        expanded = np.zeros(len(self), np.bool_)
        by_head = (self.source & (1 << HEAD)) > 0
        expanded[self.parents[by_head]] = True
        return expanded

    @property
    def leaves(self) -> list[int]:
        """Nodes without children, in order."""
        return sorted(set(range(len(self))).difference(self.parents.tolist()))

    def path(self, node: int) -> list[int]:
        """The nodes from the root to `node`, both included."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents.item(node)
        return path[::-1]

    def path_products(self, values: FloatArray) -> FloatArray:
        """float64 [n]: for every node the product of `values` [n] along its path."""
        products: list[float] = []
        for value, parent in zip(values.tolist(), self.parents.tolist(), strict=True):
            products.append(value * products[parent] if parent >= 0 else value)
        return np.array(products)

    def grown(
        self,
        parents: IntArray,
        tokens: IntArray,
        probs: FloatArray,
        states: NDArray[np.float32] | None = None,
    ) -> DraftTree:
        """This tree with one more level; `parents` are nodes of the present last level.

        states: float32 [m, width] of the parents, in ascending order; None keeps what is known.
        """
        known = self.states
        if states is not None:
            known = np.zeros((len(self) + len(parents), states.shape[1]), np.float32)
            if self.states is not None:
                known[: len(self)] = self.states
            known[np.unique(parents)] = states
        elif known is not None:
            known = np.concatenate([known, np.zeros((len(parents), known.shape[1]), np.float32)])
        tree = DraftTree(
            np.concatenate([self.parents, parents], dtype=np.int32),
            np.concatenate([self.tokens, tokens], dtype=np.int32),
            np.concatenate([self.probs, probs]),
            known,
            None if self.named is None else np.vstack([self.named, named_by(HEAD, probs)]),
        )
        # Known already, and asked for at every level.
        tree.__dict__.update(
            n_lines=self.n_lines,
            depths=np.concatenate([self.depths, self.depths[parents] + 1], dtype=np.int32),
            path_probs=np.concatenate([self.path_probs, self.path_probs[parents] * probs]),
        )
        return tree

    def headed(self, parents: Sequence[int], tokens: Sequence[int], named: FloatArray) -> DraftTree:
        """Nodes below roots alone: what `joined` gives, of nodes in breadth-first order that are
        all different."""
        n = len(self)
        rows = np.concatenate([np.zeros((n, named.shape[1])), named])
        probs = rows.max(axis=1)
        probs[:n] = 1.0
        return DraftTree(
            np.concatenate([self.parents, parents], dtype=np.int32),
            np.concatenate([self.tokens, tokens], dtype=np.int32),
            probs,
            None,
            rows,
        )

    def joined(
        self,
        parents: Sequence[int],
        tokens: Sequence[int],
        named: FloatArray,
        states: NDArray[np.float32] | None = None,
    ) -> tuple[DraftTree, IntArray]:
        """This tree with nodes added anywhere, in breadth-first order again; and where the nodes of
        this one have gone, and then the new ones: int32 [n + m].

        A token that a sibling has already stays one node, named by both.

        parents: [m], nodes of this tree, or n + j for the j-th new one, which comes before. named:
        [m, drafter]. states: as in `grown`.
        """
        n, n_lines = len(self), self.n_lines
        rows = np.vstack([self.by_drafter, named])
        rows[:n_lines] = 0.0
        above, texts = self.parents.tolist(), self.tokens.tolist()
        known = dict(zip(zip(above, texts, strict=True), range(n), strict=True))
        places = list(range(n))
        merged = np.arange(n + len(parents))  # the row that stands for each
        for new, (parent, token) in enumerate(zip(parents, tokens, strict=True), n):
            key = places[parent], token
            at = known.setdefault(key, len(above))
            if at == len(above):
                above.append(key[0])
                texts.append(token)
                merged[at] = new
            else:
                np.maximum(rows[merged[at]], rows[new], out=rows[merged[at]])
            places.append(at)
        children: list[list[int]] = [[] for _ in above]
        for node, parent in enumerate(above[n_lines:], n_lines):
            children[parent].append(node)
        order = list(range(n_lines))
        for node in order:
            order += children[node]
        index = np.empty(len(above), np.int32)
        index[order] = np.arange(len(above), dtype=np.int32)
        in_order = np.array(above, np.int32)[order]
        in_order[n_lines:] = index[in_order[n_lines:]]
        rows = rows[merged[order]]
        probs = rows.max(axis=1)
        probs[:n_lines] = 1.0
        held = None
        if states is not None or self.states is not None:
            width = (self.states if states is None else states).shape[1]  # type: ignore[union-attr]
            held = np.zeros((len(above), width), np.float32)
            if self.states is not None:
                held[index[:n]] = self.states
            if states is not None:
                held[index[np.unique(np.asarray(parents, np.int32))]] = states
        tree = DraftTree(in_order, np.array(texts, np.int32)[order], probs, held, rows)
        return tree, index[places]

    def subtree(self, keep: BoolArray) -> DraftTree:
        """The tree of the nodes with keep [n] set.

        Raises ValueError if `keep` is not ancestor-closed (a kept node whose parent is dropped), or
        lacks a root.
        """
        if keep.all():
            return self
        n = self.n_lines
        if not keep[:n].all() or not keep[self.parents[n:]][keep[n:]].all():
            raise ValueError("the kept nodes are not ancestor-closed")
        new_index = np.cumsum(keep, dtype=np.int32) - 1
        parents = self.parents[keep]
        parents[n:] = new_index[parents[n:]]
        states = None if self.states is None else self.states[keep]
        named = None if self.named is None else self.named[keep]
        tree = DraftTree(parents, self.tokens[keep], self.probs[keep], states, named)
        # What was said of a node stays what it was, whichever of its siblings are dropped.
        same = "depths", "path_probs", "source", "expanded"
        tree.__dict__.update({name: getattr(self, name)[keep] for name in same}, n_lines=n)
        return tree


def named_by(drafter: int, probs: FloatArray) -> FloatArray:
    """float64 [n, drafter]: rows of `DraftTree.named`, for nodes that one drafter named."""
    named = np.zeros((len(probs), len(DRAFTERS)))
    named[:, drafter] = probs
    return named
