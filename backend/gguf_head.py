"""The EAGLE-3 head in llama.cpp: the same pairs, slots and trees as `models/eagle3.py`, which is
its reference, with keys and values in a llama.cpp context.

A line's committed pairs are one sequence. A tree lies behind them, and every row of a level has a
sequence that holds its own path: the parent's, where no other node went on from there yet, else a
spare one, which is given the path through `seq_cp`. Spare sequences keep their share of committed
pairs between trees. A level is one decode.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specfit.models.slots import checked_parents

from .head_context import ROWS, Floats, HeadContext
from .likeliest import likeliest

Tokens = NDArray[np.int32]
Probs = NDArray[np.float64]

# So few pairs are decoded at once, with outputs of which only the last are used; of more, the last
# one by itself.
_FEW = 8
_NONE = -1


class GgufHead:
    """One line's head: its cache and the draft tree that grows from it.

    Slot 0 stands for the last committed pair; every expanded node gets the next slot. Not safe for
    use from several threads at once.
    """

    def __init__(self, context: HeadContext, line: int = 0) -> None:
        self._context = context
        self._line = line
        file = context.model.file
        self._ids = None if file.target_ids is None else file.target_ids.astype(np.int32)
        self.taps = file.taps
        self.n_features = file.n_features
        self.n_bytes = file.n_bytes
        self.n_pairs = 0
        self._hidden = np.empty((2 * ROWS, file.width), np.float32)
        self._depths = np.zeros(2 * ROWS, np.int32)
        self._sequences = np.zeros(2 * ROWS, np.int32)  # of each slot; _NONE: its path is gone
        self._tips: dict[int, int] = {}  # of each sequence of the tree: the slot that it ends in
        self._root_logits = np.empty((0, 0), np.float32)
        self._n_slots = 0

    def copies(self, n: int) -> list[GgufHead]:
        """This head and n - 1 others of the same weights, each with a cache and tree of its own."""
        return [self, *(GgufHead(self._context, line) for line in range(1, n))]

    def close(self) -> None:
        """Frees the weights and the caches of all copies."""
        self._context.close()
        self._context.model.close()

    def truncate(self, n: int) -> None:
        """Forgets the pairs from n on, and the tree; commit at least one pair before drafting."""
        if n < 0:
            raise ValueError(f"cannot truncate to {n} pairs")
        if n < self.n_pairs:
            self._drop_tree()
            self._n_slots = 0
            self._forget_from(n)
            self.n_pairs = n

    def adopt(self, other: GgufHead, n: int) -> None:
        """Takes over the first n pairs of another head of the same weights, for its own."""
        if not 0 <= n <= other.n_pairs:
            raise ValueError(f"there are {other.n_pairs} pairs, not {n}")
        self.truncate(0)
        if n:
            self._context.share(other._line, self._line, 0, n)
        self.n_pairs = n

    def synchronize(self) -> None:
        """Waits until a GPU has done what was asked of it."""
        self._context.synchronize()

    def kept(self) -> NDArray[np.uint8]:
        """What `restore` makes the committed pairs of again."""
        self._drop_tree()
        return self._context.state(self._line)

    def restore(self, kept: NDArray[np.uint8]) -> None:
        """Takes over what a head of the same weights had `kept`, for its own."""
        self.truncate(0)
        self.n_pairs = self._context.restore(kept.ravel(), self._line)

    def states(self, start: int, stop: int) -> Floats:
        """float32 [stop - start, width]: the hidden states of these slots."""
        return self._hidden[start:stop].copy()

    def commit(self, features: Floats, next_tokens: Sequence[int] | NDArray[np.integer]) -> None:
        """Appends true pairs and starts a new tree at the last of them.

        features: float32 [m, 3 * hidden], the target's layer inputs at `taps`, concatenated.
        next_tokens: int [m], for each of them the token that follows it.
        """
        n, tokens = len(features), np.asarray(next_tokens, np.int32)
        if n == 0 or len(tokens) != n:
            raise ValueError(f"{n} features and {len(tokens)} tokens make no pairs")
        self._drop_tree()
        self._n_slots = 0
        alone = 0 if n <= _FEW else n - 1  # where the pairs with outputs begin
        for start in [*range(0, alone, ROWS), alone]:
            stop = n if start == alone else min(start + ROWS, alone)
            fused = self._context.encode(features[start:stop], self.n_pairs, self._line)
            made = self._context.decode(
                tokens[start:stop],
                fused,
                self.n_pairs,
                self._line,
                chain=True,
                outputs=start == alone,
            )
            self.n_pairs += stop - start
        assert made is not None
        states, logits = made
        self._hidden[0] = states[-1]
        self._root_logits = logits[-1:].copy()
        self._sequences[0], self._depths[0], self._n_slots = self._line, 0, 1
        self._tips = {self._line: 0}

    def begin_tree(self) -> None:
        """Throws away all slots but 0."""
        if self._n_slots > 1:
            self._drop_tree()
            self._n_slots = 1
            self._tips = {self._line: 0}

    def propose(self, k: int) -> tuple[Tokens, Probs]:
        """The root's k most likely children, best first (fewer if the draft vocabulary is smaller).

        Returns target token ids [k] and their probabilities [k] over the draft vocabulary.
        """
        self._check_root()
        tokens, probs = self._best(self._root_logits, k)
        return tokens[0], probs[0]

    def expand(
        self,
        parent_slots: Sequence[int] | NDArray[np.integer],
        tokens: Sequence[int] | NDArray[np.integer],
        depth: int,
        k: int,
    ) -> tuple[Tokens, Tokens, Probs]:
        """Makes m drafted nodes into slots and drafts their children.

        parent_slots: int [m], the slot of each node's parent. tokens: int [m], the nodes' tokens.
        depth: of the nodes, 1 for the root's children. Returns their slots [m], and for each node
        its k best continuations (fewer if the draft vocabulary is smaller), best first: target
        token ids [m, k], probabilities [m, k]. Raises ValueError for a parent that is no slot of
        depth - 1, or more nodes than a level can have.
        """
        self._check_root()
        parents = checked_parents(parent_slots, self._depths, self._n_slots, depth)
        m, first = len(parents), self._n_slots
        if m > ROWS:
            raise ValueError(f"{m} nodes in a level, and {ROWS} at most can be expanded")
        self._reserve(first + m)
        position = self.n_pairs - 1 + depth
        sequences = self._paths(parents.tolist(), first, position)
        made = self._context.decode(
            np.asarray(tokens, np.int32),
            self._hidden[parents],
            position,
            sequences,
            chain=False,
            outputs=True,
        )
        assert made is not None
        states, logits = made
        self._n_slots = first + m
        slots = slice(first, self._n_slots)
        self._hidden[slots] = states
        self._depths[slots] = depth
        self._sequences[slots] = sequences
        return np.arange(first, self._n_slots, dtype=np.int32), *self._best(logits, k)

    def _paths(self, parents: list[int], first: int, position: int) -> list[int]:
        """A sequence for each child of `parents` that holds its path, up to `position`."""
        chosen = []
        for slot, parent in enumerate(parents, first):
            own = int(self._sequences[parent])
            if own == _NONE:
                raise ValueError(f"slot {parent} is of a path that was given up")
            if self._tips[own] != parent:
                own = self._branch(own, parents, position)
            self._tips[own] = slot
            chosen.append(own)
        return chosen

    def _branch(self, source: int, parents: list[int], position: int) -> int:
        """A spare sequence that holds what `source` does before `position`."""
        context, spare = self._context, self._context.spare
        sequence = self._free_sequence(parents)
        line, held = spare[sequence]
        if line != self._line:
            context.drop(sequence, -1)
            held = 0
        context.share(source, sequence, held, position)
        spare[sequence] = (self._line, self.n_pairs)
        return sequence

    def _free_sequence(self, parents: list[int]) -> int:
        """One that no tree uses, best of this line; else, or where other lines want some too, one
        of this tree whose path nobody of this level goes on from."""
        context = self._context
        free = [sequence for sequence in context.spare if sequence not in context.in_trees]
        if not free or context.lines > 1:
            wanted = {int(self._sequences[parent]) for parent in parents}
            tips = ((seq, slot) for seq, slot in self._tips.items() if seq in context.spare)
            given_up = [seq for seq, slot in tips if seq not in wanted and slot < self._n_slots]
            if given_up:
                lost = self._sequences[: self._n_slots]
                lost[lost == given_up[0]] = _NONE
                del self._tips[given_up[0]]
                context.drop(given_up[0], self.n_pairs)
                return given_up[0]
            if not free:
                raise ValueError("there are more nodes in a level than sequences for them")
        own = (sequence for sequence in free if context.spare[sequence][0] == self._line)
        sequence = next(own, free[0])
        context.in_trees.add(sequence)
        return sequence

    def _drop_tree(self) -> None:
        """Forgets the nodes behind the committed pairs."""
        if self._n_slots <= 1:
            return
        if self._context.lines == 1:
            self._context.drop(-1, self.n_pairs)
        else:
            for sequence in self._tips:
                self._context.drop(sequence, self.n_pairs)
        self._context.in_trees.difference_update(self._tips)
        self._tips = {}

    def _forget_from(self, n: int) -> None:
        """Forgets the committed pairs from n on, and the spare sequences' share of them."""
        context = self._context
        if context.lines == 1:
            context.drop(-1, n)
        else:
            context.drop(self._line, n)
        for sequence, (line, held) in context.spare.items():
            if line == self._line and held > n:
                if context.lines > 1:
                    context.drop(sequence, n)
                context.spare[sequence] = (line, n)

    def _best(self, logits: Floats, k: int) -> tuple[Tokens, Probs]:
        places, probs = likeliest(logits, self._ids, k)
        return places.astype(np.int32) if self._ids is None else self._ids[places], probs

    def _check_root(self) -> None:
        if self._n_slots == 0:
            raise RuntimeError("commit a pair before drafting")

    def _reserve(self, n: int) -> None:
        if n > len(self._depths):
            size = max(n, 2 * len(self._depths))
            self._depths, self._sequences = (
                np.resize(array, size) for array in (self._depths, self._sequences)
            )
            self._hidden = np.resize(self._hidden, (size, self._hidden.shape[1]))
