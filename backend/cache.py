"""Files in the user's cache folder: named by what they depend on, and no loss if they are lost."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

# What numpy and zipfile raise of an archive that is damaged.
DAMAGE = (
    *(OSError, ValueError, LookupError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error),
)


def cache_path(folder: str, depends_on: Sequence[object], suffix: str) -> Path:
    """A file of `folder` under a key of what it depends on, which JSON must know."""
    key = hashlib.sha256(json.dumps(depends_on).encode()).hexdigest()[:20]
    return platformdirs.user_cache_path("specfit") / folder / f"{key}{suffix}"


def identity(path: Path) -> tuple[str, int, int]:
    """Changes when the file does."""
    stat = path.stat()
    return str(path.resolve()), stat.st_size, int(stat.st_mtime)


def archived(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A file's content, for `unarchived`."""
    archive = io.BytesIO()
    np.savez(archive, **arrays)  # type: ignore[arg-type]
    return archive.getvalue()


def unarchived(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays by name. Raises one of DAMAGE."""
    with np.load(path, allow_pickle=False) as kept:
        return {name: kept[name] for name in kept.files}


def replace_if_possible(path: Path, content: bytes) -> None:
    """Writes the file at once or not at all: a read-only or full home folder is no error."""
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(content)
        scratch.replace(path)
    except OSError:
        with suppress(OSError):
            scratch.unlink()
