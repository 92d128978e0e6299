"""How the tensors of a scaled file are stored: types as llama.cpp's recipes choose them, and bytes.

What pads a tensor is either zero, which is zero bytes in every type, or noise. Noise is quantised
once and then cut from a pool at random places, for a 30B model has too many values to quantise.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import gguf
import llama_cpp.llama_cpp as llama
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import LlamaFileType
from numpy.typing import NDArray

from specfit.models.scaling.shape import more_bits
from specfit.models.scaling.source import Floats

Bytes = NDArray[np.uint8]

FILE_TYPES = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
    "Q4_K_M": LlamaFileType.MOSTLY_Q4_K_M,
}
_BLOCKS = {"F32": 1, "F16": 1, "Q8_0": 32, "Q4_K_M": 256}
_POOL = 1 << 22
_NOISE = 0.02


def block_of(file_type: str) -> int:
    """Values that the type quantises together."""
    return _BLOCKS[file_type]


def tensor_type(file_type: str, name: str, layer: int, n_layers: int) -> Type:
    """A tensor's type by its short name; `layer` is 0 for tensors outside of layers."""
    if "norm" in name or name == "ffn_gate_inp":
        return Type.F32
    if file_type != "Q4_K_M":
        return Type[file_type]
    better = name in ("attn_v", "ffn_down_exps") and more_bits(layer, n_layers)
    return Type.Q6_K if better or name == "output" else Type.Q4_K


def n_bytes(kind: Type, n_values: int) -> int:
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    return n_values // int(elements) * int(size)


_quantize_chunk = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
)(("ggml_quantize_chunk", llama._lib))


def stored(values: Floats, kind: Type) -> Bytes:
    """uint8 [rows, bytes]: rows of float32 [rows, columns] in that type."""
    values = np.ascontiguousarray(values, np.float32)
    rows, columns = values.shape
    if kind == Type.F32:
        return values.view(np.uint8)
    if kind == Type.F16:
        return values.astype(np.float16).view(np.uint8)
    out = np.empty((rows, n_bytes(kind, columns)), np.uint8)
    source, target = values.ctypes.data, out.ctypes.data
    _quantize_chunk(int(kind), source, target, 0, rows, columns, None)
    return out


@dataclass
class Noise:
    """Random weights, by the byte."""

    random: np.random.Generator

    def __post_init__(self) -> None:
        values = self.random.standard_normal(_POOL, dtype=np.float32) * _NOISE
        self._values = values.reshape(-1, 256)
        self._pools: dict[Type, Bytes] = {}

    def rows(self, kind: Type, n_rows: int, columns: int) -> Bytes:
        """uint8 [rows, bytes] of random weights."""
        if kind not in self._pools:
            self._pools[kind] = stored(self._values, kind).ravel()
        pool = self._pools[kind]
        size, step = n_rows * n_bytes(kind, columns), n_bytes(kind, 256)
        pool = np.tile(pool, -(-size // len(pool))) if size > len(pool) else pool
        start = int(self.random.integers((len(pool) - size) // step + 1)) * step
        return pool[start : start + size].reshape(n_rows, -1).copy()
