"""Fake quantisation: weights take the values that a GGUF file will give back, gradients pass.

The values are those of ggml's reference quantisers (and of `gguf.quantize`, dequantised), float16
scale included, bit for bit on a CPU; a compiled GPU kernel may round a value that lies between two
steps the other way. The gradient is the straight-through one: as if nothing were rounded.
"""

from __future__ import annotations

import torch

BLOCK = 32


def fake_q4_0(weights: torch.Tensor) -> torch.Tensor:
    """float32 weights [..., n * 32] as Q4_0 keeps them: 16 steps, the largest value exact."""
    blocks = _blocks(weights)
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = largest / -8
    steps = (blocks * _inverse(scale) + 8.5).trunc().clamp(0, 15) - 8
    return _straight_through(weights, steps * _as_stored(scale))


def fake_q8_0(weights: torch.Tensor) -> torch.Tensor:
    """float32 weights [..., n * 32] as Q8_0 keeps them: 255 steps, halves away from zero."""
    blocks = _blocks(weights)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    scaled = blocks * _inverse(scale)
    whole = scaled.abs().floor()
    steps = scaled.sign() * (whole + (2 * (scaled.abs() - whole)).floor())
    return _straight_through(weights, steps * _as_stored(scale))


def _blocks(weights: torch.Tensor) -> torch.Tensor:
    return weights.detach().view(*weights.shape[:-1], -1, BLOCK)


def _inverse(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale == 0, 0.0, 1 / scale)


def _as_stored(scale: torch.Tensor) -> torch.Tensor:
    """float32 rounded to what float16 holds, ties to even; above its range left as it is.

    By integers, because torch.compile drops a conversion to float16 and back.
    """
    bits = scale.view(torch.int32)
    # float16 has 13 bits less of the mantissa.
    bits = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    subnormal = (scale * 2.0**24).round() * 2.0**-24
    return torch.where(scale.abs() < 2.0**-14, subnormal, bits.view(torch.float32))


def _straight_through(weights: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    # The difference is exactly 0, so the sum is exactly the quantised value.
    return blocks.flatten(-2) + (weights - weights.detach())
