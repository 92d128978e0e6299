"""How good a residency policy is: replays of it, LRU, LFU and Belady's optimum over recorded texts.

All see the same cycles: an expert that is resident when a cycle begins is a hit, and afterwards the
cache may take in what was used. Belady's (1966) is the optimum *with bypass*: what will be used
later than all that is held is not taken in. Since a cycle's uses count against what was held before
it, that is keeping as many of the intervals between an expert's uses as overlap in no more than
`slots` places, and greedily giving up the one that ends last loses the fewest (Faigle and Nawijn
1995). It is optimal in unique experts, not in pairs of row and expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .experts import unpack
from .hindsight import rank_paths
from .replay import accepted_nodes
from .residency import Residency, Rule, after
from .trace import TracedText
from .tree import BoolArray, FloatArray, IntArray

LRU, LFU, BELADY = "LRU", "LFU", "Belady"


@dataclass(frozen=True)
class Uses:
    """rows: uint8 [cycle, layer, expert], by how many rows each expert was used. committed: tokens
    of each cycle."""

    rows: NDArray[np.uint8]
    committed: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.committed)


@dataclass(frozen=True)
class Hits:
    """Shares of hits among pairs of row and expert, and among the experts of a cycle's union.

    uploads: int64 [layer], experts that were loaded. tokens: committed meanwhile.
    """

    pairs: float
    unique: float
    uploads: NDArray[np.int64]
    tokens: int


def uses_of_chains(texts: Sequence[TracedText], drafts: int, n_experts: int) -> Uses:
    """What `chain:drafts` verifies of the texts; 0 drafts: plain decoding."""
    cycles, committed = [], []
    for text in texts:
        at = 0
        while at < len(text.steps):
            steps = text.steps[at:]
            names = rank_paths(steps[0].tree)
            keep = np.array([len(name) <= drafts and not any(name) for name in names])
            used = unpack(steps[0].experts[keep], n_experts).sum(axis=0, dtype=np.uint8)
            cycles.append(used.reshape(-1, n_experts))
            committed.append(len(accepted_nodes(steps[0].tree.subtree(keep), steps)))
            at += committed[-1]
    return Uses(np.stack(cycles), tuple(committed))


def hits_of_rule(uses: Uses, rule: Rule, begun: Residency | None = None) -> Hits:
    """Of a policy of ours, from `begun` or an empty cache on."""
    held = begun or Residency.empty(*uses.rows.shape[1:])
    residents, uploads = [], np.zeros(len(rule.saved_ms), np.int64)
    for used, committed in zip(uses.rows, uses.committed, strict=True):
        residents.append(held.resident)
        held, loaded = after(held, used, rule, committed)
        uploads += np.bincount(loaded.loads[:, 0], minlength=len(uploads))
    return _hits(uses, np.stack(residents), uploads)


def left_by(uses: Uses, rule: Rule) -> Residency:
    """The residency that the cycles leave behind in a cache that was empty."""
    held = Residency.empty(*uses.rows.shape[1:])
    for used, committed in zip(uses.rows, uses.committed, strict=True):
        held, _ = after(held, used, rule, committed)
    return held


def hits_of_classic(uses: Uses, slots: IntArray, kind: str) -> Hits:
    """Of LRU, which takes in all that is used; LFU, by all uses so far, what is held staying in
    front of equals; or Belady's optimum. All begin empty.

    slots: as of a `Rule`.
    """
    if kind not in (LRU, LFU, BELADY):
        raise ValueError(f"{kind!r} is no policy: {LRU}, {LFU} or {BELADY}")
    after_this = _next_uses(uses.rows) if kind == BELADY else None
    score: FloatArray = np.zeros(uses.rows.shape[1:])
    held = np.zeros(score.shape, np.bool_)
    residents, uploads = [], np.zeros(len(score), np.int64)
    for cycle, rows in enumerate(uses.rows):
        residents.append(held)
        used = rows > 0
        if after_this is not None:
            score = -after_this[cycle].astype(np.float64)
        elif kind == LRU:
            score = np.where(used, cycle + 1.0, score)
        else:
            score = score + used
        known = held | used
        if after_this is not None:
            known &= after_this[cycle] <= len(uses)
        kept = _best_known(score + (0.5 * held if kind == LFU else 0.0), known, slots)
        uploads += (kept & ~held).sum(axis=1)
        held = kept
    return _hits(uses, np.stack(residents), uploads)


def _hits(uses: Uses, residents: BoolArray, uploads: NDArray[np.int64]) -> Hits:
    rows, used = uses.rows, uses.rows > 0
    return Hits(
        pairs=float(rows[residents].sum(dtype=np.int64) / rows.sum(dtype=np.int64)),
        unique=float((used & residents).sum() / used.sum()),
        uploads=uploads,
        tokens=sum(uses.committed),
    )


def _next_uses(rows: NDArray[np.uint8]) -> NDArray[np.int32]:
    """int32 [cycle, layer, expert]: the first use behind each cycle; more than there are cycles:
    none."""
    following = np.empty(rows.shape, np.int32)
    coming = np.full(rows.shape[1:], len(rows) + 1, np.int32)
    for cycle in range(len(rows) - 1, -1, -1):
        following[cycle] = coming
        coming = np.where(rows[cycle] > 0, cycle, coming)
    return following


def _best_known(score: FloatArray, known: BoolArray, slots: IntArray) -> BoolArray:
    """bool [layer, expert]: of what is known the highest scores, as far as there are slots."""
    scores = np.where(known, score, -np.inf).reshape(len(slots), -1)
    best = np.zeros(scores.shape, np.bool_)
    order = np.argsort(-scores, axis=1, kind="stable")
    for group, places in enumerate(slots.tolist()):
        best[group, order[group, :places]] = True
    return best.reshape(known.shape) & known
