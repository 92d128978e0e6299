"""Vocabulary, random weights and a plain forward pass of the models that `tinymodel` writes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

N_EMBD, N_HEADS, N_KV_HEADS, HEAD_DIM = 64, 4, 2, 32
N_EXPERTS, EXPERT_FF, DENSE_FF = 8, 32, 128
EPS, ROPE_BASE, CONTEXT = 1e-6, 10000.0, 2048
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE: specials, 256 bytes, and pairs of letters.

    written: ids that the models write: printable ASCII, no specials.
    """

    tokens: list[str]
    merges: list[str]
    written: torch.Tensor


def vocabulary() -> Vocabulary:
    # Byte-level BPE spells bytes without a printable form as characters from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable}
    spelling |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    space = spelling[32]
    merges = [f"{a} {b}" for a in "aeiou" for b in "lmnrst"]
    merges += [f"{a} {b}" for a in "bcdfghlmnprstw" for b in "aeiou"]
    merges += [f"{space} {a}" for a in "abcdefghilmnoprstuw"]
    bytes_ = [spelling[byte] for byte in range(256)]
    tokens = [*SPECIALS, *bytes_, *(merge.replace(" ", "") for merge in merges)]
    first_byte, first_merge = len(SPECIALS), len(SPECIALS) + 256
    written = [first_byte + byte for byte in range(32, 127)] + list(range(first_merge, len(tokens)))
    return Vocabulary(tokens, merges, torch.tensor(written))


def make_weights(seed: int, n_layers: int, n_experts: int) -> dict[str, torch.Tensor]:
    """Weights by GGUF name, outermost dimension first. n_experts 0: dense."""
    random, words = torch.Generator().manual_seed(seed), vocabulary()
    n_vocab = len(words.tokens)

    def matrix(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * scale / math.sqrt(shape[-1])

    def writing(*shape: int, scale: float) -> torch.Tensor:
        """A matrix into the residual stream; it leaves dimension 0 alone."""
        weight = matrix(*shape, scale=scale)
        weight[..., 0, :] = 0
        return weight

    # Dimension 0 of the stream is constant, which lets the output refuse what is not `written`.
    embedding = torch.randn(n_vocab, N_EMBD, generator=random)
    embedding[:, 0] = 2
    output = matrix(n_vocab, N_EMBD, scale=3.5)
    output[:, 0] = -8
    output[words.written, 0] = 0
    weights = {
        "token_embd.weight": embedding,
        "output.weight": output,
        "output_norm.weight": torch.ones(N_EMBD),
    }
    for layer in range(n_layers):
        inner, kv_inner = N_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM
        block = {
            "attn_norm": torch.ones(N_EMBD),
            "attn_q": matrix(inner, N_EMBD),
            "attn_k": matrix(kv_inner, N_EMBD),
            "attn_v": matrix(kv_inner, N_EMBD),
            "attn_q_norm": 1.5 * torch.ones(HEAD_DIM),
            "attn_k_norm": torch.ones(HEAD_DIM),
            "attn_output": writing(N_EMBD, inner, scale=0.5),
            "ffn_norm": torch.ones(N_EMBD),
        }
        if n_experts:
            block |= {
                "ffn_gate_inp": matrix(n_experts, N_EMBD),
                "ffn_gate_exps": matrix(n_experts, EXPERT_FF, N_EMBD),
                "ffn_up_exps": matrix(n_experts, EXPERT_FF, N_EMBD),
                "ffn_down_exps": writing(n_experts, N_EMBD, EXPERT_FF, scale=0.9),
            }
        else:
            block |= {
                "ffn_gate": matrix(DENSE_FF, N_EMBD),
                "ffn_up": matrix(DENSE_FF, N_EMBD),
                "ffn_down": writing(N_EMBD, DENSE_FF, scale=0.5),
            }
        weights |= {f"blk.{layer}.{name}.weight": tensor for name, tensor in block.items()}
    return weights


def rms(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, EPS)


def rope(x: torch.Tensor) -> torch.Tensor:
    """Rotates x [..., time, head_dim], halves together."""
    half = x.shape[-1] // 2
    steps = ROPE_BASE ** (-torch.arange(half) / half)
    angles = torch.arange(x.shape[-2])[:, None] * steps
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def split_heads(x: torch.Tensor, n_heads: int) -> torch.Tensor:
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def target_forward(
    weights: dict[str, torch.Tensor], ids: torch.Tensor, n_layers: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Every layer's input [batch, time, n_embd], and the logits, of the all-experts model."""
    x, inputs = weights["token_embd.weight"][ids], []
    for layer in range(n_layers):
        inputs.append(x)
        w = {name: weights[f"blk.{layer}.{name}.weight"] for name in _block_names(weights, layer)}
        y = rms(x, w["attn_norm"])
        q = rope(rms(split_heads(y @ w["attn_q"].T, N_HEADS), w["attn_q_norm"]))
        k = rope(rms(split_heads(y @ w["attn_k"].T, N_KV_HEADS), w["attn_k_norm"]))
        v = split_heads(y @ w["attn_v"].T, N_KV_HEADS)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + mixed.transpose(1, 2).flatten(2) @ w["attn_output"].T
        y = rms(x, w["ffn_norm"])
        gates = (y @ w["ffn_gate_inp"].T).softmax(-1)
        gate = torch.einsum("btd,efd->btef", y, w["ffn_gate_exps"])
        up = torch.einsum("btd,efd->btef", y, w["ffn_up_exps"])
        experts = F.silu(gate) * up * gates[..., None]
        x = x + torch.einsum("btef,edf->btd", experts, w["ffn_down_exps"])
    return inputs, rms(x, weights["output_norm.weight"]) @ weights["output.weight"].T


def _block_names(weights: dict[str, torch.Tensor], layer: int) -> list[str]:
    prefix = f"blk.{layer}."
    return [name.split(".")[2] for name in weights if name.startswith(prefix)]
