"""Native code of ours, compiled at first use by the system's compiler into the user's cache folder.

It is compiled against the headers that llama-cpp-python installs, so that it fits the llama.cpp
that is there; another version of the headers or of the source is another file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import platformdirs

from .errors import SpecfitError

_PACKAGE = Path(llama_cpp.__file__).resolve().parent
_COMPILERS = {"C": ("CC", "cc", "gcc", "clang"), "C++": ("CXX", "c++", "g++", "clang++")}


@dataclass(frozen=True)
class Native:
    """A library of ours.

    name: of the file in the cache. loss: what is lost without it, as sentences begin that say so.
    sources: files to be compiled; headers: those of ours that they include. links: to ggml, by
    name, so that the copies are found that llama-cpp-python has loaded.
    """

    name: str
    loss: str
    language: str
    sources: tuple[Path, ...]
    headers: tuple[Path, ...] = ()
    flags: tuple[str, ...] = ()
    links: bool = False


def loaded(native: Native) -> ctypes.CDLL:
    """The library; a damaged file in the cache is built again, once.

    Raises SpecfitError if it cannot be compiled or loaded.
    """
    path = compiled(native)
    try:
        if _is_whole(path):
            return ctypes.CDLL(str(path))
    except OSError:
        pass
    try:
        path.unlink(missing_ok=True)
        return ctypes.CDLL(str(compiled(native)))
    except OSError as error:
        raise SpecfitError(f"{native.loss}: {error.strerror or error}") from error


def _is_whole(path: Path) -> bool:
    """Whether the file is as it was built: a damaged one would crash, not fail."""
    digest = path.with_suffix(".sha256").read_text().strip()
    return hashlib.sha256(path.read_bytes()).hexdigest() == digest


def compiled(native: Native) -> Path:
    """The compiled library, built now if this source was not yet built against these headers.

    Raises SpecfitError if there is no compiler, it fails, or the cache cannot be written.
    """
    headers = _PACKAGE.parent / "include"
    ggml = [headers / name for name in ("ggml.h", "ggml-backend.h", "ggml-cpp.h")]
    if not all(header.exists() for header in ggml):
        raise SpecfitError(f"{native.loss}: no ggml.h of llama-cpp-python was found")
    key = hashlib.sha256()
    for path in (*native.sources, *native.headers, *ggml):
        key.update(path.read_bytes())
    key.update(f"{native.flags} {sys.platform} {platform.machine()}".encode())
    folder = platformdirs.user_cache_path("specfit") / "native"
    target = folder / f"{native.name}-{key.hexdigest()[:16]}.so"
    if target.exists():
        return target
    command = _compiler(native)
    scratch = target.with_suffix(f".{os.getpid()}.tmp")
    arguments = ["-O2", "-shared", "-fPIC", f"-I{headers}", *native.flags]
    arguments += [*map(str, native.sources), "-o", str(scratch)]
    if native.links:
        arguments += [f"-L{_PACKAGE / 'lib'}", "-lggml", "-lggml-base"]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)
        digest = hashlib.sha256(scratch.read_bytes()).hexdigest()
        scratch.replace(target)  # atomic: two processes may build at once
        target.with_suffix(".sha256").write_text(digest)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or f"exit code {error.returncode}").strip().splitlines()[0]
        what = ", ".join(source.name for source in native.sources[:1])
        raise SpecfitError(
            f"{native.loss}: {shlex.join(command)} failed on {what}: {reason}"
        ) from error
    except OSError as error:
        where = error.filename or folder
        raise SpecfitError(f"{native.loss}: {where}: {error.strerror or error}") from error
    return target


def _compiler(native: Native) -> Sequence[str]:
    variable, *names = _COMPILERS[native.language]
    chosen = os.environ.get(variable) or next(filter(None, map(shutil.which, names)), None)
    if not chosen:
        raise SpecfitError(f"{native.loss}: no {native.language} compiler was found")
    return shlex.split(chosen)
