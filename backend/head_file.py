"""A draft head's GGUF file, looked at before llama.cpp is given it.

llama.cpp checks most shapes itself; what it takes on trust, and would end the process for or read
beyond its memory, is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from specfit.models.convert_head import ARCHITECTURE
from specfit.models.errors import ModelFileError
from specfit.models.gguf_header import SkippedArray, TensorInfo, read_header
from specfit.models.gguf_info import GgufInfo
from specfit.models.stretch import Stretch

_LARGEST_TABLE = 1 << 24
# What a drafted level does not read, or of which it reads single rows.
_UNREAD = ("fc.weight", "token_embd.weight", "enc.output_norm.weight", "d2t")


@dataclass(frozen=True)
class HeadFile:
    """A head that fits its target.

    taps: target layers whose inputs are its features. n_features: floats of a token's features.
    target_ids: int64 [draft vocabulary], ascending or not; None if the draft vocabulary is the
    target's. n_bytes: of the weights that a drafted level reads. base: of RoPE; None for
    frequencies that are no geometric row.
    """

    path: Path
    taps: tuple[int, int, int]
    width: int
    n_features: int
    n_vocab: int
    target_ids: NDArray[np.int64] | None
    n_bytes: int
    base: float | None

    def set_rope(self, params: Any, stretch: Stretch | None) -> None:
        """Stretches the head's positions as its target's are, in llama_context_params; see
        `models/stretch.py`. A head that is stretched by itself stays as it is."""
        if stretch is None or self.base is None:
            return
        yarn = stretch.extrapolated != 0
        params.rope_scaling_type = 2 if yarn else 1
        params.rope_freq_base = self.base * stretch.base
        params.rope_freq_scale = 1 / stretch.factor
        params.yarn_orig_ctx = stretch.trained
        params.yarn_ext_factor = stretch.extrapolated
        params.yarn_beta_fast, params.yarn_beta_slow = stretch.beta_fast, stretch.beta_slow
        if not yarn:  # else llama.cpp sets it itself
            params.yarn_attn_factor = stretch.magnitude


def read_head_file(path: Path, target: GgufInfo) -> HeadFile:
    """Raises ModelFileError, in one sentence, if the file is unreadable, no EAGLE-3 head, damaged,
    or made for another model."""
    header = read_header(path)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    fields = _Fields(path, header.metadata)
    if header.metadata.get("general.architecture") != ARCHITECTURE:
        raise ModelFileError(
            f"{path} is no EAGLE-3 head: its architecture is "
            f"{header.metadata.get('general.architecture', 'missing')!s:.40}."
        )
    if fields.number("block_count") != 1:
        raise fields.damaged("an EAGLE-3 head has one layer")
    width, made_for = fields.number("embedding_length"), fields.number("target_hidden_size")
    if made_for != target.n_embd:
        raise fields.foreign(f"hidden size {made_for}", target.n_embd)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    n_vocab = tokens.length if isinstance(tokens, SkippedArray) else fields.number("vocab_size")
    if n_vocab != target.n_vocab:
        raise fields.foreign(f"a vocabulary of {n_vocab} tokens", target.n_vocab)
    if "token_embd.weight" not in tensors and width != target.n_embd:
        raise fields.foreign(f"width {width} and no embeddings of its own", target.n_embd)
    heads, size = fields.number("attention.head_count"), fields.number("attention.key_length")
    kv_heads = fields.number("attention.head_count_kv")
    if fields.number("attention.value_length") != size or heads % kv_heads:
        raise fields.damaged("its attention heads make no sense")
    ids = _target_ids(fields, tensors, n_vocab)
    if ids is not None and "output.weight" not in tensors:
        raise fields.damaged("it has a draft vocabulary and no output matrix")
    base = fields.metadata.get(f"{ARCHITECTURE}.rope.freq_base", 10_000.0)
    plain = "rope_freqs.weight" not in tensors and isinstance(base, float)
    read = (t.n_bytes for name, t in tensors.items() if name not in _UNREAD)
    return HeadFile(
        path=path,
        taps=fields.taps(target.n_layers),
        width=width,
        n_features=3 * target.n_embd,
        n_vocab=n_vocab,
        target_ids=ids,
        n_bytes=sum(read),
        base=float(base) if plain and isinstance(base, float) else None,
    )


@dataclass(frozen=True)
class _Fields:
    path: Path
    metadata: Mapping[str, Any]

    def number(self, key: str) -> int:
        value = self.metadata.get(f"{ARCHITECTURE}.{key}")
        if not isinstance(value, int) or not 0 < value < 1 << 24:
            raise self.damaged(f"its {key} is {value!s:.40}")
        return value

    def taps(self, n_layers: int) -> tuple[int, int, int]:
        held = self.metadata.get(f"{ARCHITECTURE}.target_layers")
        ids = held.numbers if isinstance(held, SkippedArray) else ()
        if len(ids) != 3:
            raise self.damaged("it does not say which three layers it reads")
        if min(ids) < 0 or max(ids) >= n_layers:
            raise ModelFileError(
                f"The draft head {self.path} reads the inputs of layers {ids!s:.60}, but its "
                f"target has {n_layers} layers; it was made for another model."
            )
        return ids[0], ids[1], ids[2]

    def damaged(self, what: str) -> ModelFileError:
        return ModelFileError(f"The draft head {self.path} is damaged: {what}.")

    def foreign(self, what: str, of_target: int) -> ModelFileError:
        return ModelFileError(
            f"The draft head {self.path} is for {what}, its target has {of_target}; it was made "
            "for another model."
        )


def _target_ids(
    fields: _Fields, tensors: Mapping[str, TensorInfo], n_vocab: int
) -> NDArray[np.int64] | None:
    """The table by which llama.cpp spreads the logits, unchecked."""
    table = tensors.get("d2t")
    if table is None:
        return None
    if table.type != Type.I64 or len(table.shape) != 1 or not 0 < table.shape[0] < _LARGEST_TABLE:
        raise fields.damaged("its table d2t holds no token ids")
    with table.path.open("rb") as file:
        file.seek(table.offset)
        ids = np.frombuffer(file.read(table.n_bytes), "<i8")
    if ids.min() < 0 or ids.max() >= n_vocab or len(np.unique(ids)) != len(ids):
        raise fields.damaged("its table d2t does not fit the vocabulary")
    return ids
