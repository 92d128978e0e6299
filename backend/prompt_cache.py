"""The text of a line kept in a file between runs, so that its prompt is not processed again.

The file: a line of MAGIC; the SHA-256 of all that follows; the length of a header; the header, in
JSON; and as long as it says, tokens, llama.cpp's state of them, and the draft head's. llama.cpp
trusts what it is given to restore, so it is given nothing that fails the checksum or was made
otherwise. The file is replaced whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specfit.models.gguf_info import GgufInfo
from specfit.models.weights import checkpoint_files

from .cache import identity
from .errors import SpecfitError
from .hostmemory import host_memory
from .line import Line
from .runtime import Runtime

_OURS = b"SpecFit prompt cache "
MAGIC = _OURS + b"2\n"
_LENGTH = struct.Struct("<Q")
_DIGEST = hashlib.sha256().digest_size
# What a text's state depends on, and how it is told that it was another.
_ANOTHER = {
    "llama.cpp": "another version of llama.cpp",
    "model": "another model",
    "types": "another --cache-type-k or --cache-type-v",
    "rope": "other RoPE options",
    "head": "another draft head, or none",
}

MadeWith = Mapping[str, Any]  # by the keys of _ANOTHER


class Unusable(Exception):
    """A file that nothing can be restored from; the text says why, behind its name."""


@dataclass(frozen=True)
class Kept:
    """tokens: int32 [n]. state: uint8, what llama.cpp made of them. head: uint8, what the draft
    head did, empty if there was none."""

    made_with: MadeWith
    tokens: NDArray[np.int32]
    state: NDArray[np.uint8]
    head: NDArray[np.uint8]


def packed(kept: Kept) -> list[bytes | memoryview]:
    """The file's content, in parts."""
    header = json.dumps(
        {
            "made_with": kept.made_with,
            "tokens": len(kept.tokens),
            "state": len(kept.state),
            "head": kept.head.shape,
        }
    ).encode()
    tokens = kept.tokens.astype("<i4").tobytes()
    parts: list[bytes | memoryview] = [_LENGTH.pack(len(header)), header, tokens]
    parts += [kept.state.data, np.ascontiguousarray(kept.head).data]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return [MAGIC, digest.digest(), *parts]


def unpacked(data: bytes) -> Kept:
    """What `packed` made the data of; its arrays are views of them. Raises Unusable."""
    if not data.startswith(MAGIC):
        raise Unusable("was made by another version of SpecFit")
    start = len(MAGIC) + _DIGEST
    content = memoryview(data)[start:]
    if hashlib.sha256(content).digest() != data[len(MAGIC) : start]:
        raise Unusable("is damaged")
    (length,) = _LENGTH.unpack_from(content)
    header = json.loads(bytes(content[_LENGTH.size : _LENGTH.size + length]))
    arrays = np.frombuffer(content[_LENGTH.size + length :], np.uint8)
    tokens, state, pairs = np.split(arrays, np.cumsum([4 * header["tokens"], header["state"]]))
    head = pairs.reshape(header["head"])
    return Kept(header["made_with"], tokens.view("<i4").astype(np.int32), state, head)


def made_with(info: GgufInfo, runtime: Runtime, head: Path | None) -> MadeWith:
    """What texts of this model depend on, as JSON gives it back. head: None without drafts."""
    found = {
        "llama.cpp": llama_cpp.__version__,
        "model": identity(info.path),
        "types": [runtime.cache_type_k, runtime.cache_type_v],
        "rope": asdict(runtime.rope),
        "head": None if head is None else [identity(file) for file in checkpoint_files(head)[1]],
    }
    again: MadeWith = json.loads(json.dumps(found))
    return again


class PromptCache:
    """The file, and what it holds. writes: whether it may be replaced."""

    def __init__(self, path: Path, made_with: MadeWith, *, writes: bool) -> None:
        """Raises SpecfitError for a place where there can be no file."""
        self.path = Path(os.path.realpath(path))  # a link stays one
        if not self.path.parent.is_dir():
            raise SpecfitError(f"--prompt-cache {path}: there is no folder {self.path.parent}")
        if self.path.exists() and not self.path.is_file():
            raise SpecfitError(f"--prompt-cache {path}: it is no file")
        self._made_with = made_with
        self._writes = writes
        self._held: list[int] = []

    def restore(self, line: Line) -> str:
        """Gives an empty line the text of the file; returns what the user should be told, or
        nothing. Where it cannot be used, the line stays empty."""
        try:
            data = self._read()
            kept = unpacked(data) if data else None
            if kept is not None:
                self._check(kept, line)
                line.restore(kept.tokens.tolist(), kept.state, kept.head)
                self._held = kept.tokens.tolist()
        except OSError as error:
            return f"the prompt cache {self.path} cannot be read: {error.strerror or error}"
        except (Unusable, SpecfitError) as error:
            told = "" if self._writes else ", and left as it is"
            return f"the prompt cache {self.path} {error}; it is not used{told}"
        return ""

    def keep(self, line: Line) -> str:
        """Replaces the file by the text of the line, if that is another; returns why that failed,
        or nothing."""
        tokens = line.tokens[: line.n_past]
        if not self._writes or not tokens or tokens == self._held:
            return ""
        try:
            state, head = line.state()
            kept = Kept(self._made_with, np.array(line.tokens, np.int32), state, head)
            _replace(self.path, packed(kept))
        except (OSError, SpecfitError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            return f"the prompt cache {self.path} was not written: {reason or error}"
        return ""

    def _read(self) -> bytes:
        """The file; nothing if there is none yet. Raises Unusable, OSError."""
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                begin = file.read(len(_OURS))
                if begin and begin != _OURS:
                    self._writes = False  # somebody's text, by a slip of the hand
                    raise Unusable("was not made by SpecFit")
                if size > host_memory().free:
                    raise Unusable(f"takes {_mib(size)} of memory, more than is free")
                return begin + file.read()
        except FileNotFoundError:
            return b""

    def _check(self, kept: Kept, line: Line) -> None:
        """Raises Unusable for what was made otherwise, or is too long."""
        for key, name in _ANOTHER.items():
            # Without drafts it does not matter whose features were kept beside the text.
            used = key != "head" or line.drafter is not None
            if used and kept.made_with.get(key) != self._made_with[key]:
                raise Unusable(f"was made with {name}")
        if len(kept.tokens) > line.limit:
            raise Unusable(f"holds {len(kept.tokens)} tokens, and the context {line.limit}")


def _replace(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    """Raises OSError, with the old file as it was."""
    size, free = sum(map(len, parts)), shutil.disk_usage(path.parent).free
    if size > free:
        raise OSError(f"it takes {_mib(size)}, and {_mib(free)} are free on the disk")
    # Readable to nobody else, since it holds what was said; a file that is there stays as it is.
    handle, name = tempfile.mkstemp(".tmp", f".{path.name}.", path.parent)
    scratch = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            with suppress(FileNotFoundError):
                scratch.chmod(stat.S_IMODE(path.stat().st_mode))
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(handle)
        scratch.replace(path)
    except BaseException:
        with suppress(OSError):
            scratch.unlink()
        raise


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.0f} MiB"
