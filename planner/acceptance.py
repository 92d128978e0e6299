"""From the head's probabilities to chances of being accepted.

The head's probability of a token is not the target's. For every depth and band of probability we
count how often a node whose parent was accepted was accepted itself, and answer with the posterior
mean under a beta prior that expects the head to be right. Old counts fade, so that a change of
subject or temperature is followed.
"""

from __future__ import annotations

import numpy as np

from .tree import DraftTree, FloatArray

DEPTHS = 8
# Bands of the head's probability, equal in log-odds: what matters is how sure it is near 0 and 1.
_EDGES = 1 / (1 + np.exp(-np.linspace(-4.5, 4.5, 10)))
BANDS = len(_EDGES) + 1
# Sightings that the prior weighs, and the count at which old ones have faded to half their weight.
PRIOR = 12.0
MEMORY = 400.0


class Acceptance:
    """Calibrated chances, learned from verified nodes."""

    def __init__(self) -> None:
        self._seen = np.zeros((DEPTHS, BANDS))
        self._accepted = np.zeros((DEPTHS, BANDS))
        # Mean chance of the best child of an accepted node, by depth: what one more level may give.
        self._best = np.full(DEPTHS, 0.7)

    def conditional(self, tree: DraftTree) -> FloatArray:
        """float64 [n]: chance that a node is accepted given that its parent is; 1 for the root."""
        depth, band = self._cells(tree)
        seen = self._seen[depth, band]
        chances = (PRIOR * tree.probs + self._accepted[depth, band]) / (PRIOR + seen)
        chances[0] = 1.0
        return np.minimum(chances, 1.0)

    def chances(self, tree: DraftTree) -> FloatArray:
        """float64 [n]: chance that a node is committed, the product along its path."""
        return tree.path_products(self.conditional(tree))

    def next_level(self, depth: int) -> float:
        """Chance to expect of the best child at `depth` (1 = the first drafted level)."""
        return float(self._best[min(depth, DEPTHS) - 1])

    def learn(self, tree: DraftTree, path: list[int]) -> None:
        """Learns from a verified tree whose nodes `path` (root first) were accepted."""
        on_path = np.zeros(len(tree), np.bool_)
        on_path[path] = True
        tried = np.flatnonzero(on_path[tree.parents])
        tried = tried[tried > 0]
        if not len(tried):
            return
        depth, band = self._cells(tree)
        fade = 0.5 ** (len(tried) / MEMORY)
        self._seen *= fade
        self._accepted *= fade
        np.add.at(self._seen, (depth[tried], band[tried]), 1.0)
        np.add.at(self._accepted, (depth[tried], band[tried]), on_path[tried].astype(np.float64))

    def learn_level(self, tree: DraftTree) -> None:
        """Learns from a freshly drafted last level how good the best child of a node is.

        Averages over parents weighted by their own chance: likely paths are those grown further.
        """
        depths = tree.depths
        depth = int(depths[-1])
        if depth == 0:
            return
        level = np.flatnonzero(depths == depth)
        conditional = self.conditional(tree)
        best: dict[int, float] = {}
        for node in level:
            parent = int(tree.parents[node])
            best[parent] = max(best.get(parent, 0.0), float(conditional[node]))
        weights = tree.path_products(conditional)[list(best)]
        total = float(weights.sum())
        if total > 0:
            mean = float(weights @ np.array(list(best.values()))) / total
            cell = min(depth, DEPTHS) - 1
            self._best[cell] += 0.05 * (mean - self._best[cell])

    def _cells(self, tree: DraftTree) -> tuple[np.ndarray, np.ndarray]:
        depth = np.clip(tree.depths - 1, 0, DEPTHS - 1)
        return depth, np.searchsorted(_EDGES, tree.probs)
