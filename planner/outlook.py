"""What one more level may bring: how good the best child of a node will be, before it is drafted.

Some tokens nearly decide what follows them, others leave everything open; and a head that was sure
of a token tends to be sure of the next one. The mean chance of a token's best child, and the node's
own chance, give the outlook by a regression learned online.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .acceptance import TOGETHER
from .regression import RunningRegression
from .tree import DraftTree, FloatArray, IntArray

# Sightings of a token that weigh as much as the mean of all tokens, and how many count at most.
SHRINKAGE, MOST = 3.0, 50.0
MEMORY = 1000.0
ZERO = np.zeros(1, np.intp)
# At first: half of a token's own mean, half of what is usual.
_PRIOR = np.array([0.25, 0.5, 0.1])
_DEVIATIONS = np.array([0.3, 0.3, 0.3])
# Kinds of roots that stand for all; and how means of tokens that were not met may lie about that of
# those that were.
KINDS = 31
_SPREAD = np.array([-0.3, 0.0, 0.3])


class Outlook:
    """Chances of best children, learned from drafted levels."""

    def __init__(self) -> None:
        self._mean = 0.5
        self._sums = np.zeros(0)
        self._seen = np.zeros(0)
        self._regression = RunningRegression(_PRIOR, _DEVIATIONS, MEMORY)
        self._news: list[tuple[DraftTree, FloatArray]] = []

    def best_child(self, tokens: IntArray, chances: FloatArray) -> FloatArray:
        """float64 [m]: chance to expect of the best child behind each of some nodes, given that
        they are accepted; chances [m] are their own, given their parents."""
        hoped = self._signals(tokens, chances) @ self._regression.theta
        return np.minimum(np.maximum(hoped, 0.01), 0.99)

    def behind(self, token: int) -> float:
        """The same for a single node that is certain, without arrays: every cycle asks for it."""
        base, by_token, by_chance = self._regression.theta.tolist()
        total, seen = SHRINKAGE * self._mean, SHRINKAGE
        if token < len(self._sums):
            total, seen = total + self._sums.item(token), seen + self._seen.item(token)
        return min(max(base + by_token * total / seen + by_chance, 0.01), 0.99)

    def typical(self, lines: int) -> list[list[float]]:
        """Chances of the best children behind the roots of so many lines, in cycles that stand for
        all: of one line each kind of root in a cycle of its own, of many all kinds in one."""
        base, by_token, by_chance = self._regression.theta
        tokens = np.flatnonzero(self._seen)
        own = (self._sums[tokens] + SHRINKAGE * self._mean) / (self._seen[tokens] + SHRINKAGE)
        own = np.concatenate([own, np.clip(self._mean + _SPREAD, 0.0, 1.0)])
        often = np.concatenate([self._seen[tokens], np.full(len(_SPREAD), SHRINKAGE)])
        order = np.argsort(own)
        n = lines if lines > 1 else KINDS
        shares = (np.arange(n) + 0.5) / n * often.sum()
        middle = own[order][np.searchsorted(often[order].cumsum(), shares)]
        hopes = np.clip(base + by_token * middle + by_chance, 0.01, 0.99).tolist()
        return [hopes] if lines > 1 else [[hope] for hope in hopes]

    def learn(self, tree: DraftTree, conditional: FloatArray) -> None:
        """Learns from the head's last level of `tree`, freshly drafted, by nodes' chances [n]."""
        self._news.append((tree, conditional))
        if len(self._news) == TOGETHER:
            self._learn_news()

    def _learn_news(self) -> None:
        levels = [_best_children(tree, conditional) for tree, conditional in self._news]
        self._news.clear()
        if not levels:
            return
        tokens, chances, best, weights = map(np.concatenate, zip(*levels, strict=True))
        self._regression.learn(self._signals(tokens, chances), best, weights)
        self._mean += 0.02 * len(levels) * (float(best.mean()) - self._mean)
        for token, chance in zip(tokens.tolist(), best.tolist(), strict=True):
            if self._seen[token] >= MOST:
                self._sums[token] *= 1 - 1 / MOST
                self._seen[token] -= 1
            self._sums[token] += chance
            self._seen[token] += 1

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What was learned, to be kept for the pair of models."""
        self._learn_news()
        return {
            "regression": self._regression.state(),
            "mean": np.array(self._mean),
            "sums": self._sums.astype(np.float32),
            "seen": self._seen.astype(np.float32),
        }

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Takes over what `state` gave; raises ValueError or KeyError if that is not so."""
        sums, seen = (np.asarray(state[key], np.float64) for key in ("sums", "seen"))
        mean = float(state["mean"])
        finite = np.isfinite(sums).all() and np.isfinite(seen).all() and 0 <= mean <= 1
        if sums.ndim != 1 or sums.shape != seen.shape or not finite or (seen < 0).any():
            raise ValueError("the kept outlook is damaged")
        self._regression.restore(np.asarray(state["regression"], np.float64))
        self._sums, self._seen, self._mean = sums, seen, mean

    def _signals(self, tokens: IntArray, chances: FloatArray) -> FloatArray:
        self._reserve(int(tokens.max()) + 1)
        own = (self._sums[tokens] + SHRINKAGE * self._mean) / (self._seen[tokens] + SHRINKAGE)
        signals = np.ones((len(tokens), 3))
        signals[:, 1], signals[:, 2] = own, chances
        return signals

    def _reserve(self, n: int) -> None:
        if n > len(self._sums):
            more = max(n, 2 * len(self._sums)) - len(self._sums)
            self._sums = np.concatenate([self._sums, np.zeros(more)])
            self._seen = np.concatenate([self._seen, np.zeros(more)])


def _best_children(
    tree: DraftTree, conditional: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Of the nodes that have children in the head's last level: tokens, own chances, those of their
    best children, and how much they matter; each [m]."""
    # The children of a node stand side by side.
    if tree.named is None:
        first = int(np.searchsorted(tree.depths, tree.depths[-1]))
        level, chances = tree.parents[first:], conditional[first:]
    else:
        depth = tree.depths[np.flatnonzero(tree.expanded)[-1]]
        of_level = tree.expanded[tree.parents] & (tree.depths == depth + 1)
        level, chances = tree.parents[of_level], conditional[of_level]
    starts = np.concatenate([ZERO, np.flatnonzero(level[1:] != level[:-1]) + 1])
    parents, best = level[starts], np.maximum.reduceat(chances, starts)
    # Likely nodes are those that get grown further.
    weights = 10 * tree.path_products(conditional)[parents]
    return tree.tokens[parents], conditional[parents], best, weights
