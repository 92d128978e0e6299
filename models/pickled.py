"""Reading PyTorch's `.bin` without PyTorch: a pickle in a zip file, and storages beside it.

A pickle can ask for any function to be called. So it is read only if it asks for nothing but what
a plain dictionary of tensors needs, which is looked at before anything is run, and those few are
ours. Storages are mapped, so that only what is used of them is read.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specfit.models.errors import ModelFileError
from specfit.models.stored import TYPES, Stored

_PICKLE_BYTES = 8 << 20
_DIMENSIONS = 8
# Before torch 1.6, a .bin was a chain of pickles that begins with this one.
_OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
_STORAGES = {
    "Float": "F32",
    "Half": "F16",
    "BFloat16": "BF16",
    "Double": "F64",
    "Long": "I64",
    "Int": "I32",
    "Short": "I16",
    "Char": "I8",
    "Byte": "U8",
    "Bool": "BOOL",
}
_LOCAL_HEADER = struct.Struct("<26xHH")


def read_pickled(file: Path) -> dict[str, Stored]:
    """The tensors of a `.bin`. Raises ModelFileError if it is damaged, or more than that."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            name = _pickle_of(file, entries)
            program = archive.read(name)
            order = name.removesuffix("data.pkl") + "byteorder"
            if order in entries and archive.read(order).strip() != b"little":
                raise ModelFileError(f"{file} was written on a big-endian machine.")
        _check_calls(file, program)
        content = _Tensors(file, entries, name.removesuffix("data.pkl"), program).load()
    except ModelFileError:
        raise
    except Exception as error:  # a stranger's pickle, whatever it does
        if _is_old(file):
            raise ModelFileError(
                f"{file} was saved by PyTorch 1.5 or older; load and save it with a newer one."
            ) from None
        raise ModelFileError(
            f"{file} is not a readable PyTorch file ({first_line(error)})."
        ) from None
    if not isinstance(content, Mapping):
        raise ModelFileError(f"{file} holds no tensors by name.")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, _View):
            raise ModelFileError(f"{file} holds {str(name)[:80]!r}, which is no tensor.")
    return {name: view.tensor(file, name) for name, view in content.items()}


def _is_old(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(_OLD_MAGIC)) == _OLD_MAGIC


def _pickle_of(file: Path, entries: Mapping[str, zipfile.ZipInfo]) -> str:
    pickles = [name for name in entries if name.endswith("/data.pkl")]
    plain = all(
        entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1
        for entry in entries.values()
    )
    if len(pickles) != 1 or not plain or entries[pickles[0]].file_size > _PICKLE_BYTES:
        raise ModelFileError(f"{file} is a zip file, but not one as PyTorch writes them.")
    return pickles[0]


def _check_calls(file: Path, program: bytes) -> None:
    """Refuses a pickle that asks for a function or type, "module name", that is none of ours."""
    for operation, argument, _ in pickletools.genops(program):
        call = None
        if operation.name in ("GLOBAL", "INST"):
            call = str(argument)
        elif operation.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
            call = f"something {operation.name}"
        if call is not None and call not in _CALLS:
            raise ModelFileError(
                f"{file} is refused: it holds more than weights and would run "
                f"{call.replace(' ', '.')[:80]!r}."
            )


class _View:
    """A tensor, before anybody has looked whether its storage has room for it."""

    __slots__ = ("_kind", "_offset", "_shape", "_steps", "_storage")

    def __init__(
        self,
        storage: tuple[str, NDArray[Any]],
        offset: int,
        shape: tuple[int, ...],
        steps: tuple[int, ...],
    ) -> None:
        self._kind, self._storage = storage
        self._offset, self._shape, self._steps = offset, shape, steps

    def tensor(self, file: Path, name: str) -> Stored:
        """Raises ModelFileError for a view of what is not stored, or of more than is: one that
        repeats its storage could be of any size."""
        shape, steps, offset = self._shape, self._steps, self._offset
        numbers = (offset, *shape, *steps)
        sound = all(type(n) is int and 0 <= n < 1 << 48 for n in numbers)
        if not sound or len(shape) != len(steps) or len(shape) > _DIMENSIONS:
            raise ModelFileError(
                f"{file} is damaged: {name[:100]} has a shape that makes no sense."
            )
        last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        n = prod(map(int, shape))
        if n > len(self._storage) or (n and last >= len(self._storage)):
            raise ModelFileError(
                f"{file} is damaged: {name[:100]} is larger than what is stored of it."
            )
        if not n:
            return Stored(self._kind, shape, np.empty(shape, TYPES[self._kind]))
        size = self._storage.itemsize
        data = np.lib.stride_tricks.as_strided(
            self._storage[offset:], shape, [size * step for step in steps], writeable=False
        )
        return Stored(self._kind, shape, data)


def _rebuilt(storage: Any, offset: Any, shape: Any, steps: Any, *_rest: object) -> _View:
    return _View(storage, offset, tuple(shape), tuple(steps))


def _parameter(data: _View, *_rest: object) -> _View:
    return data


_CALLS: dict[str, Callable[..., object] | str] = {
    "collections OrderedDict": OrderedDict,
    "torch._utils _rebuild_tensor_v2": _rebuilt,
    "torch._utils _rebuild_parameter": _parameter,
    **{f"torch {name}Storage": kind for name, kind in _STORAGES.items()},
}


class _Tensors(pickle.Unpickler):
    def __init__(
        self, file: Path, entries: Mapping[str, zipfile.ZipInfo], folder: str, program: bytes
    ) -> None:
        super().__init__(io.BytesIO(program))
        self._bytes = np.memmap(file, np.uint8, "r")
        self._entries = entries
        self._folder = folder
        self._storages: dict[tuple[str, str], tuple[str, NDArray[Any]]] = {}

    def find_class(self, module: str, name: str) -> Any:
        return _CALLS[f"{module} {name}"]

    def persistent_load(self, told: Any) -> tuple[str, NDArray[Any]]:
        """told: "storage", its type, its name, device, and number of values."""
        _, kind, name, *_ = told
        key = (str(kind), str(name))
        if key not in self._storages:
            self._storages[key] = (key[0], self._storage(*key))
        return self._storages[key]

    def _storage(self, kind: str, name: str) -> NDArray[Any]:
        entry = self._entries[f"{self._folder}data/{name}"]
        header = self._bytes[entry.header_offset :][: _LOCAL_HEADER.size]
        start = entry.header_offset + 4 + sum(_LOCAL_HEADER.unpack(header.tobytes()))
        start += _LOCAL_HEADER.size - 4
        data = self._bytes[start : start + entry.file_size]
        if len(data) != entry.file_size:
            raise ValueError(f"{name[:40]} is cut short")
        return data[: len(data) // TYPES[kind].itemsize * TYPES[kind].itemsize].view(TYPES[kind])


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200].rstrip(".") or type(error).__name__
