"""The exact search for the draft subtree to verify. The search itself is `search.cpp`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import numpy as np

from .cost import CycleCost
from .experts import Bitsets
from .native import as_bytes, library
from .tree import BoolArray, FloatArray, IntArray

# So few undecided nodes are settled by looking at all their subsets.
FEW = 6


@dataclass(frozen=True)
class Plan:
    """A subtree to verify.

    keep:      bool [n], ancestor-closed, root included.
    committed: E, expected committed tokens of the cycle: the sum of the kept nodes' chances.
    ms:        T, the predicted time of the cycle.
    proven:    the best plan of all, not merely the best one found within the states allowed.
    states:    search states visited; 0 if the first step settled it.
    """

    keep: BoolArray
    committed: float
    ms: float
    proven: bool
    states: int


class _Found(ctypes.Structure):
    _fields_ = (
        ("committed", ctypes.c_double),
        ("ms", ctypes.c_double),
        ("states", ctypes.c_int64),
        ("proven", ctypes.c_int32),
    )


# What the native search answers instead of 0.
_REFUSALS = {
    1: (ValueError, "a draft node's chance exceeds its parent's"),
    2: (ValueError, "a draft node comes before its parent"),
    3: (ValueError, "the cost tables give the verification of one row no time"),
    4: (MemoryError, "no memory for the search"),
}


_native = library.specfit_best_subtree
_i32, _i64, _f64, _array = ctypes.c_int32, ctypes.c_int64, ctypes.c_double, ctypes.c_char_p
_native.argtypes = (
    *(_i32, _i32, _i32, _array, _array, _array, _array),
    *(_array, _array, _array, _f64),
    *(_i32, _f64, _i32, _i64, _i32, ctypes.c_void_p, ctypes.c_void_p),
)


def best_subtree(
    parents: IntArray,
    chances: FloatArray,
    experts: Bitsets | None,
    unforeseen: FloatArray | None,
    cost: CycleCost,
    *,
    spent_ms: float,
    rate: float | None,
    max_rows: int,
    max_states: int,
) -> Plan:
    """The subtree of the draft tree with the best predicted throughput.

    parents:    [n], parents before children; -1 for a root. There is one for each line, before all
                drafts, and all roots are kept: drafts of all lines compete for the rows.
    chances:    [n], probability that the node is committed; 1 for a root, and never more than the
                parent's.
    experts:    uint64 [n, layer, word], the experts each node is expected to use; None where they
                are no part of the cost.
    unforeseen: [n], weighted number of further experts that no other node shares.
    spent_ms:   time that is paid for whatever is kept: drafting, planning.
    rate:       tokens per ms, for the largest E - rate * T; None for the largest E / T.
    max_rows:   rows that can be verified, roots included; the cost tables limit them too.
    max_states: states after which the search stops.

    With `cost.resident` only missing experts count, and the uses of them.

    For the ratio, row counts that the tables give no positive time even if no expert is new are
    left out.

    Raises ValueError if arrays do not fit together, if a node comes before its parent or its chance
    exceeds its parent's, if not every root may be verified, or if the ratio is asked for and the
    tables give the roots alone no positive time.
    """
    n_lines = int(np.count_nonzero(parents < 0))
    if cost.resident is not None:
        if experts is not None:
            if experts.shape[1:] != cost.resident.shape:
                raise ValueError("the cached experts are of another model")
            experts, unforeseen = cost.paid(experts, unforeseen)
        cost = replace(cost, resident=None)
    if n_lines > 1:
        grafted = _grafted(n_lines, parents, chances, experts, unforeseen, cost)
        plan = best_subtree(
            *grafted,
            spent_ms=spent_ms,
            rate=rate,
            max_rows=max_rows - n_lines + 1,
            max_states=max_states,
        )
        roots = np.ones(n_lines - 1, np.bool_)
        return replace(plan, keep=np.concatenate([roots, plan.keep]))
    size = len(chances)
    layers = len(cost.layer_weights)
    limit = min(max_rows, cost.max_rows, size)
    if limit < 1:
        raise ValueError("every root must be verified, and there are not rows enough")
    words = 0 if experts is None else experts.shape[-1]
    if (
        parents.shape != (size,)
        or chances.shape != (size,)
        or (experts is not None and experts.shape != (size, layers, words))
        or (unforeseen is not None and unforeseen.shape != (size,))
        or len(cost.expert_ms) <= limit
    ):
        raise ValueError("the arrays of a draft tree and its cost do not fit together")
    keep = np.empty(size, np.bool_)
    found = _Found()
    refusal = _native(
        size,
        layers,
        words,
        as_bytes(parents, np.int32),
        as_bytes(chances, np.float64),
        None if experts is None else as_bytes(experts, np.uint64),
        None if unforeseen is None else as_bytes(unforeseen, np.float64),
        as_bytes(cost.layer_weights, np.float64),
        as_bytes(cost.rows_ms, np.float64),
        as_bytes(cost.expert_ms, np.float64),
        spent_ms,
        rate is None,
        0.0 if rate is None else rate,
        limit,
        max_states,
        FEW,
        ctypes.byref(ctypes.c_char.from_buffer(keep.data)),
        ctypes.byref(found),
    )
    if refusal:
        error, message = _REFUSALS[refusal]
        raise error(message)
    return Plan(keep, found.committed, found.ms, bool(found.proven), found.states)


def _grafted(
    n_lines: int,
    parents: IntArray,
    chances: FloatArray,
    experts: Bitsets | None,
    unforeseen: FloatArray | None,
    cost: CycleCost,
) -> tuple[IntArray, FloatArray, Bitsets | None, FloatArray | None, CycleCost]:
    """The trees of several lines as one: its root stands for all roots, which are kept anyway.

    Its chance is their number, its experts are all of theirs, and its row costs what theirs do.
    """
    if (chances[:n_lines] != 1).any() or n_lines > cost.max_rows:
        raise ValueError("every root must be verified, and is certain to be committed")
    first = n_lines - 1
    together = np.maximum(parents[first:] - first, 0)
    together[0] = -1
    chances = chances[first:].copy()
    chances[0] = n_lines
    if experts is not None:
        root = np.bitwise_or.reduce(experts[:n_lines], axis=0)
        experts = np.concatenate([root[None], experts[n_lines:]])
    if unforeseen is not None:
        unforeseen = np.concatenate([[unforeseen[:n_lines].sum()], unforeseen[n_lines:]])
    beyond = replace(cost, rows_ms=cost.rows_ms[first:], expert_ms=cost.expert_ms[first:])
    return together, chances, experts, unforeseen, beyond
