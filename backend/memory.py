"""What was learned about a pair of models, kept in the user's cache folder between runs."""

from __future__ import annotations

import hashlib
import os
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import platformdirs

from specfit.planner import Beliefs

FORMAT = 1


def memory_path(model: Path, head: Path | None) -> Path:
    """Where the beliefs about this pair are kept; another file of the same name is another pair."""
    identity: list[object] = [FORMAT]
    for path in (model, *([head] if head else [])):
        file = path / "model.safetensors" if path.is_dir() else path
        stat = file.stat()
        identity += [str(file.resolve()), stat.st_size, int(stat.st_mtime)]
    key = hashlib.sha256(repr(identity).encode()).hexdigest()[:20]
    return platformdirs.user_cache_path("specfit") / "learned" / f"{key}.npz"


def recall(beliefs: Beliefs, path: Path) -> bool:
    """Restores what is kept; False, with the beliefs perhaps spoiled, if nothing fitting is."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            beliefs.restore({name: kept[name] for name in kept.files})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return False
    return True


def keep(beliefs: Beliefs, path: Path) -> None:
    """Keeps the beliefs. Losing them costs some cycles of learning, so a full disk is no error."""
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            np.savez(file, **beliefs.state())  # type: ignore[arg-type]
        scratch.replace(path)
    except OSError:
        with suppress(OSError):
            scratch.unlink()
