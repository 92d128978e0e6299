"""What was learned about a pair of models, kept in the user's cache folder between runs."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np

from specfit.models.weights import checkpoint_files
from specfit.planner import Beliefs

from .cache import cache_path, identity, replace_if_possible

# What numpy and zipfile raise of an archive that is damaged.
DAMAGE = (
    *(OSError, ValueError, LookupError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error),
)
FORMAT = 2


def memory_path(model: Path, head: Path | None, *, cached: bool = False) -> Path:
    """Where the beliefs about this pair are kept; another file of the same name is another pair.

    cached: with a cache of experts, beside which others are paid for.

    Raises ModelFileError if there is no head.
    """
    files = [model, *([] if head is None else checkpoint_files(head)[1])]
    depends_on = [FORMAT, *map(identity, files), *(["cached"] if cached else [])]
    return cache_path("learned", depends_on, ".npz")


def recall(beliefs: Beliefs, path: Path) -> bool:
    """Restores what is kept; False, with the beliefs perhaps spoiled, if nothing fitting is."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            beliefs.restore({name: kept[name] for name in kept.files})
    except DAMAGE:
        return False
    return True


def keep(beliefs: Beliefs, path: Path) -> None:
    """Keeps the beliefs. Losing them costs some cycles of learning."""
    archive = io.BytesIO()
    np.savez(archive, **beliefs.state())  # type: ignore[arg-type]
    replace_if_possible(path, archive.getvalue())
