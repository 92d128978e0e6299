"""The small model in numpy: its weights, and text that it writes, with the hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from specfit.models.errors import ModelFileError
from specfit.models.gguf_info import read_gguf_info

Floats = NDArray[np.float32]

_TEMPERATURE = 0.8


class SourceModel:
    """A `qwen3moe` file, small enough to be held in memory as float32.

    Raises ModelFileError if `path` is no such file.
    """

    def __init__(self, path: Path) -> None:
        info = read_gguf_info(path)
        if info.architecture != "qwen3moe":
            raise ModelFileError(f"{path} is a {info.architecture}; only a qwen3moe can be scaled.")
        self.path = path
        self.reader = gguf.GGUFReader(path)
        self.n_layers, self.n_embd, self.n_vocab = info.n_layers, info.n_embd, info.n_vocab
        self.n_experts, self.n_used = info.n_experts, info.n_experts_used
        self.n_heads = self._number("attention.head_count")
        self.n_kv_heads = self._number("attention.head_count_kv")
        self.head_dim = self._number("attention.key_length")
        self.expert_ff = self._number("expert_feed_forward_length")
        self.epsilon = float(self._value("attention.layer_norm_rms_epsilon"))
        self.rope_base = float(self._value("rope.freq_base"))
        self._tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        if "output.weight" not in self._tensors:
            raise ModelFileError(f"{path} shares embedding and output, which cannot be scaled.")

    def _value(self, key: str) -> Any:
        field = self.reader.fields.get(f"qwen3moe.{key}")
        if field is None:
            raise ModelFileError(f"{self.path} lacks qwen3moe.{key}.")
        return field.contents()

    def _number(self, key: str) -> int:
        return int(self._value(key))

    @cached_property
    def first_token(self) -> int:
        """What a text begins with: the start of a turn, else the model's own beginning."""
        tokens = self.reader.fields["tokenizer.ggml.tokens"].contents()
        if "<|im_start|>" in tokens:
            return int(tokens.index("<|im_start|>"))
        field = self.reader.fields.get("tokenizer.ggml.bos_token_id")
        return int(field.contents()) if field is not None else 0

    def tensor(self, name: str) -> Floats:
        """float32, outermost dimension first. Raises ModelFileError if there is none."""
        tensor = self._tensors.get(f"{name}.weight")
        if tensor is None:
            raise ModelFileError(f"{self.path} has no tensor {name}.weight.")
        return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)

    def layer(self, index: int) -> Mapping[str, Floats]:
        """The tensors of a layer by their short names."""
        return {name: self.tensor(f"blk.{index}.{name}") for name in LAYER_TENSORS}


LAYER_TENSORS = (
    *("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm"),
    *("ffn_norm", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
)


@dataclass(frozen=True)
class Recording:
    """Texts that the model wrote.

    tokens: int64 [texts, length]. residuals: float32 [layer, texts, length, n_embd], each layer's
    output. experts: int64 [layer, texts, length, n_used].
    """

    tokens: NDArray[np.int64]
    residuals: Floats
    experts: NDArray[np.int64]


def write_texts(model: SourceModel, n_texts: int, length: int, seed: int) -> Recording:
    """Lets the model write `n_texts` texts side by side, sampled at temperature 0.8."""
    random = np.random.default_rng(seed)
    layers = [_Layer(model, index, n_texts, length) for index in range(model.n_layers)]
    embedding, output = model.tensor("token_embd"), model.tensor("output")
    output = output * model.tensor("output_norm")
    tokens = np.full((n_texts, length), model.first_token, np.int64)
    shape = (model.n_layers, n_texts, length)
    residuals = np.empty((*shape, model.n_embd), np.float32)
    experts = np.empty((*shape, model.n_used), np.int64)
    for place in range(length):
        x = embedding[tokens[:, place]]
        for index, layer in enumerate(layers):
            x, experts[index, :, place] = layer.step(x, place)
            residuals[index, :, place] = x
        if place + 1 < length:
            logits = rms_normed(x, model.epsilon) @ output.T / _TEMPERATURE
            # The largest logit plus Gumbel noise is a sample of their softmax.
            tokens[:, place + 1] = (logits + random.gumbel(size=logits.shape)).argmax(1)
    return Recording(tokens, residuals, experts)


def rms_normed(x: Floats, epsilon: float) -> Floats:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def top_experts(logits: Floats, n_used: int) -> NDArray[np.int64]:
    """The experts of the largest logits along the last axis, in no order."""
    return np.argpartition(-logits, n_used - 1, axis=-1)[..., :n_used]


class _Layer:
    """One layer with its key/value cache, a token at a time; norms are folded into matrices."""

    def __init__(self, model: SourceModel, index: int, n_texts: int, length: int) -> None:
        w = model.layer(index)
        self._model = model
        self._qkv = np.concatenate([w["attn_q"], w["attn_k"], w["attn_v"]]) * w["attn_norm"]
        self._q_norm, self._k_norm = w["attn_q_norm"], w["attn_k_norm"]
        self._out = w["attn_output"]
        self._router = w["ffn_gate_inp"] * w["ffn_norm"]
        # All experts at once are one product, cheaper in numpy than picking eight.
        self._gate = (w["ffn_gate_exps"] * w["ffn_norm"]).reshape(-1, model.n_embd)
        self._up = (w["ffn_up_exps"] * w["ffn_norm"]).reshape(-1, model.n_embd)
        self._down = np.moveaxis(w["ffn_down_exps"], 1, 2).reshape(-1, model.n_embd)
        cache = (n_texts, model.n_kv_heads, length, model.head_dim)
        self._keys, self._values = np.zeros(cache, np.float32), np.zeros(cache, np.float32)

    def step(self, x: Floats, place: int) -> tuple[Floats, NDArray[np.int64]]:
        """x [texts, n_embd] through the layer; and the experts used [texts, n_used]."""
        x = x + self._attention(x, place) @ self._out.T
        y = rms_normed(x, self._model.epsilon)
        logits = y @ self._router.T
        chosen = top_experts(logits, self._model.n_used)
        gates = np.zeros_like(logits)
        picked = np.take_along_axis(logits, chosen, 1)
        picked = np.exp(picked - picked.max(1, keepdims=True))
        np.put_along_axis(gates, chosen, picked / picked.sum(1, keepdims=True), 1)
        gate = y @ self._gate.T
        hidden = gate / (1 + np.exp(-gate)) * (y @ self._up.T)
        hidden *= np.repeat(gates, self._model.expert_ff, axis=1)
        return x + hidden @ self._down, chosen

    def _attention(self, x: Floats, place: int) -> Floats:
        model, n = self._model, len(x)
        qkv = (rms_normed(x, model.epsilon) @ self._qkv.T).reshape(n, -1, model.head_dim)
        q, k, v = np.split(qkv, [model.n_heads, model.n_heads + model.n_kv_heads], axis=1)
        q = self._rotated(rms_normed(q, model.epsilon) * self._q_norm, place)
        self._keys[:, :, place] = self._rotated(rms_normed(k, model.epsilon) * self._k_norm, place)
        self._values[:, :, place] = v
        q = q.reshape(n, model.n_kv_heads, -1, model.head_dim)
        scores = q @ self._keys[:, :, : place + 1].swapaxes(2, 3) * model.head_dim**-0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return (weights @ self._values[:, :, : place + 1]).reshape(n, -1)

    def _rotated(self, x: Floats, place: int) -> Floats:
        """RoPE over x [texts, heads, head_dim], first half with second half."""
        half = self._model.head_dim // 2
        steps = self._model.rope_base ** (-np.arange(half) / half)
        cos, sin = np.cos(place * steps), np.sin(place * steps)
        first, second = x[..., :half], x[..., half:]
        turned = [first * cos - second * sin, second * cos + first * sin]
        return np.concatenate(turned, -1).astype(np.float32)
