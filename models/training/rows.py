"""Rows of tokens: conversations packed to one length, as the corpus leaves them on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rows:
    """tokens: uint16 [n, length]. fill: int32 [n], how many of a row's tokens are used.

    mask: uint8 [n, length], 1 for the tokens of answers, <|im_end|> included; None if not known.
    Raises ValueError if the arrays do not fit each other.
    """

    tokens: NDArray[np.uint16]
    fill: NDArray[np.int32]
    mask: NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        if self.tokens.ndim != 2 or self.fill.shape != (len(self.tokens),):
            raise ValueError(f"tokens {self.tokens.shape} and fill {self.fill.shape} do not fit")
        if self.mask is not None and self.mask.shape != self.tokens.shape:
            raise ValueError(f"tokens {self.tokens.shape} and mask {self.mask.shape} do not fit")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        return int(self.tokens.shape[1])

    @property
    def n_tokens(self) -> int:
        """Tokens used, in all rows."""
        return int(self.fill.sum())

    @classmethod
    def load(cls, path: Path) -> Rows:
        """Reads what `save` wrote. Raises OSError, ValueError or KeyError for anything else."""
        with np.load(path) as file:
            mask = file["mask"].astype(np.uint8) if "mask" in file else None
            return cls(file["rows"].astype(np.uint16), file["fill"].astype(np.int32), mask)

    def save(self, path: Path) -> None:
        """Writes a .npz file; `path` must end so."""
        if self.mask is None:
            np.savez(path, rows=self.tokens, fill=self.fill)
        else:
            np.savez(path, rows=self.tokens, fill=self.fill, mask=self.mask)
