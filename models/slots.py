"""Nodes that a head has computed, as every implementation of one numbers them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FIRST = 128


def checked_parents(
    parent_slots: Sequence[int] | NDArray[np.integer],
    depths: NDArray[np.integer],
    n_slots: int,
    depth: int,
) -> NDArray[np.int64]:
    """int64 [m], slots of the parents of nodes at `depth`. depths: int [slots], of which the first
    n_slots are taken. Raises ValueError for one that is no slot of depth - 1, or if there are none.
    """
    parents = np.asarray(parent_slots, np.int64)
    known = parents.tolist()
    if not known or min(known) < 0 or max(known) >= n_slots:
        raise ValueError(f"parents must be slots 0 to {n_slots - 1}")
    if (depths[parents] != depth - 1).any():
        raise ValueError(f"not all parents have depth {depth - 1}")
    return parents


class TreeMask:
    """Which slots see which: slot 0, where all begins, and every node its ancestors and itself.

    window: tokens that a token sees, itself included; 0 for all.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        # Attention bias between slots: 0 for what a slot sees, -inf for all others.
        self._bias = np.full((_FIRST, _FIRST), -np.inf, np.float32)
        self._bias[0, 0] = 0
        self._depths = np.zeros(_FIRST, np.int32)

    def add(
        self, parent_slots: Sequence[int] | NDArray[np.integer], n_slots: int, depth: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Puts nodes at `depth` into the slots from n_slots on; what lies there is forgotten.

        Returns their parents [m] and their bias [m, n_slots + m - 1] against all slots but 0.
        Raises ValueError as `checked_parents` does.
        """
        parents = checked_parents(parent_slots, self._depths, n_slots, depth)
        end = n_slots + len(parents)
        self._reserve(end)
        slots = np.arange(n_slots, end)
        self._depths[slots] = depth
        self._bias[slots] = self._bias[parents]
        self._bias[slots, slots] = 0
        if 0 < self._window <= depth:
            gone = np.flatnonzero(self._depths[:n_slots] <= depth - self._window)
            self._bias[np.ix_(slots, gone)] = -np.inf
        return parents, self._bias[slots, 1:end]

    def _reserve(self, n: int) -> None:
        old = len(self._depths)
        if n > old:
            size = max(n, 2 * old)
            self._depths = np.resize(self._depths, size)
            bias = np.full((size, size), -np.inf, np.float32)
            bias[:old, :old] = self._bias
            self._bias = bias
