"""Stretching a head's positions as its target's are stretched over a longer context.

A head learned on the positions that its target has. Where llama.cpp is told to stretch those, a
head that kept its own would meet distances between words that it never saw: with the bundled pair,
3,000 tokens into a context stretched by 4, three drafts make 1.43 tokens a cycle, and 2.09 if the
head follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from specfit.models.rope import Rope


@dataclass(frozen=True)
class Stretch:
    """As llama.cpp computes it, its defaults filled in.

    factor: how many times as long the context becomes. base: factor of RoPE's base. extrapolated:
    how far fast rotations keep their speed, YaRN's ext_factor, 0 of which is linear scaling.
    trained: positions before the stretch. magnitude: of rotated queries and keys.
    """

    factor: float = 1.0
    base: float = 1.0
    extrapolated: float = 0.0
    trained: int = 1
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float = 1.0


def stretched(rope: Rope, by: Stretch) -> Rope:
    """`rope` with its positions stretched. One whose frequencies are no geometric row, being
    stretched by its own config already, stays as it is.

    YaRN: Peng et al., arXiv 2309.00071, as in llama.cpp's `rope_yarn`.
    """
    plain = np.array(rope.frequencies)
    size = 2 * len(plain)
    steps = np.arange(0, size, 2) / size
    theta = float(plain[-1] ** (-1 / steps[-1])) if steps[-1] else 1.0
    if theta <= 1 or not np.allclose(plain, theta**-steps, rtol=1e-4):
        return rope
    theta *= by.base
    if theta <= 1:
        return rope
    plain = theta**-steps
    slow = plain / by.factor

    def place(turns: float) -> float:
        """The dimension that turns so often within the trained positions."""
        angle = max(by.trained / (max(turns, 1e-9) * 2 * math.pi), 1e-9)
        return size * math.log(angle) / (2 * math.log(theta))

    first = max(0, math.floor(place(by.beta_fast)))
    last = min(size - 1, math.ceil(place(by.beta_slow)))
    ramp = np.clip((np.arange(len(plain)) - first) / max(0.001, last - first), 0, 1)
    kept = (1 - ramp) * by.extrapolated
    frequencies = slow * (1 - kept) + plain * kept
    return Rope(tuple(frequencies.tolist()), rope.magnitude * by.magnitude)
