"""A head's weights laid out for drafting, and RoPE's rotations.

A level is made cheap, as much of a small head's time is launching operations: norms' weights and
attention's scale are folded into the matrix that follows, query, key and value (and gate and up)
are one product, and RoPE is one complex product, for which each head's rotated halves are
interleaved in the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, inf, log2

import numpy as np
import torch

from specfit.models.checkpoint import HeadCheckpoint, HeadConfig
from specfit.models.errors import ModelFileError
from specfit.models.stored import Stored

_FIRST_POSITIONS = 1024
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def as_torch(tensor: Stored) -> torch.Tensor:
    """A tensor of a checkpoint, which has to hold floats, for PyTorch."""
    data = torch.from_numpy(np.array(tensor.data))  # not tied to the file
    return data.view(torch.bfloat16) if tensor.kind == "BF16" else data


@dataclass(frozen=True)
class HeadWeights:
    """Matrices laid out for x @ W, norms folded in; `fc` is float32, the others as stored.

    qkv: [2 * width, (heads + 2 * kv heads) * head_dim], embedding's half of the rows first.
    fc_bias…down_bias: None without bias.
    vocab_scale: by what products with `vocab` are to be multiplied, a power of two.
    head_norms: float32 [heads + kv heads, head_dim], factors of queries and keys of norm 1, None
    if they are not normalised.
    residual, output: float32 [width], factors of hidden states of norm 1, where the residual is
    normalised, or what goes on to the next level; None where not.
    """

    fc: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    vocab: torch.Tensor
    vocab_scale: float
    fc_bias: torch.Tensor | None
    qkv_bias: torch.Tensor | None
    out_bias: torch.Tensor | None
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    head_norms: torch.Tensor | None
    residual: torch.Tensor | None
    output: torch.Tensor | None

    @classmethod
    def of(cls, checkpoint: HeadCheckpoint, device: torch.device) -> HeadWeights:
        """Raises ModelFileError if weights are too large for the type they are computed in."""
        config, tensors = checkpoint.config, checkpoint.tensors
        stored = _DTYPES[tensors["lm_head.weight"].kind]
        # CPUs compute fastest in float32; a GPU in what the checkpoint has.
        half = device.type != "cpu" and stored in (torch.float16, torch.bfloat16)
        dtype = stored if half else torch.float32

        def get(name: str) -> torch.Tensor:
            return as_torch(tensors[f"{name}.weight"]).float()

        def biases(*names: str) -> torch.Tensor | None:
            if f"{names[0]}.bias" not in tensors:
                return None
            return torch.cat([as_torch(tensors[f"{name}.bias"]).float() for name in names])

        def ready(tensor: torch.Tensor, dtype: torch.dtype = dtype) -> torch.Tensor:
            laid_out = tensor.t().contiguous().to(device, dtype)
            # The sum overflows only where an element nearly does.
            if not bool(torch.isfinite(laid_out.sum(dtype=torch.float32))):
                raise ModelFileError(
                    f"{checkpoint.path} is damaged: its weights are too large for {dtype}."
                )
            return laid_out

        def bias(values: torch.Tensor | None, dtype: torch.dtype = dtype) -> torch.Tensor | None:
            return None if values is None else ready(values, dtype)

        query, key, value = (f"midlayer.self_attn.{name}_proj" for name in "qkv")
        gate, up = "midlayer.mlp.gate_proj", "midlayer.mlp.up_proj"
        qkv, qkv_bias = torch.cat([get(query), get(key), get(value)]), biases(query, key, value)
        order = _order(config)
        qkv = qkv[order]
        qkv_bias = None if qkv_bias is None else qkv_bias[order]
        head_norms = None
        if "midlayer.self_attn.q_norm.weight" in tensors:
            head_norms = _head_norms(config, get, order)
        else:
            n_query = config.n_heads * config.head_dim
            qkv[:n_query] *= config.head_dim**-0.5
            if qkv_bias is not None:
                qkv_bias[:n_query] *= config.head_dim**-0.5
        # Inputs come scaled to norm 1 instead of mean square 1.
        scale = config.hidden_size**0.5
        hidden_norm = get("midlayer.hidden_norm") * scale
        norms = torch.cat([get("midlayer.input_layernorm") * scale, hidden_norm])
        output_norm = get("norm") * scale
        vocab, vocab_scale = within(get("lm_head") * output_norm, dtype)
        return cls(
            # Features come unnormalised and can be huge: too much for float16.
            fc=ready(get("fc") * _feature_norms(config, tensors), torch.float32),
            qkv=ready(qkv * norms),
            out=ready(get("midlayer.self_attn.o_proj")),
            gate_up=ready(
                torch.cat([get(gate), get(up)]) * get("midlayer.post_attention_layernorm") * scale
            ),
            down=ready(get("midlayer.mlp.down_proj")),
            vocab=ready(vocab),
            vocab_scale=vocab_scale,
            fc_bias=bias(biases("fc"), torch.float32),
            qkv_bias=bias(qkv_bias),
            out_bias=bias(biases("midlayer.self_attn.o_proj")),
            gate_up_bias=bias(biases(gate, up)),
            down_bias=bias(biases("midlayer.mlp.down_proj")),
            head_norms=None if head_norms is None else head_norms.to(device),
            residual=hidden_norm.to(device) if config.norm_before_residual else None,
            output=output_norm.to(device) if config.norm_output else None,
        )


class Rotations:
    """Rotations magnitude * e^(i * position * frequency), tabled as far as they were asked for.

    Not bounded by a checkpoint's max_position_embeddings: heads trained on 2048 positions are used
    on whatever context their target has.
    """

    def __init__(self, config: HeadConfig, device: torch.device) -> None:
        rotated = len(config.rope.frequencies)
        # What is not rotated turns with frequency 0.
        self._frequencies = torch.zeros(config.head_dim // 2, dtype=torch.float64)
        self._frequencies[:rotated] = torch.tensor(config.rope.frequencies, dtype=torch.float64)
        self._magnitudes = torch.ones(config.head_dim // 2, dtype=torch.float64)
        self._magnitudes[:rotated] = config.rope.magnitude
        self._device = device
        self._table = self._rotations(_FIRST_POSITIONS)

    def at(self, start: int, end: int) -> torch.Tensor:
        """complex64 [end - start, 1, head_dim / 2]"""
        if end > len(self._table):
            self._table = self._rotations(max(end, 2 * len(self._table)))
        return self._table[start:end]

    def _rotations(self, n: int) -> torch.Tensor:
        angles = torch.arange(n, dtype=torch.float64)[:, None] * self._frequencies
        table = torch.polar(self._magnitudes.expand_as(angles).contiguous(), angles)
        return table.to(torch.complex64).to(self._device)[:, None]


def times(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x @ matrix if bias is None else torch.addmm(bias, x, matrix)


def within(weights: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """Weights that `dtype` can hold, and the power of two to multiply products with them by.

    Tokens may be all but forbidden by weights beyond float16, beside which the others are small.
    """
    excess = float(weights.abs().max()) / torch.finfo(dtype).max
    factor = 2.0 ** ceil(log2(excess)) if 1 < excess < inf else 1.0
    return weights if factor == 1.0 else weights / factor, factor


def _order(config: HeadConfig) -> torch.Tensor:
    """Row numbers of query, key and value rows in the order in which they are kept.

    The rotated rows of each query and key head in the order 0, r/2, 1, r/2 + 1, …: RoPE's pairs
    side by side. The rest of them, and values, as they are.
    """
    half = len(config.rope.frequencies)
    pairs = torch.arange(2 * half).view(2, half).t().ravel()
    within = torch.cat([pairs, torch.arange(2 * half, config.head_dim)])
    rotated, rest = config.n_heads + config.n_kv_heads, config.n_kv_heads * config.head_dim
    rows = (torch.arange(rotated)[:, None] * config.head_dim + within).ravel()
    return torch.cat([rows, rotated * config.head_dim + torch.arange(rest)])


def _feature_norms(config: HeadConfig, tensors: Mapping[str, Stored]) -> torch.Tensor:
    """Factors of features of which each normed part comes scaled to norm 1."""
    if config.feature_norms == 0:
        return torch.ones(1)
    names = [f"fc_norm.{tap}" for tap in range(3)] if config.feature_norms == 3 else ["input_norm"]
    norms = [as_torch(tensors[f"{name}.weight"]).float() for name in names]
    return torch.cat([norm * len(norm) ** 0.5 for norm in norms])


def _head_norms(
    config: HeadConfig, get: Callable[[str], torch.Tensor], order: torch.Tensor
) -> torch.Tensor:
    """[heads + kv heads, head_dim]; attention's scale cancels with that of queries of norm 1."""
    query = get("midlayer.self_attn.q_norm")[order[: config.head_dim]]
    key = get("midlayer.self_attn.k_norm")[order[: config.head_dim]] * config.head_dim**0.5
    return torch.cat([query.expand(config.n_heads, -1), key.expand(config.n_kv_heads, -1)])
