"""Networks that decode one token a row, thousands of rows at a time, from a GGUF file.

`llama` files (the teacher's) and `qwen3moe` files (ours) are read; quantised weights are computed
with as dequantised. All experts are computed for every token and weighed by their gates, zero for
those not chosen: with experts this small one full matrix product is faster than picking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import gguf
import numpy as np
import torch
import torch.nn.functional as F

from specfit.models.errors import ModelFileError
from specfit.models.gguf_info import read_gguf_info
from specfit.models.training.kernels import attend, rms_norm, rope_table, write_cache

_ARCHITECTURES = ("llama", "qwen3moe")

_Function = TypeVar("_Function", bound=Callable[..., object])


@dataclass(frozen=True)
class Sizes:
    """experts_used: 0 for a model without experts."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts_used: int
    rope_theta: float
    eps: float


@dataclass(frozen=True)
class _Layer:
    """Weights as [out, in]; of experts: gate_up [2 * experts * ff, in], down [out, experts * ff].

    head_norms: of queries and keys. router: [experts, in], float32; None without experts.
    """

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    ffn_norm: torch.Tensor
    router: torch.Tensor | None
    gate_up: torch.Tensor
    down: torch.Tensor


class DecodeNetwork:
    """A network with a key/value cache of `rows` texts of up to `length` tokens.

    A row's cache is valid up to the last position it was stepped at: to begin a new text, step at
    an earlier position. shared: so many first positions hold the same in all rows, as the caller
    may promise.
    """

    shared = 0

    def __init__(self, file: _File, rows: int, length: int) -> None:
        sizes = file.sizes
        self.rows, self.length, self.device = rows, length, file.device
        self._sizes = sizes
        self._embedding = file.matrix("token_embd")
        tied = not file.has("output")
        self._output = self._embedding if tied else file.matrix("output")
        self._layers = [file.layer(index) for index in range(sizes.layers)]
        # Each norm is computed with the sum before it: a layer ends with the next one's.
        self._next_norms = [layer.attention_norm for layer in self._layers[1:]]
        self._next_norms.append(file.vector("output_norm"))
        shape = (2, rows, sizes.kv_heads, length, sizes.head_dim)
        self._caches = [
            torch.zeros(shape, device=file.device, dtype=file.dtype) for _ in self._layers
        ]
        self._rope = rope_table(sizes.head_dim, sizes.rope_theta, length, file.device)
        self._add_and_norm = compiled(_add_and_norm, file.device)
        self._activation = compiled(_activation, file.device)
        self._gated_activation = compiled(_gated_activation, file.device)

    @torch.no_grad()
    def step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] after one token a row.

        tokens, positions: int64 [rows]. No host synchronisation on a GPU.
        """
        eps = self._sizes.eps
        x = self._embedding[tokens]
        h = rms_norm(x, self._layers[0].attention_norm, eps)
        for index, layer in enumerate(self._layers):
            keys, values = self._caches[index]
            query = write_cache(
                h @ layer.qkv.T, keys, values, positions, self._rope, layer.head_norms, eps
            )
            mixed = attend(query, keys, values, positions, self.shared).flatten(1)
            x, h = self._add_and_norm(x, mixed @ layer.out.T, layer.ffn_norm, eps)
            x, h = self._add_and_norm(x, self._ffn(layer, h), self._next_norms[index], eps)
        return h @ self._output.T

    def _ffn(self, layer: _Layer, h: torch.Tensor) -> torch.Tensor:
        gate_up = h @ layer.gate_up.T
        if layer.router is None:
            return self._activation(gate_up) @ layer.down.T
        gates = _gates(h.float() @ layer.router.T, self._sizes.experts_used)
        return self._gated_activation(gate_up, gates) @ layer.down.T


def load_decoder_network(
    path: Path, rows: int, length: int, device: torch.device | str, dtype: torch.dtype
) -> DecodeNetwork:
    """Loads a `llama` or `qwen3moe` file, of any quantisation that the gguf package reads.

    device: a GPU with a number becomes the current one, on which kernels and graphs run.
    dtype: of matrices, activations and cache. Raises ModelFileError if the file is of another
    architecture, damaged, or not there.
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return DecodeNetwork(_File(path, device, dtype), rows, length)


def _add_and_norm(
    x: torch.Tensor, more: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    x = x + more
    return x, rms_norm(x, weight, eps)


def _activation(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate.float()).mul(up.float()).to(gate_up.dtype)


def _gated_activation(gate_up: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    rows, inner = gate_up.shape
    gate, up = gate_up.chunk(2, -1)
    experts = F.silu(gate.float()).mul(up.float()).view(rows, gates.shape[1], -1)
    return (experts * gates[:, :, None]).to(gate_up.dtype).view(rows, inner // 2)


def _gates(logits: torch.Tensor, used: int) -> torch.Tensor:
    """float32 [rows, experts]: of softmax the `used` largest, their sum 1; zero elsewhere."""
    chances = torch.softmax(logits, -1)
    best, which = chances.topk(used, -1)
    best = best / best.sum(-1, keepdim=True)
    return torch.zeros_like(chances).scatter_(1, which, best)


class _File:
    """A model file, read tensor by tensor onto the device."""

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype) -> None:
        self._info = read_gguf_info(path)
        self.device, self.dtype = device, dtype
        if self._info.architecture not in _ARCHITECTURES:
            raise ModelFileError(
                f"{path} is a {self._info.architecture}; "
                f"only {' and '.join(_ARCHITECTURES)} can be decoded here."
            )
        heads = int(self._number("attention.head_count"))
        plain = self._info.n_embd // heads
        self.sizes = Sizes(
            layers=self._info.n_layers,
            heads=heads,
            kv_heads=int(self._number("attention.head_count_kv", heads)),
            head_dim=int(self._number("attention.key_length", plain)),
            experts_used=self._info.n_experts_used,
            rope_theta=self._number("rope.freq_base", 10000.0),
            eps=self._number("attention.layer_norm_rms_epsilon"),
        )

    def has(self, name: str) -> bool:
        return any(tensor.name == f"{name}.weight" for tensor in self._info.tensors)

    def vector(self, name: str) -> torch.Tensor:
        """float32 on the device: norms and routers, which are small."""
        return self._read(name).to(self.device)

    def matrix(self, name: str) -> torch.Tensor:
        return self._placed(self._read(name))

    def layer(self, index: int) -> _Layer:
        at, sizes = f"blk.{index}.", self.sizes
        query, key, value = (self._read(f"{at}attn_{name}") for name in "qkv")
        if sizes.experts_used:
            norms: tuple[torch.Tensor, torch.Tensor] | None = (
                self.vector(f"{at}attn_q_norm"),
                self.vector(f"{at}attn_k_norm"),
            )
            router: torch.Tensor | None = self.vector(f"{at}ffn_gate_inp")
            # [experts, ff, in] twice, and [experts, out, ff].
            gate, up = (self._read(f"{at}ffn_{name}_exps").flatten(0, 1) for name in ("gate", "up"))
            down = self._read(f"{at}ffn_down_exps").transpose(0, 1).flatten(1)
        else:
            norms, router = None, None
            query = _halves_together(query, sizes.heads)
            key = _halves_together(key, sizes.kv_heads)
            gate, up, down = (self._read(f"{at}ffn_{name}") for name in ("gate", "up", "down"))
        return _Layer(
            attention_norm=self.vector(f"{at}attn_norm"),
            qkv=self._placed(torch.cat([query, key, value])),
            out=self.matrix(f"{at}attn_output"),
            head_norms=norms,
            ffn_norm=self.vector(f"{at}ffn_norm"),
            router=router,
            gate_up=self._placed(torch.cat([gate, up])),
            down=self._placed(down),
        )

    def _placed(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix.to(self.device, self.dtype).contiguous()

    def _read(self, name: str) -> torch.Tensor:
        """float32 on the CPU, outermost dimension first."""
        tensor = self._info.tensor(f"{name}.weight")
        data = np.memmap(tensor.path, np.uint8, "r", tensor.offset, (tensor.n_bytes,))
        try:
            values = gguf.dequantize(data.reshape(*tensor.shape[:-1], -1), tensor.type)
        except NotImplementedError:
            raise ModelFileError(
                f"{tensor.path} stores {tensor.name} as {tensor.type.name}, "
                "which cannot be read here."
            ) from None
        # A copy where the file already holds float32: the result must not stay tied to the map.
        return torch.from_numpy(np.array(values, np.float32).reshape(tensor.shape))

    def _number(self, key: str, otherwise: float | None = None) -> float:
        value = self._info.metadata.get(f"{self._info.architecture}.{key}", otherwise)
        if not isinstance(value, int | float):
            raise ModelFileError(f"{self._info.path} lacks {self._info.architecture}.{key}.")
        return float(value)


def _halves_together(matrix: torch.Tensor, heads: int) -> torch.Tensor:
    """A `llama` file's query or key rows, whose rotated pairs are neighbours, as halves."""
    return matrix.view(heads, -1, 2, matrix.shape[1]).transpose(1, 2).reshape(matrix.shape)


def compiled(function: _Function, device: torch.device) -> _Function:
    """The function, compiled where that pays."""
    if device.type != "cuda":
        return function
    return cast(_Function, torch.compile(function, dynamic=False))
