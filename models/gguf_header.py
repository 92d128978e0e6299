"""The header of one GGUF file: its metadata and where its tensors lie.

The gguf package's own reader makes an object of every vocabulary entry, which takes ten seconds for
a 152k vocabulary. A chat must not wait for that, so this module walks the header itself (format
version 2 and 3, little-endian) and steps over arrays, keeping only their length; type numbers and
block sizes are the gguf package's. Lengths and counts are the file's word, so each is held against
what can be meant, or what is there, before anything is read or looped over by it.
"""

from __future__ import annotations

import mmap
import stat
import struct
from collections.abc import Container
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from specfit.models.errors import ModelFileError
from specfit.models.fields import is_head_folder

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MOST_LAYERS = 512
# The most that can be meant: tensors or values (the largest models have thousands), texts of an
# array (vocabularies have 262 thousand), bytes of a key (the format's own bound), of a tensor's
# name, of a text (a tokenizer's JSON has 20 million), and of a file.
_MOST, _MOST_TEXTS = 1 << 16, 1 << 22
_KEY_BYTES, _NAME_BYTES, _TEXT_BYTES, _FILE_BYTES = 1 << 16, 1 << 10, 1 << 26, 1 << 50
# llama.cpp takes no tensors that are mapped to other addresses.
_DATA_ALIGNMENT = 32
_SCALARS = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.UINT64: struct.Struct("<Q"),
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
    GGUFValueType.BOOL: struct.Struct("<?"),
}
_U32 = _SCALARS[GGUFValueType.UINT32]
_U64 = _SCALARS[GGUFValueType.UINT64]


@dataclass(frozen=True)
class SkippedArray:
    """An array of the metadata, of which only the length is kept, and what it holds if that is a
    whole number for every layer at most."""

    length: int
    numbers: tuple[int, ...] = ()


Value = int | float | bool | str | SkippedArray


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies.

    shape: outermost dimension first, as numpy has it. offset: bytes from the start of the file.
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    path: Path
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """What one file's header says. bytes: the size of the file."""

    metadata: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    bytes: int


def read_header(path: Path) -> GgufHeader:
    """Reads the header of one file and checks that all its tensor data is there.

    Raises ModelFileError if it cannot be opened, is no GGUF file, or is cut short.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            raise ModelFileError(
                f"{path} is not an ordinary file, so no model can be read from it."
            )
        with path.open("rb") as file:
            if not file.seek(0, 2):
                raise ModelFileError(f"{path} is empty; download or copy it again.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Walker(path, data).header()
    except FileNotFoundError:
        raise ModelFileError(f"There is no model file {path}.") from None
    except IsADirectoryError:
        if is_head_folder(path):
            raise ModelFileError(
                f"{path} is the folder of a draft head, which -md takes; give the .gguf file of "
                "its model."
            ) from None
        raise ModelFileError(f"{path} is a folder; give the .gguf file inside it.") from None
    except PermissionError:
        raise ModelFileError(f"{path} may not be read: permission denied.") from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}.") from None


class _Walker:
    """Walks a mapped file from front to back."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._position = 0

    def header(self) -> GgufHeader:
        if self._data[:4] != _MAGIC:
            raise ModelFileError(
                f"{self._path} is not a GGUF model file: it does not begin with the letters GGUF."
            )
        try:
            return self._parse()
        except (struct.error, IndexError):
            raise ModelFileError(
                f"{self._path} is cut short: it ends after {len(self._data)} bytes, within its "
                "header; download or copy it again."
            ) from None
        except (ValueError, OverflowError, KeyError) as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(
                f"{self._path} is damaged: its GGUF header makes no sense at byte "
                f"{self._position} ({error}); download or copy it again."
            ) from None

    def _parse(self) -> GgufHeader:
        self._position = len(_MAGIC)
        version = self._number(_U32)
        if version not in _VERSIONS:
            if version and version & 0xFFFF == 0:
                raise ModelFileError(
                    f"{self._path} is a big-endian GGUF file, made for another CPU."
                )
            raise ModelFileError(
                f"{self._path} has GGUF version {version}, but only versions 2 and 3 can be read."
            )
        n_tensors, n_values = self._number(_U64), self._number(_U64)
        if max(n_tensors, n_values) > _MOST:
            raise ValueError(f"{n_values:,} values and {n_tensors:,} tensors")
        metadata: dict[str, Value] = {}
        for _ in range(n_values):
            key = self._name(_KEY_BYTES, metadata)
            metadata[key] = self._value(GGUFValueType(self._number(_U32)))
        tensors: dict[str, TensorInfo] = {}
        for _ in range(n_tensors):
            name = self._name(_NAME_BYTES, tensors)
            tensors[name] = self._tensor(name)
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"alignment {alignment!r:.40}")
        start = -(-self._position // alignment) * alignment
        if tensors and start % _DATA_ALIGNMENT:
            raise ValueError(f"alignment {alignment}, which puts tensors where none can be used")
        placed = tuple(self._placed(tensor, start) for tensor in tensors.values())
        self._check_data(placed)
        return GgufHeader(metadata, placed, len(self._data))

    def _number(self, kind: struct.Struct) -> int:
        (value,) = kind.unpack_from(self._data, self._position)
        self._position += kind.size
        return int(value)

    def _name(self, most: int, others: Container[str]) -> str:
        """The name of a value or a tensor; an area of zeros would have ever so many without one."""
        name = self._text(most)
        if not name or name in others:
            raise ValueError(f"the name {name!r:.80} twice" if name else "a name of no letters")
        return name

    def _text(self, most: int = _TEXT_BYTES) -> str:
        length = self._number(_U64)
        if length > most:
            raise ValueError(f"a text of {length:,} bytes")
        end = self._position + length
        if end > len(self._data):
            raise IndexError
        text = self._data[self._position : end].decode("utf-8", "replace")
        self._position = end
        return text

    def _value(self, kind: GGUFValueType) -> Value:
        if kind is GGUFValueType.STRING:
            return self._text()
        if kind is GGUFValueType.ARRAY:
            return self._skip_array()
        (value,) = _SCALARS[kind].unpack_from(self._data, self._position)
        self._position += _SCALARS[kind].size
        result: int | float | bool = value
        return result

    def _skip_array(self) -> SkippedArray:
        kind, length = GGUFValueType(self._number(_U32)), self._number(_U64)
        if kind is GGUFValueType.ARRAY:
            raise ValueError("an array of arrays")
        texts = kind is GGUFValueType.STRING
        least = _U64.size if texts else _SCALARS[kind].size
        if length * least > len(self._data) - self._position:
            raise IndexError
        if texts and length > _MOST_TEXTS:
            raise ValueError(f"an array of {length:,} texts")
        if texts:
            # The one loop over a vocabulary: kept bare.
            data, position, unpack, size = self._data, self._position, _U64.unpack_from, _U64.size
            for _ in range(length):
                position += size + unpack(data, position)[0]
            self._position = position
            return SkippedArray(length)
        start, self._position = self._position, self._position + least * length
        if length > _MOST_LAYERS or kind in (GGUFValueType.FLOAT32, GGUFValueType.FLOAT64):
            return SkippedArray(length)
        each = _SCALARS[kind].iter_unpack(self._data[start : self._position])
        return SkippedArray(length, tuple(number for (number,) in each))

    def _tensor(self, name: str) -> TensorInfo:
        """A tensor with its offset still counted from the start of the data section."""
        n_dimensions = self._number(_U32)
        if n_dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"{n_dimensions} dimensions")
        shape = tuple(self._number(_U64) for _ in range(n_dimensions))[::-1]
        kind = GGMLQuantizationType(self._number(_U32))
        block, block_bytes = GGML_QUANT_SIZES[kind]
        n_bytes, offset = prod(shape) // block * block_bytes, self._number(_U64)
        if max(shape, default=0) > _FILE_BYTES or n_bytes + offset > _FILE_BYTES:
            raise ValueError(f"{name!r:.80} is of absurd size, or lies beyond any file")
        return TensorInfo(name, kind, shape, self._path, offset, n_bytes)

    def _placed(self, tensor: TensorInfo, start: int) -> TensorInfo:
        return TensorInfo(
            tensor.name,
            tensor.type,
            tensor.shape,
            tensor.path,
            start + tensor.offset,
            tensor.n_bytes,
        )

    def _check_data(self, tensors: tuple[TensorInfo, ...]) -> None:
        end = max((tensor.offset + tensor.n_bytes for tensor in tensors), default=0)
        missing = end - len(self._data)
        if missing > 0:
            raise ModelFileError(
                f"{self._path} is cut short: {missing:,} of its {end:,} bytes are missing; "
                "download or copy it again."
            )


@dataclass(frozen=True)
class WholeValue:
    """A value of the metadata with the types that it is written in. elements: of an array, whose
    texts stay bytes: not all of them are UTF-8."""

    kind: GGUFValueType
    elements: GGUFValueType | None
    value: int | float | bool | str | list[bytes] | list[int] | list[float]


def whole_values(path: Path, prefix: str) -> dict[str, WholeValue]:
    """All values whose keys begin with `prefix`, arrays included, of a file that `read_header`
    can read. Raises ModelFileError else."""
    read_header(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        walker = _Spans(path, data)
        keys = walker.header().metadata
        return {
            key: _whole(data, kind, begin, keys[key])
            for key, (kind, begin) in zip(keys, walker.spans, strict=True)
            if key.startswith(prefix)
        }


class _Spans(_Walker):
    """Remembers each value's type and where it begins."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        super().__init__(path, data)
        self.spans: list[tuple[GGUFValueType, int]] = []

    def _value(self, kind: GGUFValueType) -> Value:
        self.spans.append((kind, self._position))
        return super()._value(kind)


def _whole(data: mmap.mmap, kind: GGUFValueType, begin: int, value: Value) -> WholeValue:
    if not isinstance(value, SkippedArray):
        return WholeValue(kind, None, value)
    elements = GGUFValueType(_U32.unpack_from(data, begin)[0])
    position = begin + _U32.size + _U64.size
    if elements is not GGUFValueType.STRING:
        each = _SCALARS[elements]
        held = data[position : position + each.size * value.length]
        return WholeValue(kind, elements, [number for (number,) in each.iter_unpack(held)])
    texts = []
    for _ in range(value.length):
        start = position + _U64.size
        position = start + _U64.unpack_from(data, position)[0]
        texts.append(data[start:position])
    return WholeValue(kind, elements, texts)
