"""Routers of the silent layers, made to route as Qwen3-30B-A3B does.

Published for it: 4 consecutive tokens use 18.9 of 128 experts in the mean over layers, from 14.4 to
26.9; adjacent tokens share 3.67 of their 8; 58 to 65 experts cover 90 % of the uses. A router's
logits are random mixes of the hidden state, which give locality as far as the directions that they
read change slowly, and a random bias an expert, which gives static preference.

The small model's own layers keep their routers, which are less local. The silent ones make up for
it, as far as the published range allows, so that the mean over all layers is the published one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specfit.models.scaling.source import Floats, rms_normed, top_experts

UNION_OF_4, LOWEST, HIGHEST = 18.9, 14.4, 26.9
# Standard deviation of an expert's bias, that of its logits over tokens being 1.
STATIC = 0.6
_DIRECTIONS = 100
_STEEPEST = 40.0
_BISECTIONS = 9


@dataclass(frozen=True)
class Router:
    """weight: float32 [experts, n_embd] on the normalised hidden state. bias: float32 [experts], on
    the constant channel where that is 1 for a hidden state of usual size."""

    weight: Floats
    bias: Floats


@dataclass(frozen=True)
class RoutingStats:
    """shared: experts that adjacent tokens share. union4: experts of 4 tokens in a row. covering:
    experts that take 90 % of the uses."""

    shared: float
    union4: float
    covering: int


def routing_stats(selections: NDArray[np.int64], n_experts: int) -> RoutingStats:
    """Of a layer's selections [texts, length, used]."""
    used = np.zeros((*selections.shape[:2], n_experts), bool)
    np.put_along_axis(used, selections, True, axis=2)
    n_fours = used.shape[1] // 4
    fours = used[:, : n_fours * 4].reshape(len(used), n_fours, 4, n_experts)
    uses = np.sort(used.sum((0, 1)))[::-1].cumsum()
    return RoutingStats(
        shared=float((used[:, 1:] & used[:, :-1]).sum(2).mean()),
        union4=float(fours.any(2).sum(2).mean()),
        covering=int(np.searchsorted(uses, 0.9 * uses[-1]) + 1),
    )


def union_targets(
    own: list[float], n_silent: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """The union of 4 tokens that each silent layer should have, given those of the small model's
    own layers: evenly spread, in random order."""
    mean = (UNION_OF_4 * (len(own) + n_silent) - sum(own)) / max(n_silent, 1)
    mean = min(max(mean, LOWEST + 0.5), HIGHEST)
    spread = min(mean - LOWEST, HIGHEST - mean, 6.0)
    return random.permutation(np.linspace(mean - spread, mean + spread, n_silent))


class HiddenStates:
    """What a silent layer's router sees, and the directions in it, slowest last.

    Directions come from the first half of the texts, everything that is measured from the second,
    for directions look slower than they are in the texts that they were found in.
    residuals: float32 [texts, length, n_embd].
    """

    def __init__(self, residuals: Floats, epsilon: float) -> None:
        half = len(residuals) // 2
        size = np.sqrt((residuals * residuals).mean(-1) + epsilon)
        self.usual_size = float(np.median(size))
        normed = rms_normed(residuals, epsilon)
        self.mean = normed[:half].mean((0, 1))
        self._directions, self.persistence = _slow_directions(
            (normed[:half] - self.mean).astype(np.float64)
        )
        self.normed = normed[half:]
        # The constant channel, which is 1 for a hidden state of usual size.
        self._constant = (self.usual_size / size[half:, :, None]).astype(np.float32)
        self._features = ((self.normed - self.mean) @ self._directions).astype(np.float32)

    def fitted(
        self, n_experts: int, n_used: int, union4: float, random: np.random.Generator
    ) -> tuple[Router, RoutingStats]:
        """A random router with that union of 4 tokens, or as near as it gets.

        Locality is raised first; where the hidden state changes too fast for that, so is the bias.
        """
        mix = random.standard_normal((len(self.persistence), n_experts)).astype(np.float32)
        preference = random.standard_normal(n_experts).astype(np.float32)

        def stats(steepness: float, static: float) -> RoutingStats:
            weighed = self._weighed(mix, steepness)
            logits = self._features @ weighed + self._constant * (static * preference)
            return routing_stats(top_experts(logits, n_used), n_experts)

        steepness, static = _STEEPEST, STATIC
        if stats(steepness, static).union4 <= union4:
            steepness = _bisected(lambda k: stats(k, static).union4 > union4, -10.0, steepness)
        else:
            static = _bisected(lambda b: stats(steepness, b).union4 > union4, static, 4 * static)
        weight = (self._directions @ self._weighed(mix, steepness)).T.astype(np.float32)
        bias = (static * preference - weight @ self.mean).astype(np.float32)
        router = Router(weight, bias)
        return router, routing_stats(self.routed(router, n_used), n_experts)

    def routed(self, router: Router, n_used: int) -> NDArray[np.int64]:
        """The experts that `router` gives these hidden states."""
        logits = self.normed @ router.weight.T + self._constant * router.bias
        return top_experts(logits, n_used)

    def _weighed(self, mix: Floats, steepness: float) -> Floats:
        """`mix` with slow directions favoured; logits keep a variance of 1."""
        share = np.exp(steepness * (self.persistence - self.persistence.max()))
        return mix * np.sqrt(share / share.sum())[:, None].astype(np.float32)


def _slow_directions(
    centred: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Slow feature analysis (Wiskott and Sejnowski, 2002) of [texts, length, n] within the largest
    principal components.

    Returns directions [n, m], uncorrelated and of variance 1 in the data, and each one's
    correlation between adjacent tokens [m].
    """
    flat = centred.reshape(-1, centred.shape[-1])
    variances, axes = np.linalg.eigh(flat.T @ flat / len(flat))
    keep = min(_DIRECTIONS, int((variances > 1e-6 * variances[-1]).sum()))
    white = axes[:, -keep:] / np.sqrt(variances[-keep:])
    features = centred @ white
    before = features[:, :-1].reshape(-1, keep)
    after = features[:, 1:].reshape(-1, keep)
    lagged = before.T @ after / len(before)
    persistence, turned = np.linalg.eigh((lagged + lagged.T) / 2)
    return white @ turned, persistence


def _bisected(too_low: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_low(middle) else (low, middle)
    return high
