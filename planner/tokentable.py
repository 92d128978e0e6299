"""What every token used before, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .tree import IntArray

# Tokens that are remembered; the oldest make room. 8192 tokens of 48 layers with 128 experts take
# 50 MB, of 10 layers 10 MB; pages that were never written take none.
CAPACITY = 8192
# Sightings after which a token's shares turn into a decaying mean.
MEMORY = 40
CERTAIN = 255
# Never seen, seen seldom, and seen OFTEN.
FAMILIARITIES = 3
OFTEN = 4

Floats = NDArray[np.float32]


class TokenTable:
    """For every token the shares of its sightings in which it used each expert of each layer."""

    def __init__(self, n_outputs: int) -> None:
        """n_outputs: layers times experts."""
        self._slots: dict[int, int] = {}
        self.shares = np.zeros((CAPACITY + 1, n_outputs), np.uint8)  # of CERTAIN
        self.sightings = np.zeros(CAPACITY + 1, np.int32)
        # By slot: what the table's word weighs, what is usual counting as one sighting; and whether
        # the token was seen never, seldom, or often. The last slot is that of unknown tokens.
        self.trust = np.zeros(CAPACITY + 1, np.float32)
        self.familiarity = np.zeros(CAPACITY + 1, np.intp)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, token: int) -> bool:
        return token in self._slots

    def slots(self, tokens: IntArray) -> NDArray[np.intp]:
        """Rows of `shares` and `sightings` [m]; never seen ones share an empty row."""
        unknown = len(self.shares) - 1
        return np.array([self._slots.get(token, unknown) for token in tokens.tolist()], np.intp)

    def expected(self, slots: NDArray[np.intp], usual: Floats) -> Floats:
        """float32 [m, output]: shares by the table and by what is usual [output]."""
        trust = self.trust[slots][:, None]
        shares = np.multiply(self.shares[slots], trust / CERTAIN, dtype=np.float32)
        shares += (1 - trust) * usual
        return shares

    def learn(self, tokens: IntArray, used: NDArray[np.uint8]) -> None:
        """Tokens int32 [m] used uint8 [m, output]."""
        if not len(tokens):
            return
        order = np.argsort(tokens, kind="stable")
        used, tokens = used[order], tokens[order]
        first = np.flatnonzero(np.diff(tokens, prepend=tokens[0] - 1))
        times = np.diff(first, append=len(tokens))
        slots = np.array([self._renewed(token) for token in tokens[first].tolist()], np.intp)
        alike = len(first) < len(tokens)  # some token more than once
        sums = np.add.reduceat(used, first, axis=0, dtype=np.float32) if alike else used
        before = np.minimum(self.sightings[slots], MEMORY)
        weight = (before / (before + times)).astype(np.float32)[:, None]
        shares = self.shares[slots] * weight
        shares += sums * (CERTAIN / (before + times)).astype(np.float32)[:, None]
        self.shares[slots] = np.rint(shares, out=shares)
        self._count(slots, before + times)

    def _count(self, slots: NDArray[np.intp], sightings: NDArray[np.integer]) -> None:
        self.sightings[slots] = sightings
        self.trust[slots] = sightings / (sightings + 1)
        self.familiarity[slots] = (sightings > 0).astype(np.intp) + (sightings >= OFTEN)

    def _renewed(self, token: int) -> int:
        """The slot of a token that is now the newest; dicts keep order, the oldest is first."""
        slot = self._slots.pop(token, None)
        if slot is None:
            slot = len(self._slots)
            if slot == len(self.shares) - 1:
                slot = self._slots.pop(next(iter(self._slots)))
            self.sightings[slot] = 0
        self._slots[token] = slot
        return slot

    def state(self) -> dict[str, NDArray[np.generic]]:
        """tokens int32 [m], oldest first; shares uint8 [m, output]; sightings int32 [m]."""
        slots = np.array(list(self._slots.values()), np.intp)
        return {
            "tokens": np.array(list(self._slots), np.int32),
            "shares": self.shares[slots],
            "sightings": self.sightings[slots],
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Takes the newest that fit. Raises ValueError if a token is there twice or never seen."""
        room = len(self.shares) - 1
        tokens, shares, sightings = (
            state[name][-room:] for name in ("tokens", "shares", "sightings")
        )
        slots = {token: slot for slot, token in enumerate(tokens.tolist())}
        if len(slots) < len(tokens) or (sightings.astype(np.int64) < 1).any():
            raise ValueError("tokens are there twice, or were never seen")
        self._slots = slots
        self.shares[: len(tokens)] = shares
        self.familiarity[:] = self.trust[:] = self.sightings[:] = 0
        self._count(np.arange(len(tokens)), sightings.astype(np.int32))
