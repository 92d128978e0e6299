"""Nodes that a head has computed, as every implementation of one numbers them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


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
    if not len(parents) or parents.min() < 0 or parents.max() >= n_slots:
        raise ValueError(f"parents must be slots 0 to {n_slots - 1}")
    if (depths[parents] != depth - 1).any():
        raise ValueError(f"not all parents have depth {depth - 1}")
    return parents
