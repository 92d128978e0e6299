"""From the head's probabilities to chances of being accepted.

The head's probability of a token is not the target's, let alone what the sampler makes of it. For
every temperature the chance of a node, given that its parent is accepted, is

    logit(chance) = a * logit(p) + b + c[depth]

learned online by logistic regression (one Newton step a cycle) from a prior that believes the head.
Bands of p with counts, which we had before, predict worse than the bare head does (LOG.md): what
matters is the resolution, and two numbers do not need much to be learned.

What other drafters say has such a line of its own: tokens of a lookup alone, those that a lookup
and the head name both (the logits of both count), and those of a lookup that the head, which was
asked too, does not have among its best.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .regression import RunningRegression
from .tree import HEAD, LOOKUP, BoolArray, DraftTree, FloatArray, IntArray

DEPTHS = 8
# Cycles that are learned from at once: what Python does once a cycle it does with cold caches.
TOGETHER = 8
MEMORY = 1000.0
# Prior deviations: of a, of b, of the depths' c.
_DEVIATIONS = np.full(2 + DEPTHS, 0.3)
_PRIOR = np.array([1.0, *[0.0] * (DEPTHS + 1)])
# No probability counts as more certain than this.
_SURE = 1e-4
# By whom a token was named: the columns of `DraftTree.named` that count.
_KINDS = ((HEAD,), (LOOKUP,), (HEAD, LOOKUP), (LOOKUP,))
BY_HEAD, BY_LOOKUP, BY_BOTH, DENIED = range(len(_KINDS))
# By whether the head was asked for a node's siblings, and by `DraftTree.source` of the node.
_KIND_OF = np.array(
    [[BY_HEAD, BY_HEAD, BY_LOOKUP, BY_BOTH], [BY_HEAD, BY_HEAD, DENIED, BY_BOTH]], np.int32
)
# A priori a match weighs less than a head says, agreement more, and what a head denies little.
_PRIORS = (
    _PRIOR,
    np.array([0.4, -0.2, *[0.0] * DEPTHS]),
    np.array([0.8, *[0.0] * (DEPTHS + 1), 0.5]),
    np.array([0.5, -2.0, *[0.0] * DEPTHS]),
)


class Acceptance:
    """Calibrated chances, learned from verified nodes."""

    def __init__(self) -> None:
        self._temperature = 1.0
        self._by_temperature: dict[tuple[float, int], RunningRegression] = {}
        self._news: list[tuple[DraftTree, list[int]]] = []

    def heat(self, temperature: float) -> None:
        """Turns to texts sampled at this temperature."""
        self._learn_news()
        self._temperature = round(temperature, 1)

    def conditional(self, tree: DraftTree) -> FloatArray:
        """float64 [n]: chance that a node is accepted given that its parent is; 1 for a root."""
        kinds = kinds_of(tree)
        scores = np.zeros(len(tree))
        for kind in set(kinds[tree.n_lines :].tolist()):
            of = np.flatnonzero(kinds == kind)
            x = _described(tree.by_drafter[of][:, _KINDS[kind]], tree.depths[of])
            regression = self._regression(kind)
            variances = ((x @ regression.covariance) * x).sum(axis=1)
            scores[of] = (x @ regression.theta) * _moderation(variances)
        chances: FloatArray = 1 / (1 + np.exp(-scores))
        chances[: tree.n_lines] = 1.0
        return chances

    def chances(self, tree: DraftTree) -> FloatArray:
        """float64 [n]: chance that a node is committed, the product along its path."""
        return tree.path_products(self.conditional(tree))

    def first_looked_up(self, prob: float) -> float:
        """Of a lookup's first token, without arrays: it may be asked for in every cycle."""
        regression = self._regression(BY_LOOKUP)
        slope, base, first = regression.theta.tolist()[:3]
        sure = min(max(prob, _SURE), 1 - _SURE)
        logit = math.log(sure / (1 - sure))
        (a, ab, ac), (_, b, bc), (_, _, c) = regression.covariance[:3, :3].tolist()
        variance = logit * (a * logit + 2 * (ab + ac)) + b + 2 * bc + c
        score = (slope * logit + base + first) / math.sqrt(1 + math.pi / 8 * variance)
        return 1 / (1 + math.exp(-score))

    def learn(self, tree: DraftTree, path: list[int]) -> None:
        """Learns from a verified tree whose nodes `path` (roots included) were accepted."""
        self._news.append((tree, path))
        if len(self._news) == TOGETHER:
            self._learn_news()

    def _learn_news(self) -> None:
        kinds: list[IntArray] = []
        named: list[FloatArray] = []
        depths: list[IntArray] = []
        accepted: list[BoolArray] = []
        for tree, path in self._news:
            on_path = np.zeros(len(tree), np.bool_)
            on_path[path] = True
            tried = on_path[tree.parents]
            tried[: tree.n_lines] = False
            kinds.append(kinds_of(tree)[tried])
            named.append(tree.by_drafter[tried])
            depths.append(tree.depths[tried])
            accepted.append(on_path[tried])
        self._news.clear()
        if not sum(map(len, kinds)):
            return
        of, probs = np.concatenate(kinds), np.concatenate(named)
        at, hits = np.concatenate(depths), np.concatenate(accepted)
        for kind in np.unique(of).tolist():
            chosen = of == kind
            self._learn_kind(kind, probs[chosen][:, _KINDS[kind]], at[chosen], hits[chosen])

    def _learn_kind(self, kind: int, named: FloatArray, depths: IntArray, y: BoolArray) -> None:
        regression = self._regression(kind)
        x = _described(named, depths)
        scores = x @ regression.theta
        chances = 1 / (1 + np.exp(-scores))
        spread = np.maximum(chances * (1 - chances), 1e-3)
        # The working response of a Newton step.
        regression.learn(x, scores + (y - chances) / spread, spread)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What was learned, to be kept for the pair of models."""
        self._learn_news()
        return {
            f"{t:.1f}/{kind}" if kind else f"{t:.1f}": regression.state()
            for (t, kind), regression in self._by_temperature.items()
        }

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Takes over what `state` gave; raises ValueError if that is not so."""
        for name, kept in state.items():
            temperature, _, number = name.partition("/")
            kind = int(number or BY_HEAD)
            if not 0 <= kind < len(_KINDS):
                raise ValueError("the kept acceptance is of drafters not known")
            regression = _new_regression(_PRIORS[kind])
            regression.restore(np.asarray(kept, np.float64))
            self._by_temperature[float(temperature), kind] = regression

    def _regression(self, kind: int) -> RunningRegression:
        """Of the present temperature; a new one begins with what the nearest has learned."""
        known = self._by_temperature.get((self._temperature, kind))
        if known is None:
            prior = _PRIORS[kind]
            others = [t for t, of in self._by_temperature if of == kind]
            if others:
                nearest = min(others, key=lambda t: abs(t - self._temperature))
                prior = self._by_temperature[nearest, kind].theta
            known = self._by_temperature[self._temperature, kind] = _new_regression(prior)
        return known


def kinds_of(tree: DraftTree) -> IntArray:
    """int32 [n]: of each draft what was said of it, BY_HEAD to DENIED; BY_HEAD for roots."""
    return _KIND_OF[tree.expanded[tree.parents].astype(np.intp), tree.source]


def _described(named: FloatArray, depths: IntArray) -> FloatArray:
    """float64 [n, k], what a score is linear in. named: float64 [n, drafters that count]."""
    x = np.zeros((len(named), 1 + DEPTHS + named.shape[1]))
    x[:, 0] = _logits(named[:, 0])
    x[:, 1] = 1.0
    x[np.arange(len(x)), 1 + _clipped(depths)] = 1.0
    x[:, 2 + DEPTHS :] = _logits(named[:, 1:])
    return x


def _moderation(variances: FloatArray) -> FloatArray:
    """What scores of such variances are multiplied by, for the mean of their chances (MacKay, "The
    Evidence Framework Applied to Classification Networks", 1992)."""
    return 1 / np.sqrt(1 + math.pi / 8 * variances)


def _new_regression(prior: FloatArray) -> RunningRegression:
    deviations = np.concatenate([_DEVIATIONS, np.full(len(prior) - len(_DEVIATIONS), 0.3)])
    return RunningRegression(prior, deviations, MEMORY)


def _logits(probs: FloatArray) -> FloatArray:
    sure = np.minimum(np.maximum(probs, _SURE), 1 - _SURE)
    return np.log(sure / (1 - sure))


def _clipped(depths: IntArray) -> IntArray:
    """Depths as they are told apart: 0 for the root, DEPTHS for all that lie deeper."""
    return np.minimum(depths, DEPTHS)
