"""What the engine wants of a draft head.

`gguf_head.GgufHead` computes it in llama.cpp; `models.eagle3.Eagle3Head`, which says what
everything means, in PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray


class Head(Protocol):
    """One line's draft head: its cache of committed pairs, and a tree behind them."""

    @property
    def taps(self) -> tuple[int, int, int]: ...

    @property
    def n_features(self) -> int: ...

    @property
    def n_bytes(self) -> int: ...

    @property
    def n_pairs(self) -> int: ...

    def copies(self, n: int) -> Sequence[Self]: ...

    def close(self) -> None: ...

    def truncate(self, n: int) -> None: ...

    def adopt(self, other: Self, n: int) -> None: ...

    def synchronize(self) -> None: ...

    def kept(self) -> NDArray[np.uint8]: ...

    def restore(self, kept: NDArray[np.uint8]) -> None: ...

    def states(self, start: int, stop: int) -> NDArray[np.float32]: ...

    def commit(
        self, features: NDArray[np.float32], next_tokens: Sequence[int] | NDArray[np.integer]
    ) -> None: ...

    def begin_tree(self) -> None: ...

    def propose(self, k: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]: ...

    def expand(
        self,
        parent_slots: NDArray[np.int32] | list[int],
        tokens: Sequence[int] | NDArray[np.integer],
        depth: int,
        k: int,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]: ...
