"""Makes the bundled files: a quantised target and a half-precision head, and the reverse.

    python -m specfit.models.quantise SOURCE.gguf OUT.gguf --name "A name"
    python -m specfit.models.quantise HEAD_FOLDER OUT_FOLDER
    python -m specfit.models.quantise --to-f16 SOURCE.gguf OUT.gguf

Routed experts, two thirds of a small MoE model, become Q4_0 and other matrices Q8_0; norms, biases
and routers stay as they are, for they are small and routing is sensitive to them. Tensors are
streamed one by one and all metadata is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from specfit.models.errors import ModelFileError
from specfit.models.gguf_info import read_gguf_info

Rule = Callable[[str, tuple[int, ...], GGMLQuantizationType], GGMLQuantizationType]

_FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
_BLOCK = 32
# Written anew: by the writer itself, or because their value changes.
_REPLACED_KEYS = (
    "general.architecture",
    "general.file_type",
    "general.quantization_version",
)


def quantise(source: Path, target: Path, name: str | None = None) -> None:
    """Writes `source` (F32, F16 or BF16) with experts in Q4_0 and other matrices in Q8_0.

    name: replaces general.name. Raises ModelFileError if `source` cannot be read.
    """
    _rewrite(source, target, _shipping_type, LlamaFileType.MOSTLY_Q4_0, name)


def dequantise(source: Path, target: Path) -> None:
    """Writes `source` with every quantised tensor as F16. Raises ModelFileError as above."""
    _rewrite(source, target, _f16_type, LlamaFileType.MOSTLY_F16, None)


def halve_head(source: Path, target: Path) -> None:
    """Writes a head's folder with its weights in float16, its config saying so."""
    target.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(source.glob("*.safetensors")):
        tensors |= load_file(file)
    halved = {n: t.half() if t.is_floating_point() else t for n, t in tensors.items()}
    for name, tensor in halved.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ModelFileError(f"{source}: {name} has values beyond float16.")
    save_file(halved, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    # Names with an underscore are notes of whoever made the file.
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    config["torch_dtype"] = "float16"
    text = json.dumps(config, indent=2)
    (target / "config.json").write_text(text + "\n", encoding="utf-8")


def _shipping_type(
    name: str, shape: tuple[int, ...], old: GGMLQuantizationType
) -> GGMLQuantizationType:
    if len(shape) < 2 or "ffn_gate_inp" in name or shape[-1] % _BLOCK or old not in _FLOATS:
        return old
    return GGMLQuantizationType.Q4_0 if "_exps." in name else GGMLQuantizationType.Q8_0


def _f16_type(
    _name: str, _shape: tuple[int, ...], old: GGMLQuantizationType
) -> GGMLQuantizationType:
    return old if old in _FLOATS else GGMLQuantizationType.F16


def _rewrite(
    source: Path, target: Path, rule: Rule, file_type: LlamaFileType, name: str | None
) -> None:
    read_gguf_info(source)  # says in one sentence what is wrong with a file that cannot be read
    if target.exists() and target.samefile(source):
        raise ModelFileError(f"{target} is the source itself; give another name to write to.")
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    _copy_metadata(reader, writer)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if name is not None:
        writer.kv_data[0].pop("general.name", None)
        writer.add_name(name)
    for tensor_name, shape, new, _ in _plan(reader, rule):
        data_shape = gguf.quant_shape_to_byte_shape(shape, new) if new not in _FLOATS else shape
        n_bytes = int(np.prod(shape)) // _block_of(new)[0] * _block_of(new)[1]
        dtype = np.dtype(np.uint8) if new not in _FLOATS else np.dtype(np.float32)
        writer.add_tensor_info(tensor_name, data_shape, dtype, n_bytes, raw_dtype=new)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, _, new, tensor in _plan(reader, rule):
        writer.write_tensor_data(_converted(tensor, new))
    writer.close()


def _block_of(kind: GGMLQuantizationType) -> tuple[int, int]:
    elements, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    return int(elements), int(n_bytes)


def _plan(
    reader: GGUFReader, rule: Rule
) -> Iterator[tuple[str, tuple[int, ...], GGMLQuantizationType, gguf.ReaderTensor]]:
    """Name, shape (outermost first), new type and tensor of all tensors in the file's order."""
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        yield tensor.name, shape, rule(tensor.name, shape, tensor.tensor_type), tensor


def _converted(tensor: gguf.ReaderTensor, new: GGMLQuantizationType) -> NDArray[np.generic]:
    if new == tensor.tensor_type:
        return np.ascontiguousarray(tensor.data)
    values = gguf.dequantize(tensor.data, tensor.tensor_type)
    if new == GGMLQuantizationType.F16:
        return np.ascontiguousarray(values.astype(np.float16))
    return np.ascontiguousarray(gguf.quantize(values.astype(np.float32), new))


def _copy_metadata(reader: GGUFReader, writer: GGUFWriter) -> None:
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in _REPLACED_KEYS:
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=element)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m specfit.models.quantise")
    parser.add_argument("source", type=Path, help="a .gguf file, or the folder of a draft head")
    parser.add_argument("target", type=Path, help="the file or folder to write")
    parser.add_argument("--name", help="what the written model calls itself")
    parser.add_argument("--to-f16", action="store_true", help="dequantise instead")
    options = parser.parse_args(arguments)
    try:
        if options.source.is_dir():
            halve_head(options.source, options.target)
        elif options.to_f16:
            dequantise(options.source, options.target)
        else:
            quantise(options.source, options.target, options.name)
    except ModelFileError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
