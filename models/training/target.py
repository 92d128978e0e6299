"""The target as it is trained: a `qwen3moe` whose experts are all computed and then weighted.

With 32 rows an expert, three products over all experts together are faster on a GPU than picking
tokens for each, and every expert's gate has a gradient. Parameters are float32 and named as in a
GGUF file; on a GPU activations are bfloat16.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self, cast

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from specfit.models.training.fake_quant import fake_q4_0, fake_q8_0
from specfit.models.training.recipe import Shape

NORMS = ("attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm")
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
ROUTER = "ffn_gate_inp"


class Pass(NamedTuple):
    """What a pass over ids [B, T] gives.

    hidden: [B, T, width], normed for the output matrix. taps: the inputs [B, T, width] of the
    layers asked for. balance: 1 where all experts are used alike, means over layers, as z, the
    mean square of the routers' log partition functions.
    """

    hidden: torch.Tensor
    taps: tuple[torch.Tensor, ...]
    balance: torch.Tensor
    z: torch.Tensor


class Block(nn.Module):
    """One layer."""

    def __init__(self, shape: Shape, random: torch.Generator) -> None:
        super().__init__()
        # Plain numbers on the module are constants to torch.compile.
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.experts, self.experts_used = shape.experts, shape.experts_used
        self.eps = shape.norm_eps
        width, query, ff = shape.width, shape.heads * shape.head_dim, shape.expert_ff
        key = shape.kv_heads * shape.head_dim
        inner = width**-0.5
        # What writes to the residual stream starts small, the smaller the more layers write.
        outer = shape.layers**-0.5

        def normal(*sizes: int, std: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(*sizes, generator=random) * std)

        self.attn_norm = nn.Parameter(torch.ones(width))
        self.attn_q = normal(query, width, std=inner)
        self.attn_k = normal(key, width, std=inner)
        self.attn_v = normal(key, width, std=inner)
        self.attn_output = normal(width, query, std=0.5 * query**-0.5 * outer)
        self.attn_q_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.attn_k_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.ffn_norm = nn.Parameter(torch.ones(width))
        self.ffn_gate_inp = normal(shape.experts, width, std=0.02)
        self.ffn_gate_exps = normal(shape.experts, ff, width, std=inner)
        self.ffn_up_exps = normal(shape.experts, ff, width, std=inner)
        self.ffn_down_exps = normal(
            shape.experts, width, ff, std=(shape.experts_used * ff) ** -0.5 * outer
        )

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, quantised: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [B, T, width], cos and sin [>= T, head_dim / 2] -> x, balance, z."""
        x = x + self._attention(x, cos, sin, quantised)
        mixed, balance, z = self._mixture(x, quantised)
        return x + mixed, balance, z

    def _attention(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, quantised: bool
    ) -> torch.Tensor:
        batch, time, _ = x.shape
        wq, wk, wv, wo = (
            _used(w, quantised, x.dtype)
            for w in (self.attn_q, self.attn_k, self.attn_v, self.attn_output)
        )
        y = self._norm(x, self.attn_norm)
        q = self._norm((y @ wq.T).view(batch, time, self.heads, -1), self.attn_q_norm)
        k = self._norm((y @ wk.T).view(batch, time, self.kv_heads, -1), self.attn_k_norm)
        v = (y @ wv.T).view(batch, time, self.kv_heads, -1)
        c, s = cos[:time, None], sin[:time, None]
        mixed = F.scaled_dot_product_attention(
            rotated(q, c, s).transpose(1, 2),
            shared_by(rotated(k, c, s).transpose(1, 2), self.heads),
            shared_by(v.transpose(1, 2), self.heads),
            is_causal=True,
        )
        return mixed.transpose(1, 2).reshape(batch, time, -1) @ wo.T

    def _mixture(
        self, x: torch.Tensor, quantised: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        batch, time, width = x.shape
        y = self._norm(x, self.ffn_norm)
        logits = y.float().view(-1, width) @ self.ffn_gate_inp.T
        chances = torch.softmax(logits, -1)
        best, which = chances.topk(self.experts_used, -1)
        gates = torch.zeros_like(chances).scatter(1, which, best / best.sum(-1, keepdim=True))
        uses = (gates.detach() > 0).float().mean(0) * (self.experts / self.experts_used)
        balance = (uses * chances.mean(0)).sum()
        z = torch.logsumexp(logits, -1).pow(2).mean()
        gate_w, up_w, down_w = (
            _used(w, quantised, x.dtype)
            for w in (self.ffn_gate_exps, self.ffn_up_exps, self.ffn_down_exps)
        )
        gate = y @ gate_w.view(-1, width).T
        up = y @ up_w.view(-1, width).T
        inner = (F.silu(gate.float()) * up.float()).view(batch * time, self.experts, -1)
        inner = (inner * gates[:, :, None]).to(x.dtype).view(batch, time, -1)
        return inner @ down_w.permute(1, 0, 2).reshape(width, -1).T, balance, z

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight, self.eps).to(x.dtype)


class Target(nn.Module):
    """quantised: whether matrices pass as the shipped file will have them (`fake_quant`)."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, shape: Shape, quantised: bool = False, seed: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.shape, self.quantised = shape, quantised
        self.token_embd = nn.Parameter(torch.randn(shape.vocab, shape.width, generator=random))
        self.layers = nn.ModuleList(Block(shape, random) for _ in range(shape.layers))
        self.output_norm = nn.Parameter(torch.ones(shape.width))
        output = torch.randn(shape.vocab, shape.width, generator=random)
        self.output = nn.Parameter(output * 0.2 * shape.width**-0.5)
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def blocks(self) -> list[Block]:
        return [cast(Block, layer) for layer in self.layers]

    def hidden(self, ids: torch.Tensor, taps: tuple[int, ...] = ()) -> Pass:
        """ids: int64 [B, T]. taps: layers whose inputs are wanted."""
        table = fake_q8_0(self.token_embd) if self.quantised else self.token_embd
        x = F.embedding(ids, table)
        x = x.bfloat16() if x.is_cuda else x
        inputs: dict[int, torch.Tensor] = {}
        balance = z = torch.zeros((), device=x.device)
        for i, layer in enumerate(self.layers):
            if i in taps:
                inputs[i] = x
            x, layer_balance, layer_z = layer(x, self.cos, self.sin, self.quantised)
            balance, z = balance + layer_balance, z + layer_z
        normed = F.rms_norm(x.float(), (x.shape[-1],), self.output_norm, self.shape.norm_eps)
        n = len(self.layers)
        return Pass(normed.to(x.dtype), tuple(inputs[tap] for tap in taps), balance / n, z / n)

    def output_matrix(self) -> torch.Tensor:
        """[vocab, width], quantised if the model is."""
        return fake_q8_0(self.output) if self.quantised else self.output

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [B, T, vocab] of hidden [B, T, width]."""
        return (hidden @ self.output_matrix().to(hidden.dtype).T).float()

    def named_tensors(self) -> dict[str, torch.Tensor]:
        """Parameters by their names in a GGUF file."""
        tensors = {
            f"{name}.weight": cast(torch.Tensor, getattr(self, name))
            for name in ("token_embd", "output_norm", "output")
        }
        for i, block in enumerate(self.blocks):
            for name in (*NORMS, *ATTENTION, ROUTER, *EXPERTS):
                tensors[f"blk.{i}.{name}.weight"] = getattr(block, name)
        return tensors

    @classmethod
    def from_gguf(cls, path: Path, quantised: bool = False) -> Self:
        """Reads a `qwen3moe` file, dequantising it. Raises ValueError for another architecture."""
        reader = gguf.GGUFReader(path)
        stored = {tensor.name: tensor for tensor in reader.tensors}
        vocab = int(stored["token_embd.weight"].shape[1])
        model = cls(_shape_of(path, reader, vocab), quantised)
        with torch.no_grad():
            for name, parameter in model.named_tensors().items():
                tensor = stored[name]
                values = gguf.dequantize(tensor.data, tensor.tensor_type)
                parameter.copy_(torch.from_numpy(np.array(values, np.float32)))
        return model


def rope_tables(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, float32 [context, head_dim / 2]."""
    steps = torch.arange(0, shape.head_dim, 2).float() / shape.head_dim
    angles = torch.arange(shape.context).float()[:, None] / shape.rope_theta**steps
    return angles.cos(), angles.sin()


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE over the two halves of the last axis, computed in float32."""
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def shared_by(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values [B, kv heads, T, d] as [B, heads, T, d]; nothing is copied of a single one."""
    batch, kv_heads, time, size = x.shape
    return (
        x[:, :, None]
        .expand(batch, kv_heads, heads // kv_heads, time, size)
        .reshape(batch, heads, time, size)
    )


def _used(weights: torch.Tensor, quantised: bool, dtype: torch.dtype) -> torch.Tensor:
    return (fake_q4_0(weights) if quantised else weights).to(dtype)


def _shape_of(path: Path, reader: gguf.GGUFReader, vocab: int) -> Shape:
    architecture = reader.fields["general.architecture"].contents()
    if architecture != "qwen3moe":
        raise ValueError(f"{path} is a {architecture}, not a qwen3moe")

    def number(key: str) -> float:
        # Rounded to what float32 holds, so that 1e-6 is 1e-6 again.
        return float(f"{reader.fields[f'qwen3moe.{key}'].contents():.7g}")

    return Shape(
        layers=int(number("block_count")),
        width=int(number("embedding_length")),
        heads=int(number("attention.head_count")),
        kv_heads=int(number("attention.head_count_kv")),
        head_dim=int(number("attention.key_length")),
        experts=int(number("expert_count")),
        experts_used=int(number("expert_used_count")),
        expert_ff=int(number("expert_feed_forward_length")),
        vocab=vocab,
        context=int(number("context_length")),
        rope_theta=number("rope.freq_base"),
        norm_eps=number("attention.layer_norm_rms_epsilon"),
    )
