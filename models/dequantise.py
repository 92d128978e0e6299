"""A GGUF file with its quantised tensors as float16, for experiments without quantised arithmetic.

    python -m specfit.models.dequantise SOURCE.gguf OUT.gguf

The bundled model was trained with the weights that its file holds, so this is all of it: there is
no better original. Tensors are streamed one by one and all metadata is kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType

from specfit.models.errors import ModelFileError
from specfit.models.gguf_info import read_gguf_info

_FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
# Written anew: by the writer itself, or because their value changes.
_REPLACED_KEYS = (
    "general.architecture",
    "general.file_type",
    "general.quantization_version",
)


def dequantise(source: Path, target: Path) -> None:
    """Writes `source` with every quantised tensor as F16; F32, F16 and BF16 stay as they are.

    Raises ModelFileError if `source` cannot be read, or is `target`.
    """
    read_gguf_info(source)  # says in one sentence what is wrong with a file that cannot be read
    if target.exists() and target.samefile(source):
        raise ModelFileError(f"{target} is the source itself; give another name to write to.")
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    _copy_metadata(reader, writer)
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        kind = tensor.tensor_type if tensor.tensor_type in _FLOATS else GGMLQuantizationType.F16
        n_bytes = int(np.prod(shape)) * gguf.GGML_QUANT_SIZES[kind][1]
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), n_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        if tensor.tensor_type in _FLOATS:
            writer.write_tensor_data(np.ascontiguousarray(tensor.data))
        else:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            writer.write_tensor_data(np.ascontiguousarray(values.astype(np.float16)))
    writer.close()


def _copy_metadata(reader: GGUFReader, writer: GGUFWriter) -> None:
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in _REPLACED_KEYS:
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=element)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m specfit.models.dequantise")
    parser.add_argument("source", type=Path, help="a .gguf file")
    parser.add_argument("target", type=Path, help="the file to write")
    options = parser.parse_args(arguments)
    try:
        dequantise(options.source, options.target)
    except ModelFileError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
