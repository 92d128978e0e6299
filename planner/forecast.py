"""Which experts a draft token will use, before it is verified.

Two signals in this first forecast. A token that was seen before is expected to use the experts
that it used last time. A token that was not is expected to share its parent's experts and to bring
some of its own; how many is learned, and priced as `unforeseen`.

What the planner pays for is the *union* of a subtree, so the forecast is scaled to be right on
unions: `scale` follows the ratio of the observed to the forecast growth of the union.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .experts import Bitsets, n_words, union_per_layer
from .tree import DraftTree, FloatArray

# Tokens whose experts are remembered; the oldest make room. 8192 of 48 layers take 6 MB.
CAPACITY = 8192


@dataclass(frozen=True)
class ExpertForecast:
    """Experts expected of every node of a tree.

    sets:       uint64 [n, layer, word].
    unforeseen: float64 [n], weighted number of further experts that no other node is known to use.
    """

    sets: Bitsets
    unforeseen: FloatArray

    def with_likenesses(self, nodes: NDArray[np.integer]) -> ExpertForecast:
        """Adds a node for each of `nodes` that uses the same experts, so none that are new."""
        return ExpertForecast(
            np.concatenate([self.sets, self.sets[nodes]]),
            np.concatenate([self.unforeseen, np.zeros(len(nodes))]),
        )

    def only(self, keep: NDArray[np.bool_]) -> ExpertForecast:
        """Of the nodes of keep [n]."""
        return ExpertForecast(self.sets[keep], self.unforeseen[keep])

    def weighted_union(self, keep: NDArray[np.bool_], layer_weights: FloatArray) -> float:
        """Sum over layers of weight times union, of the nodes of keep [n]."""
        union = union_per_layer(self.sets[keep])
        return float(layer_weights @ union + self.unforeseen[keep].sum())


class Forecast:
    """Learns tokens' experts from observed cycles."""

    def __init__(self, n_layers: int, n_experts: int, n_used: int, layer_weights: FloatArray):
        self._n_experts = n_experts
        self._n_used = n_used
        self._weights = layer_weights
        self._slots: dict[int, int] = {}
        self._table = np.zeros((CAPACITY, n_layers, n_words(n_experts)), np.uint64)
        # New experts a layer that an unknown token brings, and observed over forecast growth.
        self._novelty = n_used / 2
        self._scale = 1.0

    def knows(self, tokens: NDArray[np.int32]) -> bool:
        """Whether all of `tokens` were observed before: nothing is to be learned from them."""
        return all(token in self._slots for token in tokens.tolist())

    def of(self, tree: DraftTree) -> ExpertForecast:
        sets = np.zeros((len(tree), *self._table.shape[1:]), np.uint64)
        unforeseen = np.zeros(len(tree))
        unknown_cost = self._novelty * float(self._weights.sum())
        for node, token in enumerate(tree.tokens.tolist()):
            slot = self._slots.get(token)
            if slot is not None:
                sets[node] = self._table[slot]
            elif node == 0:
                unforeseen[node] = self._n_used * float(self._weights.sum())
            else:
                sets[node] = sets[tree.parents[node]]
                unforeseen[node] = unknown_cost
        return ExpertForecast(sets, unforeseen)

    @property
    def scale(self) -> float:
        """What to multiply the forecast growth of a union by."""
        return self._scale

    def learn(self, tree: DraftTree, forecast: ExpertForecast | None, seen: Bitsets) -> None:
        """Learns from what a verified `tree` used, uint64 [n, layer, word].

        forecast: what was expected of this very tree.
        """
        if forecast is not None and len(tree) > 1:
            self._learn_growth(forecast, seen, tree)
        for node, token in enumerate(tree.tokens.tolist()):
            slot = self._slots.pop(token, None)
            if slot is None:
                full = len(self._slots) == CAPACITY
                slot = self._slots.pop(next(iter(self._slots))) if full else len(self._slots)
            self._slots[token] = slot  # re-inserted last: dicts keep order, the oldest is first
            self._table[slot] = seen[node]

    def _learn_growth(self, forecast: ExpertForecast, seen: Bitsets, tree: DraftTree) -> None:
        weights = self._weights
        everyone = np.ones(len(tree), np.bool_)
        root = everyone.copy()
        root[1:] = False
        expected = forecast.weighted_union(everyone, weights) - forecast.weighted_union(
            root, weights
        )
        observed = float(weights @ (union_per_layer(seen) - union_per_layer(seen[:1])))
        if expected > 0:
            self._scale += 0.05 * (np.clip(observed / expected, 0.25, 4.0) - self._scale)
        unknown = forecast.unforeseen > 0
        unknown[0] = False  # the root's number of experts is certain
        total = float(weights.sum())
        if unknown.any() and total > 0:
            # Experts of each unknown node that its parent did not use.
            own = seen[unknown] & ~seen[tree.parents[unknown]]
            mean = float((np.bitwise_count(own).sum(axis=-1) @ weights).mean()) / total
            self._novelty += 0.1 * (mean - self._novelty)
