"""A GGUF file with the header of Qwen3-30B-A3B in Q4_K_M, and a hole where its weights would be."""

from __future__ import annotations

from math import prod
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from specfit.models import bundled_model
from specfit.models.scaling.shape import SHAPES, more_bits

SHAPE = SHAPES["qwen3-30b-a3b"]
EXPERTS, HEAD_DIM = 128, 128
_VALUES = {
    "embedding_length": SHAPE.embd,
    "block_count": SHAPE.layers,
    "attention.head_count": SHAPE.heads,
    "attention.head_count_kv": SHAPE.kv_heads,
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "rope.dimension_count": HEAD_DIM,
    "expert_feed_forward_length": SHAPE.expert_ff,
    "expert_count": EXPERTS,
    "vocab_size": SHAPE.vocab,
    "context_length": 40_960,
}


def write_full_shape(out: Path) -> Path:
    """Takes some hundred kilobytes of the disk, and says 18.5 GB; llama.cpp loads it without
    memory for its weights."""
    writer = GGUFWriter(out, "qwen3moe")
    _add_metadata(writer)
    n_bytes = 0
    for name, shape, kind in _tensors():
        block, size = gguf.GGML_QUANT_SIZES[kind]
        n = prod(shape) // block * size
        quantised = kind is not Type.F32
        stored = gguf.quant_shape_to_byte_shape(shape, kind) if quantised else shape
        dtype = np.dtype(np.uint8 if quantised else np.float32)
        writer.add_tensor_info(name, stored, dtype, n, raw_dtype=kind)
        n_bytes += -(-n // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    file = writer.fout[0]
    writer.write_padding(file, file.tell())
    file.truncate(file.tell() + n_bytes)
    writer.close()
    return out


def _tensors() -> list[tuple[str, tuple[int, ...], Type]]:
    """Names, shapes with the longest axis first, and types."""
    embd, ff = SHAPE.embd, SHAPE.expert_ff
    q, kv = SHAPE.heads * HEAD_DIM, SHAPE.kv_heads * HEAD_DIM
    tensors = [
        ("token_embd.weight", (SHAPE.vocab, embd), Type.Q4_K),
        ("output_norm.weight", (embd,), Type.F32),
        ("output.weight", (SHAPE.vocab, embd), Type.Q6_K),
    ]
    for layer in range(SHAPE.layers):
        better = Type.Q6_K if more_bits(layer, SHAPE.layers) else Type.Q4_K
        tensors += [
            (f"blk.{layer}.{name}.weight", shape, kind)
            for name, shape, kind in (
                ("attn_norm", (embd,), Type.F32),
                ("attn_q", (q, embd), Type.Q4_K),
                ("attn_k", (kv, embd), Type.Q4_K),
                ("attn_v", (kv, embd), better),
                ("attn_output", (embd, q), Type.Q4_K),
                ("attn_q_norm", (HEAD_DIM,), Type.F32),
                ("attn_k_norm", (HEAD_DIM,), Type.F32),
                ("ffn_norm", (embd,), Type.F32),
                ("ffn_gate_inp", (EXPERTS, embd), Type.F32),
                ("ffn_gate_exps", (EXPERTS, ff, embd), Type.Q4_K),
                ("ffn_up_exps", (EXPERTS, ff, embd), Type.Q4_K),
                ("ffn_down_exps", (EXPERTS, embd, ff), better),
            )
        ]
    return tensors


def _add_metadata(writer: GGUFWriter) -> None:
    """The bundled model's, with the larger sizes and a padded vocabulary."""
    for field in GGUFReader(bundled_model()).fields.values():
        name, kind = field.name, field.types[0]
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = _VALUES.get(name.removeprefix("qwen3moe.")) or field.contents()
        if name == "tokenizer.ggml.tokens":
            value = [*value, *(f"<|pad_{i}|>" for i in range(SHAPE.vocab - len(value)))]
        elif name == "tokenizer.ggml.token_type":
            value = [*value, *[int(gguf.TokenType.UNUSED)] * (SHAPE.vocab - len(value))]
        elif name == "tokenizer.ggml.scores":
            value = [*value, *[0.0] * (SHAPE.vocab - len(value))]
        element = field.types[-1] if kind is GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub_type=element)
