"""What a recorded text tells: at every committed token, all that a plan could have met.

A step holds the whole candidate tree behind a token with the target's verdict on each node, so that
any plan can be tried on it afterwards (`replay.py`), and forecasts can be trained on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .experts import Bitsets
from .tree import DraftTree, FloatArray, IntArray


@dataclass(frozen=True)
class TracedStep:
    """One committed token and what could have been drafted behind it.

    context:   tokens of committed text before it.
    tree:      the candidates; its root is the token.
    next:      the token that the target's sampler drew behind the root.
    target:    float64 [n], the target's probability of each node given its parent, after the
               sampler's filters and temperature (at temperature 0: of the plain softmax); 1 for the
               root.
    experts:   uint64 [n, layer, word], what each node used.
    forecast:  the same, as expected before; None if nothing was forecast.
    hidden:    float16 [m, width], the head's states of the nodes that were expanded.
    expanded:  int32 [m], which nodes these are, the root first.
    """

    context: int
    tree: DraftTree
    next: int
    target: FloatArray
    experts: Bitsets
    forecast: Bitsets | None
    hidden: NDArray[np.float16]
    expanded: IntArray


@dataclass(frozen=True)
class TracedText:
    """An answer. prompt: int32 [p], the tokens it answers."""

    name: str
    prompt: IntArray
    steps: tuple[TracedStep, ...]


@dataclass(frozen=True)
class Trace:
    """about: what was recorded: "model", "sampling", "machine" and the like."""

    n_layers: int
    n_experts: int
    n_used: int
    about: dict[str, object]
    texts: tuple[TracedText, ...]
