"""A published EAGLE-3 head as a GGUF file, as llama.cpp's own converter writes it.

Names, keys and the order of rotated rows are those of llama.cpp's `conversion/llama.py`, so that
llama-server takes the file too: `d2t` holds ids, not offsets; `target_layers` are those whose
inputs are the features; the vocabulary is the target's. RoPE that is stretched in whichever way is
written as factors of its frequencies. What llama.cpp's graph has no place for is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from numpy.typing import NDArray

from specfit.models.checkpoint import HeadCheckpoint, HeadConfig, TargetShape, read_checkpoint
from specfit.models.errors import ModelFileError
from specfit.models.gguf_header import whole_values
from specfit.models.gguf_info import GgufInfo
from specfit.models.gguf_writing import check_space, replacing, write_tensors
from specfit.models.rope import Rope
from specfit.models.scaling.storage import FILE_TYPES, n_bytes, stored

ARCHITECTURE = "eagle3"
TYPES = ("F32", "F16", "Q8_0")
_LARGEST_HALF = 65504.0
# Products of larger ones are beyond float32.
_LARGEST = 1e15
_ROWS = 4096
_LAYER = "midlayer."
_NAMES = {
    "fc.weight": "fc.weight",
    "input_norm.weight": "enc.output_norm.weight",
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    f"{_LAYER}input_layernorm.weight": "blk.0.attn_norm.weight",
    f"{_LAYER}hidden_norm.weight": "blk.0.attn_norm_2.weight",
    f"{_LAYER}post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    f"{_LAYER}self_attn.q_proj.weight": "blk.0.attn_q.weight",
    f"{_LAYER}self_attn.k_proj.weight": "blk.0.attn_k.weight",
    f"{_LAYER}self_attn.v_proj.weight": "blk.0.attn_v.weight",
    f"{_LAYER}self_attn.o_proj.weight": "blk.0.attn_output.weight",
    f"{_LAYER}mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    f"{_LAYER}mlp.up_proj.weight": "blk.0.ffn_up.weight",
    f"{_LAYER}mlp.down_proj.weight": "blk.0.ffn_down.weight",
}


class Inexpressible(ModelFileError):
    """A sound head that llama.cpp's graph has no place for."""


@dataclass(frozen=True)
class _Tensor:
    """name: in GGUF. values: [rows, columns], or [n], in the order llama.cpp wants them."""

    name: str
    kind: Type
    values: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def n_bytes(self) -> int:
        return n_bytes(self.kind, self.values.size)

    def chunks(self) -> Iterator[NDArray[Any]]:
        """Its bytes, a few rows at a time."""
        if self.kind == Type.I64:
            yield self.values
            return
        rows = np.atleast_2d(self.values)
        for start in range(0, len(rows), _ROWS):
            yield stored(rows[start : start + _ROWS], self.kind)


def convert_head(head: Path, target: GgufInfo, out: Path, file_type: str = "F16") -> None:
    """Writes the head in `head`, made for `target`, to `out`, whole or not at all.

    head: a folder, or the weights' file. file_type: of matrices, one of TYPES. Raises
    ModelFileError if it cannot be read or was made for another target, Inexpressible if llama.cpp
    cannot compute it, OSError if `out` cannot be written.
    """
    if target.architecture == ARCHITECTURE:
        raise ModelFileError(f"{target.path} is a draft head, not the model of one.")
    if head.suffix == ".gguf":
        raise ModelFileError(f"{head} is a GGUF file already.")
    checkpoint = read_checkpoint(head, TargetShape.of(target))
    refuse_inexpressible(checkpoint)
    config = checkpoint.config
    tensors = _tensors(checkpoint, target.n_vocab, file_type)
    check_space(out, sum(tensor.n_bytes for tensor in tensors))
    with replacing(out) as part:
        writer = GGUFWriter(part, ARCHITECTURE)
        try:
            _add_metadata(writer, config, checkpoint, target, file_type)
            write_tensors(writer, tensors)
        finally:
            writer.close()


def refuse_inexpressible(checkpoint: HeadCheckpoint) -> None:
    """Raises Inexpressible for a head that llama.cpp cannot compute."""
    config = checkpoint.config
    for name in checkpoint.tensors:
        if name.endswith(".bias"):
            raise _inexpressible(checkpoint, "has biases")
        if name.endswith("q_norm.weight"):
            raise _inexpressible(checkpoint, "normalises queries and keys")
    for option, what in (
        (config.feature_norms == 3, "normalises each layer's features by itself"),
        (config.norm_output, "hands on normalised states"),
        (config.window > 0, "sees a window only"),
    ):
        if option:
            raise _inexpressible(checkpoint, what)


def _inexpressible(checkpoint: HeadCheckpoint, what: str) -> Inexpressible:
    return Inexpressible(
        f"The draft head {checkpoint.path} {what}, which llama.cpp cannot compute."
    )


def _tensors(checkpoint: HeadCheckpoint, n_vocab: int, file_type: str) -> list[_Tensor]:
    config, tensors = checkpoint.config, []
    rotated = {
        f"{_LAYER}self_attn.q_proj.weight": config.n_heads,
        f"{_LAYER}self_attn.k_proj.weight": config.n_kv_heads,
    }
    for name, ours in _NAMES.items():
        if name not in checkpoint.tensors:
            continue
        values = checkpoint.tensors[name].floats()
        if float(np.abs(values).max(initial=0)) > _LARGEST:
            raise ModelFileError(
                f"{checkpoint.path} is damaged: the weights of {name} are too large."
            )
        if name in rotated:
            values = values[_interleaved(config, rotated[name])]
        tensors.append(_Tensor(ours, _kind(values, file_type, ours), values))
    ids = checkpoint.target_ids
    if not np.array_equal(ids, np.arange(n_vocab)):
        tensors.append(_Tensor("d2t", Type.I64, ids.astype("<i8")))
    factors = _rope(config.rope)[1]
    if factors is not None:
        tensors.append(_Tensor("rope_freqs.weight", Type.F32, factors))
    return tensors


def _kind(values: NDArray[np.float32], file_type: str, name: str) -> Type:
    """Norms, and what half precision cannot hold, are float32. So is `fc` where matrices are
    float16: llama.cpp then computes with features in float16, for which they can be too large."""
    kind = Type[file_type]
    if values.ndim == 1 or (name == "fc.weight" and kind == Type.F16):
        return Type.F32
    block = gguf.GGML_QUANT_SIZES[kind][0]
    if values.shape[1] % block:
        kind = Type.F16
    return Type.F32 if float(np.abs(values).max(initial=0)) > _LARGEST_HALF else kind


def _interleaved(config: HeadConfig, n_heads: int) -> NDArray[np.intp]:
    """Row numbers of query or key rows in llama.cpp's order: pairs that RoPE turns together, of
    each half one, side by side; rows that are not rotated behind them."""
    half = len(config.rope.frequencies)
    pairs = np.arange(2 * half).reshape(2, half).T.ravel()
    within = np.concatenate([pairs, np.arange(2 * half, config.head_dim)])
    return (np.arange(n_heads)[:, None] * config.head_dim + within).ravel()


def _rope(rope: Rope) -> tuple[float, NDArray[np.float32] | None]:
    """RoPE's base, and what its frequencies are to be divided by, None for 1."""
    frequencies = np.array(rope.frequencies)
    steps = np.arange(len(frequencies)) / len(frequencies)
    base = float(frequencies[-1] ** (-1 / steps[-1])) if len(steps) > 1 else 1e4
    if base > 1 and np.allclose(frequencies, base**-steps, rtol=1e-6):
        return base, None
    base = max(base, 1e4)
    return base, (base**-steps / frequencies).astype(np.float32)


def _add_metadata(
    writer: GGUFWriter,
    config: HeadConfig,
    checkpoint: HeadCheckpoint,
    target: GgufInfo,
    file_type: str,
) -> None:
    writer.add_name(f"EAGLE-3 head of {target.name}")
    writer.add_file_type(FILE_TYPES[file_type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(1)
    writer.add_context_length(target.context_length or 4096)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(checkpoint.tensors[f"{_LAYER}mlp.gate_proj.weight"].shape[0])
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(target.n_vocab)
    writer.add_rope_dimension_count(2 * len(config.rope.frequencies))
    writer.add_rope_freq_base(_rope(config.rope)[0])
    if config.rope.magnitude != 1.0:
        writer.add_float32(f"{ARCHITECTURE}.rope.scaling.attn_factor", config.rope.magnitude)
    writer.add_array(f"{ARCHITECTURE}.target_layers", list(config.taps))
    writer.add_uint32(f"{ARCHITECTURE}.target_hidden_size", target.n_embd)
    writer.add_bool(f"{ARCHITECTURE}.norm_before_residual", config.norm_before_residual)
    writer.add_bool(f"{ARCHITECTURE}.norm_before_fc", config.feature_norms == 1)
    for key, whole in whole_values(target.path, "tokenizer.").items():
        if key != "tokenizer.chat_template" and whole.value != []:
            writer.add_key_value(key, whole.value, whole.kind, sub_type=whole.elements)
