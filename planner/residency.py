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

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .experts import Bitsets, pack_flags
from .tree import BoolArray, FloatArray, IntArray

# Tokens after which a use counts half. Replays are flat from 24 to 64.
HALF_LIFE = 40.0
# What an upload must save, in uses of the expert. Half a use costs no hits in replays, and spares
# two uploads in five; a whole one spares three, and costs up to a hit in two hundred.
UPLOAD_USES = 0.5


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
    tokens.
    """
    uses: FloatArray = np.add(held.uses * rule.decay**committed, used, dtype=np.float64)
    worth = uses * rule.saved_ms[:, None]
    resident = held.resident.copy()
    groups = len(rule.slots)
    worths = worth.reshape(groups, -1)
    inside = resident.reshape(groups, -1)
    free = rule.slots - np.count_nonzero(inside, axis=1)
    # What is inside is defended by its worth. What has just come in is not put out again.
    defence = np.where(inside, worths, np.inf)
    lowest = np.where(free > 0, 0.0, defence.min(axis=1))
    eager = np.flatnonzero((worths > lowest[:, None] + rule.upload_ms) & ~inside)
    eager = eager[np.argsort(-worth.reshape(-1)[eager], kind="stable")]
    left = np.inf if rule.cycle_bytes is None else rule.cycle_bytes
    n_experts, width = worth.shape[1], worths.shape[1]
    loads, victims = [], []
    for expert in eager.tolist():
        layer, group = expert // n_experts, expert // width
        left -= rule.bytes_each[layer]
        if left < 0:
            break
        victim = -1
        if free[group] > 0:
            free[group] -= 1
        else:
            place = int(defence[group].argmin())
            # Written so that a cache without any place (all defences infinite) takes nothing.
            if not worths[group, expert % width] > defence[group, place] + rule.upload_ms:
                left += rule.bytes_each[layer]
                continue
            defence[group, place] = np.inf
            victim = group * width + place
            resident.reshape(-1)[victim] = False
        resident.reshape(-1)[expert] = True
        loads.append(expert)
        victims.append(victim)
    return Residency(uses, resident), Uploads(_pairs(loads, n_experts), _pairs(victims, n_experts))


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


def _pairs(flat: list[int], n_experts: int) -> IntArray:
    pairs = [divmod(at, n_experts) if at >= 0 else (-1, -1) for at in flat]
    return np.array(pairs, np.int32).reshape(-1, 2)
