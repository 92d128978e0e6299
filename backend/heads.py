"""From a path to a draft head that runs.

A GGUF file is taken as it is. A published checkpoint is converted once into the user's cache
folder, under a key of its content, since folders are moved and copied; one that llama.cpp cannot
compute is left to PyTorch, where that is installed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specfit.models import ModelFileError
from specfit.models.checkpoint import TargetShape
from specfit.models.convert_head import Inexpressible, convert_head
from specfit.models.errors import NoSpaceError
from specfit.models.gguf_info import GgufInfo
from specfit.models.weights import checkpoint_files

from .cache import cache_path, content_hash
from .context import Context
from .errors import SpecfitError
from .gguf_head import GgufHead
from .head import Head
from .head_context import HeadContext, HeadModel
from .head_file import HeadFile, read_head_file
from .runtime import Runtime

FORMAT, TYPE = 1, "F16"
# Below, a level is a few small products: one thread is as fast alone, and far faster beside another
# program.
SMALL_HEAD_BYTES = 32 << 20


@dataclass(frozen=True)
class HeadSource:
    """A head that was looked at, and fits its target. taps: target layers whose inputs it reads.
    start: loads it, for the lines of a context of the target."""

    taps: tuple[int, int, int]
    start: Callable[[Context], Head]


def find_head(
    path: Path, target: GgufInfo, runtime: Runtime, *, threads: int, on_gpu: bool
) -> HeadSource:
    """The head at `path`: a GGUF file, a folder, or a file of a checkpoint's weights.

    Raises ModelFileError or SpecfitError if it cannot be used.
    """
    if path.suffix == ".gguf":
        return _in_llama(read_head_file(path, target), runtime, threads, on_gpu)
    try:
        file = converted(path, target)
    except Inexpressible as reason:
        return _in_torch(path, target, runtime, threads, on_gpu, str(reason))
    return _in_llama(file, runtime, threads, on_gpu)


def converted(path: Path, target: GgufInfo) -> HeadFile:
    """The checkpoint as GGUF, written now if it was not before. Raises ModelFileError."""
    folder, files = checkpoint_files(path)
    files = [file for file in (folder / "config.json", *files) if file.exists()]
    try:
        key = [FORMAT, TYPE, _header_hash(target), *map(content_hash, files)]
    except OSError:
        return _not_kept(path, target)
    kept = cache_path("heads", key, ".gguf")
    if kept.exists():
        with suppress(ModelFileError):  # damaged: written again
            return read_head_file(kept, target)
    scratch = kept.with_suffix(f".{os.getpid()}.tmp")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        convert_head(path, target, scratch, TYPE)
        scratch.replace(kept)
    except (OSError, NoSpaceError):
        return _not_kept(path, target)
    finally:
        with suppress(OSError):
            scratch.unlink()
    return read_head_file(kept, target)


def _header_hash(target: GgufInfo) -> str:
    """SHA-256 of all that a conversion takes from the target: what lies before its weights."""
    offsets = (tensor.offset for tensor in target.tensors if tensor.path == target.path)
    with target.path.open("rb") as file:  # the first part of a split model may have no weights
        return hashlib.sha256(file.read(min(offsets, default=-1))).hexdigest()


def _not_kept(path: Path, target: GgufInfo) -> HeadFile:
    """Where the home folder cannot be written: for this process only."""
    folder = tempfile.TemporaryDirectory(prefix="specfit-")
    _temporary.append(folder)
    out = Path(folder.name) / "head.gguf"
    try:
        convert_head(path, target, out, TYPE)
    except OSError as error:
        raise SpecfitError(
            f"the draft head {path} cannot be converted: {error.strerror or error}"
        ) from None
    return read_head_file(out, target)


# Removed when the process ends.
_temporary: list[tempfile.TemporaryDirectory[str]] = []


def _in_llama(file: HeadFile, runtime: Runtime, threads: int, on_gpu: bool) -> HeadSource:
    if on_gpu or file.n_bytes < SMALL_HEAD_BYTES:
        threads = 1

    def start(context: Context) -> Head:
        return GgufHead(HeadContext(HeadModel(file, runtime, on_gpu=on_gpu), context, threads))

    return HeadSource(file.taps, start)


def _in_torch(
    path: Path, target: GgufInfo, runtime: Runtime, threads: int, on_gpu: bool, reason: str
) -> HeadSource:
    try:
        import torch

        from specfit.models.eagle3 import Eagle3Head
        from specfit.models.embeddings import TokenEmbeddings
    except (ImportError, OSError):  # not there, or its libraries do not load
        raise SpecfitError(
            f"{reason.rstrip('.')}; PyTorch can (.venv/bin/pip install -c constraints.txt torch)"
        ) from None
    on_gpu = on_gpu and torch.cuda.is_available()
    gpu = runtime.main_gpu if runtime.split_mode == "none" else 0
    head = Eagle3Head.load(
        path,
        embeddings=TokenEmbeddings.load(target),
        target=TargetShape.of(target),
        device=f"cuda:{gpu}" if on_gpu else "cpu",
        stretch=runtime.rope.stretch(target),
    )
    # Torch's workers spin between levels and take the cores from llama.cpp's.
    torch.set_num_threads(1 if on_gpu or head.n_bytes < 2 * SMALL_HEAD_BYTES else threads)
    return HeadSource(head.taps, lambda _context: head)
