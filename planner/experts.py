"""Sets of experts as bitsets.

Which experts some tokens use at every layer is a uint64 array [..., layer, word]: bit e of the
row is set when expert e is used. Unions are bitwise ors; sizes are population counts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Bitsets = NDArray[np.uint64]
WORD = 64


def n_words(n_experts: int) -> int:
    """Words a set of `n_experts` takes."""
    return -(-n_experts // WORD)


def pack(ids: NDArray[np.integer], n_experts: int) -> Bitsets:
    """Bitsets uint64 [..., word] of expert ids [..., k].

    Raises ValueError for an id outside [0, n_experts).
    """
    if ids.size and (ids.min() < 0 or ids.max() >= n_experts):
        raise ValueError(f"expert ids must be in [0, {n_experts})")
    shape = (*ids.shape[:-1], n_words(n_experts))
    flags = np.zeros((math.prod(shape[:-1]), shape[-1] * WORD), np.uint8)
    rows = np.arange(len(flags))[:, None] * flags.shape[1]
    flags.reshape(-1)[rows + ids.reshape(len(flags), ids.shape[-1])] = 1
    words = np.packbits(flags, axis=1, bitorder="little").view("<u8")
    return words.astype(np.uint64, copy=False).reshape(shape)


def pack_flags(flags: NDArray[np.bool_]) -> Bitsets:
    """Bitsets uint64 [..., word] of the experts that are set in flags [..., expert]."""
    packed = np.packbits(flags, axis=-1, bitorder="little")
    words = np.zeros((*packed.shape[:-1], n_words(flags.shape[-1]) * (WORD // 8)), np.uint8)
    words[..., : packed.shape[-1]] = packed
    return words.view("<u8").astype(np.uint64, copy=False)


def sizes(sets: Bitsets) -> NDArray[np.int64]:
    """int64 [...]: how many experts are in each set [..., word]."""
    return np.bitwise_count(sets).sum(axis=-1, dtype=np.int64)


def union_per_layer(sets: Bitsets) -> NDArray[np.int64]:
    """int64 [layer]: size of the union over the nodes of `sets` [node, layer, word]."""
    return sizes(np.bitwise_or.reduce(sets, axis=0))


def unpack(sets: Bitsets, n_experts: int) -> NDArray[np.uint8]:
    """uint8 [..., layer * expert]: 1 where an expert is in the set [..., layer, word]."""
    little = np.ascontiguousarray(sets, "<u8").view(np.uint8)
    flags = np.unpackbits(little, axis=-1, count=n_experts, bitorder="little")
    return flags.reshape(*sets.shape[:-2], sets.shape[-2] * n_experts)


def best(scores: NDArray[np.float32], n_used: int) -> Bitsets:
    """uint64 [..., word]: of scores [..., expert] the `n_used` highest, and what equals the last.

    Sorts float32: numpy does that with vector instructions, several times faster than argpartition.
    """
    n_experts = scores.shape[-1]
    least = np.sort(scores, axis=-1)[..., n_experts - n_used, None]
    packed = np.packbits(scores >= least, axis=-1, bitorder="little")
    if n_experts % WORD:
        words = np.zeros((*packed.shape[:-1], n_words(n_experts) * (WORD // 8)), np.uint8)
        words[..., : packed.shape[-1]] = packed
        packed = words
    return packed.view("<u8").astype(np.uint64, copy=False)
