"""Files in the user's cache folder: named by what they depend on, and no loss if they are lost."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs


def cache_path(folder: str, depends_on: Sequence[object], suffix: str) -> Path:
    """A file of `folder` under a key of what it depends on, which JSON must know."""
    key = hashlib.sha256(json.dumps(depends_on).encode()).hexdigest()[:20]
    return platformdirs.user_cache_path("specfit") / folder / f"{key}{suffix}"


def identity(path: Path) -> tuple[str, int, int]:
    """Changes when the file does."""
    stat = path.stat()
    return str(path.resolve()), stat.st_size, int(stat.st_mtime)


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
