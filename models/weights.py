"""Reading the tensors of a checkpoint: `.safetensors` and PyTorch's `.bin`, whole or in parts.

A `.bin` is a pickle in a zip file, and a pickle can ask for any function to be called. It is read
with `weights_only`, and only if it asks for nothing but what a plain dictionary of tensors needs:
of the harmless functions that PyTorch would let through, some can be made to fill the memory.
Both kinds are mapped, so that only what is used of them is read.
"""

from __future__ import annotations

import json
import pickletools
import re
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from specfit.models.errors import ModelFileError

# Whole files by the name that transformers gives them, then whatever else looks like weights (a
# folder may also hold an optimiser's state, as .bin).
_WHOLE = ("model.safetensors", "*.safetensors", "pytorch_model.bin", "pytorch_model*.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_PART = re.compile(r"-\d+-of-\d+\.(safetensors|bin)$")
_JSON_BYTES = 8 << 20
_PICKLE_BYTES = 8 << 20
# Before torch 1.6, a .bin was a chain of pickles that begins with this one.
_OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
_CALLS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(
        f"torch {kind}Storage"
        for kind in ("Float", "Half", "BFloat16", "Double", "Long", "Int", "Short", "Char", "Byte")
    ),
    "torch BoolStorage",
}


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


def read_tensors(files: list[Path]) -> dict[str, torch.Tensor]:
    """All tensors of some files by name, as stored. Raises ModelFileError."""
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        if not file.is_file():
            raise ModelFileError(f"{file} is not a file.")
        read = _read_safetensors if file.suffix == ".safetensors" else _read_pickled
        tensors |= read(file)
    return tensors


def _read_safetensors(file: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, LookupError, RuntimeError) as error:
        raise ModelFileError(
            f"{file} is not a readable safetensors file ({_first_line(error)})."
        ) from None


def _read_pickled(file: Path) -> dict[str, torch.Tensor]:
    _refuse_unsound_pickle(file)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a stranger's pickle, run by an interpreter of pickles
        raise ModelFileError(
            f"{file} is not a readable PyTorch file ({_first_line(error)})."
        ) from None
    if not isinstance(content, Mapping):
        raise ModelFileError(f"{file} holds no tensors by name.")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise ModelFileError(f"{file} holds {str(name)[:80]!r}, which is no tensor.")
        # A view that repeats its storage could be of any size.
        if tensor.nbytes > tensor.untyped_storage().nbytes():
            raise ModelFileError(f"{file} is damaged: {name} is larger than what is stored of it.")
    return dict(content)


def _refuse_unsound_pickle(file: Path) -> None:
    with file.open("rb") as opened:
        if opened.read(len(_OLD_MAGIC)) == _OLD_MAGIC:
            raise ModelFileError(
                f"{file} was saved by PyTorch 1.5 or older; load and save it with a newer one."
            )
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
            stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
            if len(pickles) != 1 or not stored or pickles[0].file_size > _PICKLE_BYTES:
                raise ModelFileError(f"{file} is a zip file, but not one as PyTorch writes them.")
            program = archive.read(pickles[0])
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(
            f"{file} is not a readable PyTorch file ({_first_line(error)})."
        ) from None
    for call in _calls(file, program):
        if call not in _CALLS:
            raise ModelFileError(
                f"{file} is refused: it holds more than weights and would run "
                f"{call.replace(' ', '.')[:80]!r}."
            )


def _calls(file: Path, program: bytes) -> list[str]:
    """The functions and types, "module name", that a pickle asks for, in its order."""
    calls = []
    try:
        for operation, argument, _ in pickletools.genops(program):
            if operation.name in ("GLOBAL", "INST"):
                calls.append(str(argument))
            elif operation.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
                calls.append(f"something {operation.name}")
    except Exception as error:  # genops raises what it meets
        raise ModelFileError(
            f"{file} is not a readable PyTorch file ({_first_line(error)})."
        ) from None
    return calls


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200].rstrip(".") or type(error).__name__
