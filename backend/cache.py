"""Files in the user's cache folder: named by what they depend on, and no loss if they are lost."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import stat
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
    status = path.stat()
    return str(path.resolve()), status.st_size, int(status.st_mtime)


def content_hash(path: Path) -> str:
    """SHA-256 of a file; remembered as long as size and time of change are the same, for reading a
    large model takes a minute. Raises OSError."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for
        raise OSError(errno.EINVAL, "not an ordinary file", str(path))
    same = [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino]
    known = cache_path("hashes", same, ".txt")
    with suppress(OSError, ValueError):
        found = known.read_text(encoding="ascii")
        if len(found) == 64:
            return found
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    replace_if_possible(known, found.encode())
    return found


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
