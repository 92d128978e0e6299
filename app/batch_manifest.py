"""What an output was made with: a file beside it, with an entry for every run that wrote to it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .entry import AppError, about
from .lines_out import sync_folder

Entry = dict[str, Any]

_PACKAGES = ("specfit", "llama-cpp-python", "numpy", "torch")
_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")
# Of a head's folder, what it is read from.
_HEAD_FILES = ("config.json", "*.safetensors", "*.bin")


class Manifest:
    """The runs that wrote to `output`. It is replaced whole, at the beginning of a run and at its
    end: an entry without "finished" is of a run that was killed."""

    def __init__(self, output: Path) -> None:
        """Raises AppError if what is there is no manifest."""
        self._path = manifest_path(output)
        self._runs = _runs(self._path)

    def begin(self, entry: Entry) -> None:
        """Adds this run. Raises AppError if it cannot be written, as `finish` does."""
        self._runs.append({"started": _now(), **entry})
        self._write()

    def finish(self, counts: Entry) -> None:
        self._runs[-1] |= {"finished": _now(), **counts}
        self._write()

    def _write(self) -> None:
        scratch = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        with about(self._path):
            try:
                with scratch.open("w", encoding="utf-8") as file:
                    json.dump({"runs": self._runs}, file, indent=1)
                    file.write("\n")
                    file.flush()
                    os.fsync(file.fileno())
                scratch.replace(self._path)
                sync_folder(self._path)
            finally:
                scratch.unlink(missing_ok=True)


def manifest_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.manifest.json")


def environment() -> Entry:
    """The machine and what runs on it."""
    from .machine import machine_name

    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"machine": machine_name(), "versions": versions}


def _runs(path: Path) -> list[Entry]:
    if not path.exists():
        return []
    with about(path):
        text = path.read_bytes()
    try:
        runs = json.loads(text)["runs"]
    except (ValueError, TypeError, KeyError, RecursionError):
        runs = None
    if not isinstance(runs, list):
        raise AppError(f"{path} is no manifest of specfit-batch; move it away")
    return runs


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def model_hash(model: Path) -> str:
    """SHA-256 of a model: of its file, or of all its parts."""
    part = _PART.fullmatch(model.name)
    if part is None:
        return _file_hash(model)
    name, count = part.groups()
    numbers = range(1, int(count) + 1)
    return _combined(model.with_name(f"{name}-{n:05}-of-{count}.gguf") for n in numbers)


def head_hash(head: Path) -> str:
    """SHA-256 of a head: of its file, or of those of its folder that it is read from."""
    if not head.is_dir():
        return _file_hash(head)
    files = sorted({file for pattern in _HEAD_FILES for file in head.glob(pattern)})
    return _combined(files)


def _combined(files: Iterable[Path]) -> str:
    hashes = [(file.name, _file_hash(file)) for file in files]
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


def _file_hash(path: Path) -> str:
    from specfit.backend.cache import content_hash

    with about(path):
        return content_hash(path)
