"""Reading the tensors of a checkpoint: `.safetensors` and PyTorch's `.bin`, whole or in parts.

Both kinds are mapped, so that only what is used of them is read.
"""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from specfit.models.errors import ModelFileError
from specfit.models.pickled import first_line, read_pickled
from specfit.models.stored import TYPES, Stored

# Whole files by the name that transformers gives them, then whatever else looks like weights (a
# folder may also hold an optimiser's state, as .bin).
_WHOLE = ("model.safetensors", "*.safetensors", "pytorch_model.bin", "pytorch_model*.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_PART = re.compile(r"-\d+-of-\d+\.(safetensors|bin)$")
_JSON_BYTES = 8 << 20


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint. Raises ModelFileError."""
    try:
        status = path.stat()
        if stat.S_ISFIFO(status.st_mode):
            raise ModelFileError(f"{path} is not an ordinary file.")
        if status.st_size > _JSON_BYTES:
            raise ModelFileError(f"{path} is too large to be a model's JSON file.")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFileError(f"The draft head lacks its {path.name} ({path}).") from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise ModelFileError(f"{path} is not valid JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} holds no JSON object, so it describes no model.")
    return content


def checkpoint_files(path: Path) -> tuple[Path, list[Path]]:
    """The folder of a checkpoint and the files of its tensors.

    path: the folder, or one of its files; of a checkpoint in parts, any part. Raises
    ModelFileError if there is nothing.
    """
    if not path.exists():
        raise ModelFileError(f"There is no draft head {path}.")
    if not path.is_dir():
        if not _PART.search(path.name):
            return path.parent, [path]
        path = path.parent
    for name in _INDEXES:
        if (path / name).exists():
            return path, _parts(path / name)
    for pattern in _WHOLE:
        files = sorted(path.glob(pattern))
        if files:
            return path, files
    raise ModelFileError(
        f"{path} holds no .safetensors or pytorch_model.bin file, so there is no draft head to "
        "load from it."
    )


def _parts(index: Path) -> list[Path]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelFileError(f"{index} does not say which part holds which tensor.")
    names = {str(name) for name in places.values()}
    strange = sorted(name for name in names if Path(name).name != name or not _PART.search(name))
    if strange:
        raise ModelFileError(f"{index} names {strange[0]!r}, which is no part of a checkpoint.")
    for name in sorted(names):
        if not (index.parent / name).exists():
            raise ModelFileError(f"The draft head {index.parent} lacks its part {name}.")
    return [index.parent / name for name in sorted(names)]


def read_tensors(files: list[Path]) -> dict[str, Stored]:
    """All tensors of some files by name, as stored. Raises ModelFileError."""
    tensors: dict[str, Stored] = {}
    for file in files:
        if not file.is_file():
            raise ModelFileError(f"{file} is not a file.")
        read = _read_safetensors if file.suffix == ".safetensors" else read_pickled
        tensors |= read(file)
    return tensors


def _read_safetensors(file: Path) -> dict[str, Stored]:
    try:
        with safe_open(file, framework="numpy"):  # which looks whether all is sound
            pass
        return _mapped(file)
    except (SafetensorError, OSError, ValueError, TypeError, LookupError, RuntimeError) as error:
        raise ModelFileError(
            f"{file} is not a readable safetensors file ({first_line(error)})."
        ) from None


def _mapped(file: Path) -> dict[str, Stored]:
    """The tensors of a sound file, as views of it."""
    data = np.memmap(file, np.uint8, "r")
    start = 8 + int(data[:8].view("<u8")[0])
    header = json.loads(data[8:start].tobytes())
    tensors = {}
    for name, told in header.items():
        if name == "__metadata__":
            continue
        begin, end = told["data_offsets"]
        kind, shape, held = told["dtype"], tuple(told["shape"]), data[start + begin : start + end]
        if kind in TYPES:
            held = held.view(TYPES[kind]).reshape(shape)
        tensors[name] = Stored(kind, shape, held)
    return tensors
