"""A tensor as a checkpoint stores it; numpy has no bfloat16, so that its bits are kept beside their
type."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

# By safetensors' names; what else there is stays bytes.
TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in (
        ("F64", "<f8"),
        ("F32", "<f4"),
        ("F16", "<f2"),
        ("BF16", "<u2"),
        ("I64", "<i8"),
        ("I32", "<i4"),
        ("I16", "<i2"),
        ("I8", "i1"),
        ("U8", "u1"),
        ("BOOL", "u1"),
    )
}
FLOATS = ("F16", "BF16", "F32", "F64")
INTEGERS = ("I16", "I32", "I64")
# Values at a time: embeddings can be a gigabyte.
_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class Stored:
    """kind: a key of TYPES, or another name, whose data are bytes. shape: outermost first, which
    the data have as well where their type is known."""

    kind: str
    shape: tuple[int, ...]
    data: NDArray[Any]

    @classmethod
    def of(cls, array: NDArray[Any]) -> Stored:
        """An array of numpy's, of a type that checkpoints have."""
        bare = array.dtype.newbyteorder("<")
        kinds = [name for name, kind in TYPES.items() if kind == bare and name != "BF16"]
        kind = "BOOL" if array.dtype == np.bool_ else kinds[0]
        return cls(kind, array.shape, array)

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    def floats(self) -> NDArray[np.float32]:
        """Its values, if its kind is one of FLOATS; a copy of them where it is not float32."""
        if self.kind == "BF16":
            return (self.data.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return self.data.astype(np.float32, copy=False)

    def is_finite(self) -> bool:
        """Whether all its floats are numbers, in the type they are stored in."""
        step = max(1, _CHUNK // max(1, prod(self.shape[1:])))
        parts = (self.data[at : at + step] for at in range(0, self.shape[0], step))
        if self.kind == "BF16":
            return all(bool(((part & 0x7F80) != 0x7F80).all()) for part in parts)
        return all(bool(np.isfinite(part).all()) for part in parts)
