"""Which models SpecFit is made for, and what they take, without having them.

Sizes are reckoned tensor by tensor, with the types that llama.cpp's quantisation gives each, so
that the planner of placements can be asked about them as about files. They are those of the
published files (Qwen3-30B-A3B, in GB: Q8_0 32.48, Q6_K 25.10, Q5_K_M 21.74, Q4_K_M 18.56), less
some megabytes of vocabulary; an importance matrix makes IQ4_XS 1 % smaller. Instruct-2507 has the
same shape. Heads: each fits the model that it was trained for and no other. Names only; nothing is
downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from specfit.backend.plan import Needs, Weights, head_bytes_of, needs_of, sorted_weights
from specfit.models.scaling.shape import SHAPES, Shape, more_bits

QWEN3_30B_A3B = SHAPES["qwen3-30b-a3b"]
EXPERTS, EXPERTS_USED, HEAD_DIM = 128, 8, 128  # as in Qwen's config.json
CONTEXT = 4096
# Cells of a tree in verification, and what llama.cpp rounds the cache up to.
_TREE, _CELLS = 64, 256
# A head reads the inputs of three layers, of batches of so many tokens.
_TAPS, _BATCH = 3, 512
_MIB = 1 << 20
# What llama.cpp computes this shape in, all on one device, and what it hands out on the host; both
# as it tells (tests/test_recommended.py). With experts in host memory a GPU holds copies of two of
# their tensors besides, for batches of many tokens.
_GRAPH, _OUTPUTS = 93 * _MIB, 38 * _MIB
# Bytes of 256 weights.
_BYTES = {"Q8_0": 272, "Q6_K": 210, "Q5_K": 176, "Q4_K": 144, "IQ4_XS": 136, "F32": 1024}


@dataclass(frozen=True)
class Quant:
    """Types of a quantisation: of most matrices, of values and of down matrices in layers that
    have `more`, and of the output."""

    base: str
    values: str
    down: str
    output: str

    def more(self, layer: int, n_layers: int) -> tuple[str, str]:
        """Types of values and of down matrices in a layer, by llama.cpp's rules."""
        if self.base == "IQ4_XS":
            return self.values, self.down if layer < n_layers // 8 else self.base
        better = more_bits(layer, n_layers)
        return (self.values, self.down) if better else (self.base, self.base)


QUANTS: Mapping[str, Quant] = {
    "Q8_0": Quant("Q8_0", "Q8_0", "Q8_0", "Q8_0"),
    "Q6_K": Quant("Q6_K", "Q6_K", "Q6_K", "Q6_K"),
    "Q5_K_M": Quant("Q5_K", "Q6_K", "Q6_K", "Q6_K"),
    "Q4_K_M": Quant("Q4_K", "Q6_K", "Q6_K", "Q6_K"),
    "IQ4_XS": Quant("IQ4_XS", "Q5_K", "Q5_K", "Q6_K"),
}


@dataclass(frozen=True)
class DescribedTensor:
    """Of a file that is not there. type: of _BYTES."""

    name: str
    shape: tuple[int, ...]
    type: str

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) * _BYTES[self.type] // 256


@dataclass(frozen=True)
class Recommended:
    """A file on the hub. repo, quant: as -hf takes them. heads: for -hfd, the first being the one
    to try first."""

    repo: str
    quant: str
    shape: Shape
    heads: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.repo}:{self.quant}"

    @property
    def size(self) -> int:
        """Bytes of its weights, and so nearly of the file."""
        return self.weights.total

    @cached_property
    def weights(self) -> Weights:
        return sorted_weights(tuple(tensors(self.shape, QUANTS[self.quant])), self.shape.layers)

    def needs(self, *, on_gpu: bool, split: bool) -> Needs:
        """What runs beside the weights, with a head, for one line of CONTEXT tokens.

        split: whether a GPU has some layers' experts in host memory.
        """
        shape = self.shape
        cells = -(-(CONTEXT + _TREE) // _CELLS) * _CELLS
        copies = 2 * max(self.weights.experts) // 3 if split else 0
        head = head_tensors(shape)
        return needs_of(
            ctx=CONTEXT,
            lines=1,
            kv=cells * shape.layers * shape.kv_heads * 2 * HEAD_DIM * 2,
            gpu=_GRAPH + copies,
            host=_OUTPUTS + (0 if on_gpu and not split else _GRAPH),
            features=_TAPS * _BATCH * shape.embd * 4,
            head=(
                head_bytes_of(head, CONTEXT, on_gpu=True),
                head_bytes_of(head, CONTEXT, on_gpu=False),
            ),
            on_gpu=on_gpu,
        )


def tensors(shape: Shape, quant: Quant) -> Iterator[DescribedTensor]:
    """All tensors of a `qwen3moe` file. Shapes have the longest axis first."""
    embd, ff = shape.embd, shape.expert_ff
    q, kv = shape.heads * HEAD_DIM, shape.kv_heads * HEAD_DIM
    yield DescribedTensor("token_embd.weight", (shape.vocab, embd), quant.base)
    yield DescribedTensor("output.weight", (shape.vocab, embd), quant.output)
    yield DescribedTensor("output_norm.weight", (embd,), "F32")
    for layer in range(shape.layers):
        values, down = quant.more(layer, shape.layers)
        for name, size, kind in (
            ("attn_norm", (embd,), "F32"),
            ("attn_q", (q, embd), quant.base),
            ("attn_k", (kv, embd), quant.base),
            ("attn_v", (kv, embd), values),
            ("attn_output", (embd, q), quant.base),
            ("attn_q_norm", (HEAD_DIM,), "F32"),
            ("attn_k_norm", (HEAD_DIM,), "F32"),
            ("ffn_norm", (embd,), "F32"),
            ("ffn_gate_inp", (EXPERTS, embd), "F32"),
            ("ffn_gate_exps", (EXPERTS, ff, embd), quant.base),
            ("ffn_up_exps", (EXPERTS, ff, embd), quant.base),
            ("ffn_down_exps", (EXPERTS, embd, ff), down),
        ):
            yield DescribedTensor(f"blk.{layer}.{name}.weight", size, kind)


def head_tensors(shape: Shape) -> dict[str, dict[str, Any]]:
    """What an EAGLE-3 head holds, as its safetensors header would say; of SpecForge's config for
    Qwen3-30B-A3B, which the published heads follow."""
    assert shape.head_ff is not None and shape.draft_vocab is not None
    embd, ff = shape.embd, shape.head_ff
    q, kv = shape.heads * HEAD_DIM, shape.kv_heads * HEAD_DIM
    shapes = {
        "fc.weight": (embd, 3 * embd),
        "midlayer.self_attn.q_proj.weight": (q, 2 * embd),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * embd),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * embd),
        "midlayer.self_attn.o_proj.weight": (embd, q),
        "midlayer.mlp.gate_proj.weight": (ff, embd),
        "midlayer.mlp.up_proj.weight": (ff, embd),
        "midlayer.mlp.down_proj.weight": (embd, ff),
        "lm_head.weight": (shape.draft_vocab, embd),
    }
    return {name: {"dtype": "BF16", "shape": size} for name, size in shapes.items()} | {
        "d2t": {"dtype": "I64", "shape": (shape.draft_vocab,)},
        "t2d": {"dtype": "BOOL", "shape": (shape.vocab,)},
    }


_INSTRUCT = "unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF"
_INSTRUCT_HEADS = (
    "lmsys/SGLang-EAGLE3-Qwen3-30B-A3B-Instruct-2507-SpecForge-Nex",
    "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.eagle3",
)
_BASE = "Qwen/Qwen3-30B-A3B-GGUF"
_BASE_HEADS = ("AngelSlim/Qwen3-a3B_eagle3", "Tengyunw/qwen3_30b_moe_eagle3")


def _both(quant: str) -> tuple[Recommended, Recommended]:
    return (
        Recommended(_INSTRUCT, quant, QWEN3_30B_A3B, _INSTRUCT_HEADS),
        Recommended(_BASE, quant, QWEN3_30B_A3B, _BASE_HEADS),
    )


# From the best to the smallest. Below four bits quality falls off quickly.
RECOMMENDED: tuple[Recommended, ...] = (
    *_both("Q8_0"),
    *_both("Q6_K"),
    *_both("Q5_K_M"),
    *_both("Q4_K_M"),
    Recommended(_INSTRUCT, "IQ4_XS", QWEN3_30B_A3B, _INSTRUCT_HEADS),
)
