"""Which experts lie in the GPU's cache: decided between cycles, never within one.

An expert's worth is what it would save while the memory of its uses lasts: uses are counted and
fade with every committed token, so sum(decay ** age) over past uses is also what to expect of the
coming 1 / (1 - decay) tokens, and worth = uses * saved_ms of its layer. (Frequency that fades lies
between LFU and LRU: Lee et al. 2001, LRFU.) An expert comes in only against the one of lowest
worth, only if it is worth more by what the upload costs, which keeps near-equals from taking turns,
and only as far as the bytes of a cycle go. All are pure functions: the same uses give the same
residency.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .experts import Bitsets, pack_flags
from .native import as_bytes, library
from .tree import BoolArray, FloatArray, IntArray

# Tokens after which a use counts half. Replays are flat from 24 to 64.
HALF_LIFE = 40.0
# What an upload must save, in uses of the expert. Half a use costs no hits in replays, and spares
# two uploads in five; a whole one spares three, and costs up to a hit in two hundred.
UPLOAD_USES = 0.5

_native = library.specfit_residency_after
_i32, _f64, _array, _address = ctypes.c_int32, ctypes.c_double, ctypes.c_char_p, ctypes.c_void_p
_native.argtypes = (
    *(_i32, _i32, _i32, _array, _f64, _array, _f64),
    *(_array, _f64, _array, _address, _address, _i32, _address, _address),
)


@dataclass(frozen=True)
class Rule:
    """slots: int [1], how many experts the cache holds of any layer; or [layer], of each.

    saved_ms:    float64 [layer], what a use costs less when the expert is in the cache; 0 for a
                 layer that does not go through it.
    upload_ms:   what an upload must save to be made.
    bytes_each:  int64 [layer], of an expert.
    cycle_bytes: how many bytes may be uploaded between two cycles; None: any number.
    decay:       what is left of a use after a committed token.
    """

    slots: IntArray
    saved_ms: FloatArray
    upload_ms: float
    bytes_each: NDArray[np.int64]
    cycle_bytes: int | None = None
    decay: float = 0.5 ** (1 / HALF_LIFE)

    def __post_init__(self) -> None:
        layers = len(self.saved_ms)
        if self.slots.shape not in ((1,), (layers,)) or self.bytes_each.shape != (layers,):
            raise ValueError("slots are of all layers together, or of each; bytes of each")
        if not 0 <= self.decay <= 1 or (self.slots < 0).any():
            raise ValueError("slots cannot be fewer than none, nor uses grow by themselves")

    @cached_property
    def most_loads(self) -> float:
        """How many experts the bytes of a cycle are enough for at most."""
        least = float(self.bytes_each[self.saved_ms > 0].min(initial=np.iinfo(np.int64).max))
        return math.inf if self.cycle_bytes is None or not least else self.cycle_bytes // least


@dataclass(frozen=True)
class Residency:
    """uses: float64 [layer, expert], faded. resident: bool [layer, expert]."""

    uses: FloatArray
    resident: BoolArray

    @classmethod
    def empty(cls, n_layers: int, n_experts: int) -> Residency:
        shape = (n_layers, n_experts)
        return cls(np.zeros(shape), np.zeros(shape, np.bool_))

    @property
    def sets(self) -> Bitsets:
        """uint64 [layer, word]: the resident experts."""
        return pack_flags(self.resident)

    @property
    def missing_share(self) -> float:
        """Of the uses that are remembered, those whose expert is not resident; 1 if none are."""
        total = float(self.uses.sum())
        return 1 - float(self.uses[self.resident].sum()) / total if total else 1.0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What a next run can begin with, for `restored`."""
        return {"uses": self.uses.astype(np.float32)}


@dataclass(frozen=True)
class Uploads:
    """Experts to load, the most worth first, and what each takes the place of.

    loads, victims: int32 [m, 2], layer and expert; a victim of -1, -1 is a slot that was free.
    """

    loads: IntArray
    victims: IntArray

    def __len__(self) -> int:
        return len(self.loads)


def after(
    held: Residency, used: NDArray[np.number], rule: Rule, committed: int = 1
) -> tuple[Residency, Uploads]:
    """The residency for the next cycle, and how to get there.

    used: [layer, expert], rows that used each expert in the cycle before, which committed so many
    tokens. Computed by `residency.cpp`. Raises ValueError if shapes do not fit together.
    """
    layers, experts = held.uses.shape
    if np.shape(used) != (layers, experts) or rule.saved_ms.shape != (layers,):
        raise ValueError("uses, residency and rule are of different models")
    uses = np.array(held.uses, np.float64, order="C")
    resident = np.array(held.resident, np.bool_, order="C")
    most = int(min(uses.size, rule.most_loads))
    loads, victims = np.empty((2, most + 1, 2), np.int32)  # a victim is written before its load
    n = _native(
        *(len(rule.slots), layers, experts),
        *(as_bytes(used, np.float64), rule.decay**committed),
        *(as_bytes(rule.saved_ms, np.float64), rule.upload_ms),
        as_bytes(rule.bytes_each, np.int64),
        math.inf if rule.cycle_bytes is None else rule.cycle_bytes,
        as_bytes(rule.slots, np.int32),
        *(uses.ctypes.data, resident.ctypes.data, most, loads.ctypes.data, victims.ctypes.data),
    )
    if n < 0:
        raise MemoryError("no memory to decide which experts to load")
    return Residency(uses, resident), Uploads(loads[:n], victims[:n])


def filled(uses: FloatArray, rule: Rule) -> Residency:
    """Of a run that begins: the experts of most worth, as far as there are slots, by `uses` [layer,
    expert] of the last run. Slots that are left take any others: a guess is a hit now and then."""
    saving = np.broadcast_to(rule.saved_ms[:, None], uses.shape).reshape(len(rule.slots), -1)
    worth = uses.reshape(saving.shape) * saving
    resident = np.zeros(worth.shape, np.bool_)
    for group, places in enumerate(rule.slots.tolist()):
        best = np.lexsort((-saving[group], -worth[group]))[:places]
        resident[group, best] = saving[group, best] > 0
    return Residency(uses.astype(np.float64), resident.reshape(uses.shape))


def restored(
    state: Mapping[str, NDArray[np.generic]], rule: Rule, n_layers: int, n_experts: int
) -> Residency:
    """`filled` by what `Residency.state` gave. Raises ValueError if that is not of this model."""
    uses = np.asarray(state.get("uses"), np.float64)
    if uses.shape != (n_layers, n_experts) or not np.isfinite(uses).all() or (uses < 0).any():
        raise ValueError("the kept uses of experts are damaged, or of another model")
    return filled(uses, rule)
