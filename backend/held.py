"""The experts that a model's cache holds, kept up with what its decodes use.

`turn` is called between cycles: what was begun a cycle ago counts from here on, what the decode
used is counted, and what the policy (`planner/residency.py`) wants is begun to be uploaded, beside
the next decode. So residency follows the texts alone, never the clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specfit.models.gguf_info import GgufInfo
from specfit.planner import Bitsets, BoolArray, FloatArray
from specfit.planner.experts import pack_flags
from specfit.planner.residency import UPLOAD_USES, Residency, Rule, after, filled, restored

from .cache import DAMAGE, archived, cache_path, identity, replace_if_possible, unarchived
from .expert_cache import Counters, ExpertCache, slots_within

# Of uploads between two cycles, in bytes: 6 ms of a PCIe 4.0 x16 slot, beside decodes of 7 or more.
# A text that has gone on for a while needs a seventh of it (LOG.md).
CYCLE_BYTES = 128 << 20


@dataclass(frozen=True)
class CacheUse:
    """Of one decode. hits, misses: pairs of a row and an expert. missing: float64 [layer, 2], the
    experts that were missing, and the uses of those. uploaded: bytes begun to be uploaded since."""

    hits: int
    misses: int
    missing: FloatArray
    uploaded: int = 0

    def paid(self, layer_weights: FloatArray, use_share: float) -> float:
        """What was paid for, as `CycleCost.weighted_union` has it."""
        return float(layer_weights @ (self.missing[:, 0] + use_share * self.missing[:, 1]))


NO_USE = CacheUse(0, 0, np.zeros((0, 2)))


class HeldExperts:
    """The slots of a loaded model's cache: so many bytes of GPU memory, or what there is of them.
    lacking: slots that there was no memory for.

    The context must have decoded MAX_ROWS rows before, so that its buffers have their size.
    """

    def __init__(self, cache: ExpertCache, budget: int) -> None:
        slots = cache.allocate(budget)
        self.slots: NDArray[np.int32] = slots
        wanted = slots_within(budget, cache.expert_bytes, cache.shape[1])
        self.lacking = int((wanted - slots).sum())
        self._cache = cache
        bytes_each = cache.expert_bytes
        self._bytes_each: list[int] = bytes_each.tolist()
        self._rule = Rule(
            slots=slots,
            saved_ms=(slots > 0).astype(np.float64),
            upload_ms=UPLOAD_USES,
            bytes_each=bytes_each,
            cycle_bytes=CYCLE_BYTES,
        )
        self._held = Residency.empty(*cache.shape)
        self._coming = np.zeros(cache.shape, np.bool_)
        self.sets: Bitsets = self._held.sets

    @property
    def resident(self) -> BoolArray:
        """bool [layer, expert]: those that the next decode finds on the GPU."""
        return self._held.resident & ~self._coming

    @property
    def share(self) -> float:
        """Of all experts, those that there are slots for."""
        return float(self.slots.sum() / self._held.resident.size)

    @property
    def missing_share(self) -> float:
        """Of the uses that are remembered, those of experts that are not resident; 1 if none."""
        return self._held.missing_share

    def skip(self) -> None:
        """Leaves what was decoded up to now out of account."""
        self._cache.reset()

    def turn(self, committed: int) -> CacheUse:
        """Between cycles, after one that committed so many tokens of all lines."""
        self._arrive()
        uses, sums = self._cache.take_uses()
        hits, _, misses = sums.sum(axis=0).tolist()
        uploaded = 0
        if hits + misses:  # else it took llama.cpp's ordinary path, and says nothing
            self._held, uploads = after(self._held, uses, self._rule, committed)
            for (layer, expert), (_, victim) in zip(
                uploads.loads.tolist(), uploads.victims.tolist(), strict=True
            ):
                if self._begin(layer, expert, victim):
                    uploaded += self._bytes_each[layer]
        self.sets = pack_flags(self.resident)
        return CacheUse(hits, misses, sums[:, 1:].astype(np.float64), uploaded)

    def counted(self) -> CacheUse:
        """What was decoded since `skip` or `turn`."""
        return _use(self._cache.counters())

    def hold(self, wanted: BoolArray) -> None:
        """Makes these experts [layer, expert] resident now, as far as there are slots, and others
        only in slots that are left."""
        self._arrive()
        resident = self._held.resident
        for layer in range(len(wanted)):
            incoming = np.flatnonzero(wanted[layer] & ~resident[layer])
            outgoing = np.flatnonzero(resident[layer] & ~wanted[layer])
            free = int(self._rule.slots[layer] - resident[layer].sum())
            victims = [-1] * free + outgoing.tolist()
            for expert, victim in zip(incoming.tolist(), victims, strict=False):
                resident[layer, expert] = True
                if victim >= 0:
                    resident[layer, victim] = False
                self._begin(layer, expert, victim)
        self._arrive()
        self.sets = pack_flags(self.resident)

    def hold_used(self) -> None:
        """`hold` what was decoded since `skip`."""
        self.hold(self._cache.counters().uses > 0)

    def begin(self, path: Path) -> None:
        """Fills the slots by what the last run has `kept`, if it did."""
        try:
            uses = restored(unarchived(path), self._rule, *self._cache.shape).uses
        except DAMAGE:
            uses = np.zeros(self._cache.shape)
        self.begin_with(uses)

    def begin_with(self, uses: FloatArray) -> None:
        """Fills the slots as if these uses [layer, expert] were all that is remembered: residency
        follows from them and from what is decoded from here on."""
        held = filled(uses, self._rule)
        self.hold(held.resident)
        self._held = replace(held, resident=self._held.resident)
        self.skip()

    @property
    def uses(self) -> FloatArray:
        """float64 [layer, expert]: what is remembered, for `begin_with`."""
        return self._held.uses

    def keep(self, path: Path) -> None:
        """Keeps the uses of experts for `begin`; losing them costs a few dozen tokens' hits."""
        replace_if_possible(path, archived(self._held.state()))

    def trouble(self) -> str | None:
        """A sentence for the user that was not told yet."""
        return self._cache.trouble()

    def _begin(self, layer: int, expert: int, victim: int) -> bool:
        begun = self._cache.swap(layer, expert, victim)
        if begun:
            self._coming[layer, expert] = True
        else:
            self._held.resident[layer, expert] = False
        return begun

    def _arrive(self) -> None:
        """What was begun counts from now on."""
        if not self._coming.any():
            return
        self._coming[:] = False
        if self._cache.commit():
            return
        # Slots whose uploads failed are given up.
        resident = self._cache.residency
        self._held.resident[:] = resident
        self._rule = replace(self._rule, slots=resident.sum(axis=1).astype(np.int32))


def _use(counted: Counters) -> CacheUse:
    misses = counted.misses
    missing = np.stack([(misses > 0).sum(axis=1), misses.sum(axis=1)], axis=1)
    return CacheUse(int(counted.hits.sum()), int(misses.sum()), missing.astype(np.float64))


def uses_path(info: GgufInfo) -> Path:
    """Where the uses of a model's experts are kept."""
    return cache_path("experts", [1, *identity(info.path)], ".npz")


def cacheable(info: GgufInfo) -> bool:
    """Whether the cache knows how this model multiplies with its experts."""
    names = {tensor.name for tensor in info.tensors if "_exps." in tensor.name}
    layers = {name.split(".ffn_")[0] for name in names}
    parts = ("gate", "up", "down")
    known = {f"{layer}.ffn_{part}_exps.weight" for layer in layers for part in parts}
    return bool(names) and names == known
