"""The likeliest of many tokens, with their probabilities, from logits.

A drafted level asks for some of a hundred thousand values a row: half a page of C (`likeliest.c`),
compiled at first use, takes a fifth of the time that numpy does, which is there without a compiler.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import native
from .errors import SpecfitError

Floats = NDArray[np.float32]
Places = NDArray[np.int64]
Probs = NDArray[np.float64]

NATIVE = native.Native(
    "likeliest",
    "drafts take longer",
    "C",
    (Path(__file__).with_name("likeliest.c"),),
    flags=("-O3", "-fno-math-errno", "-fno-trapping-math"),
)
_BLOCK = 64


def likeliest(logits: Floats, ids: NDArray[np.int32] | None, k: int) -> tuple[Places, Probs]:
    """Of each row of `logits` [m, n], or those of its values that `ids` names, the k largest, best
    first, ties to the lower: their places (within ids) [m, k] and softmax probabilities [m, k];
    fewer if there are fewer."""
    function = _native()
    if function is None:
        return plainly(logits, ids, k)
    logits = np.ascontiguousarray(logits)
    m, n = logits.shape[0], logits.shape[1] if ids is None else len(ids)
    k = min(k, n)
    places, probs = np.empty((m, k), np.int64), np.empty((m, k))
    scratch = np.empty(n, np.float32)
    function(
        _address(logits),
        m,
        logits.shape[1],
        None if ids is None else _address(ids),
        n,
        k,
        _address(scratch),
        _address(places),
        _address(probs),
    )
    return places, probs


def _address(array: NDArray[Any]) -> int:
    """Of a writable array; `array.ctypes.data` takes three times as long."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array.data))


@functools.cache
def _native() -> Callable[..., None] | None:
    """None where it cannot be compiled."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    kind = ctypes.CFUNCTYPE(
        None, *(pointer, number, number, pointer, number, number, pointer, pointer, pointer)
    )
    try:
        function: Callable[..., Any] = kind(("specfit_likeliest", native.loaded(NATIVE)))
    except SpecfitError:
        return None
    return function


def plainly(logits: Floats, ids: NDArray[np.int32] | None, k: int) -> tuple[Places, Probs]:
    """What `likeliest` returns, by numpy alone."""
    drafted = logits if ids is None else logits[:, ids]
    k = min(k, drafted.shape[1])
    top = drafted.max(1, keepdims=True)
    total = np.exp(drafted - top).sum(1, keepdims=True, dtype=np.float64)
    places = np.stack([_largest(row, k) for row in drafted])
    values = np.take_along_axis(drafted, places, 1)
    return places, np.exp((values - top).astype(np.float64)) / total


def _largest(row: Floats, k: int) -> Places:
    """Among the blocks with the k largest maxima are the k largest values."""
    n = len(row)
    whole = n // _BLOCK * _BLOCK
    candidates = np.arange(n)
    if k * _BLOCK * 2 < whole:
        maxima = row[:whole].reshape(-1, _BLOCK).max(1)
        blocks = np.flatnonzero(maxima >= np.partition(maxima, -k)[-k])
        candidates = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
        candidates = np.concatenate([candidates, np.arange(whole, n)])
    values = row[candidates]
    kept = candidates[values >= np.partition(values, -k)[-k]]
    return kept[np.argsort(-row[kept], kind="stable")][:k]
