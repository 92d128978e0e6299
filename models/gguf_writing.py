"""Writing GGUF files whole or not at all, a part of a tensor at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from numpy.typing import NDArray

from specfit.models.errors import NoSpaceError

# Told bytes written, and of how many.
Progress = Callable[[int, int], None]

_SPARE_BYTES = 64 << 20
_PLAIN = (Type.F32, Type.F16, Type.I64)


class Writable(Protocol):
    """A tensor to be written. shape: outermost dimension first."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Type: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def n_bytes(self) -> int: ...

    @property
    def chunks(self) -> Callable[[], Iterator[NDArray[Any]]]:
        """Its bytes, in order, a part at a time."""


def check_space(out: Path, n_bytes: int) -> None:
    """Raises NoSpaceError if the disk has no room for that much at `out`."""
    free = shutil.disk_usage(out.absolute().parent).free
    if free < n_bytes + _SPARE_BYTES:
        raise NoSpaceError(
            f"{out} takes {_size(n_bytes)}, beside which {_size(_SPARE_BYTES)} are to stay free, "
            f"and its disk has {_size(free)} left."
        )


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A name to write to that becomes `out` if all goes well, and else is removed."""
    part = out.with_name(f"{out.name}.part")
    try:
        yield part
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def write_tensors(
    writer: GGUFWriter,
    tensors: Sequence[Writable],
    progress: Progress = lambda _done, _of: None,
) -> None:
    """Writes a file whose metadata `writer` has been given."""
    for tensor in tensors:
        kind, shape = tensor.kind, tensor.shape
        plain = kind in _PLAIN
        if not plain:
            shape = gguf.quant_shape_to_byte_shape(shape, kind)
        dtype = np.dtype(np.float32 if plain else np.uint8)
        writer.add_tensor_info(tensor.name, shape, dtype, tensor.n_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    # Straight to the file: the writer takes whole tensors only, which may be of 800 MB.
    file, done = writer.fout[0], 0
    total = sum(tensor.n_bytes for tensor in tensors)
    writer.write_padding(file, file.tell())
    for tensor in tensors:
        size = 0
        for chunk in tensor.chunks():
            file.write(np.ascontiguousarray(chunk).data)
            size += chunk.nbytes
            progress(done + size, total)
        if size != tensor.n_bytes:
            raise AssertionError(f"{tensor.name}: {size} bytes instead of {tensor.n_bytes}")
        writer.write_padding(file, size)
        done += size
