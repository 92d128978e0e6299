"""The planner's C++, which the package's build compiles and puts beside this file."""

from __future__ import annotations

import ctypes
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, DTypeLike


def _loaded() -> ctypes.CDLL:
    path = Path(__file__).with_name("_native" + EXTENSION_SUFFIXES[0])
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"the planner is not compiled: run `make setup` ({error})") from error


library = _loaded()


def as_bytes(array: ArrayLike, dtype: DTypeLike) -> bytes:
    """The elements in C order, to be read by a function that takes `c_char_p`: the address of bytes
    costs a tenth of what an array's does."""
    return np.asarray(array, dtype).tobytes()
