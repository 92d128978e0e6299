"""The models and draft heads on this machine, and whether they fit it.

Looked for where the usual programs keep them; only headers are read. Made for a thread: scanning is
a generator, so whoever asks can stop between any two files.
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specfit.models.fields import is_head_folder

if TYPE_CHECKING:
    from specfit.models.gguf_info import GgufInfo

_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
# How a head's file begins: the architecture is the first of its values, as writers have it.
_GGUF_HEAD, _GGUF_BEGIN = b"general.architecture\x08\0\0\0\x06\0\0\0\0\0\0\0eagle3", 4096
# What the first estimate reckons with: the engine's default context.
_CONTEXT = 4096
_TIGHT = 0.9


@dataclass(frozen=True)
class ModelEntry:
    """A model that was found; `problem` says in a sentence why it cannot be used, if so.

    n_experts, n_experts_used: 0 for dense models. context_length: 0 if the file does not say.
    bytes: of all parts. expert_bytes: of those, the experts'. kv_bytes: of a usual context.
    """

    path: Path
    name: str
    architecture: str = ""
    quantisation: str = ""
    bytes: int = 0
    expert_bytes: int = 0
    kv_bytes: int = 0
    n_experts: int = 0
    n_experts_used: int = 0
    context_length: int = 0
    bundled: bool = False
    problem: str = ""

    @property
    def label(self) -> str:
        """What people know the file by: its name without its end, and without the part's number."""
        return _PART.sub("", self.path.stem)


@dataclass(frozen=True)
class HeadEntry:
    """A folder that says it holds an EAGLE-3 head."""

    path: Path

    @property
    def label(self) -> str:
        """The ends of its path; in the Hugging Face cache, the repository's name."""
        for parent in self.path.parents:
            if parent.name.startswith("models--"):
                return "/".join(parent.name.split("--")[1:])
        return "/".join(self.path.parts[-2:])


@dataclass(frozen=True)
class Memory:
    """Free bytes. vram: 0 without a GPU, or with one that shares the host's memory."""

    ram: int
    vram: int = 0


@dataclass(frozen=True)
class Fit:
    """state: "fits", "tight" or "too big". why: one sentence with the numbers."""

    state: str
    why: str


def places(folders: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Folders to look in: the user's, then those of the usual programs."""
    home = Path.home()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    hugging_face = Path(os.environ.get("HF_HOME") or cache / "huggingface")
    return (
        *folders,
        Path(os.environ.get("HF_HUB_CACHE") or hugging_face / "hub"),
        home / ".lmstudio" / "models",
        home / ".cache" / "lm-studio" / "models",
        Path(os.environ.get("LLAMA_CACHE") or cache / "llama.cpp"),
        home / "Library" / "Caches" / "llama.cpp",
    )


def find(folders: Sequence[Path] = ()) -> Iterator[ModelEntry | HeadEntry]:
    """The bundled pair, then everything in `places(folders)`, which may be files as well."""
    from specfit.models import bundled_head, bundled_model

    entry = describe(bundled_model())
    if entry is not None:
        yield replace(entry, bundled=True)
        yield HeadEntry(bundled_head())
    own = {os.path.realpath(path) for path in (bundled_model(), bundled_head())}
    for found in scan(places(folders)):
        if os.path.realpath(found.path) not in own:
            yield found


def scan(roots: Sequence[Path]) -> Iterator[ModelEntry | HeadEntry]:
    """What lies in or below `roots`, folder by folder; nothing twice, whatever links say.

    A root may be a file. Folders that cannot be read are passed over.
    """
    seen: set[str] = set()
    for root in roots:
        for path in _candidates(root):
            real = os.path.realpath(path)
            if real in seen:
                continue
            seen.add(real)
            if path.suffix == ".safetensors" or os.path.isdir(path) or _is_gguf_head(path):  # noqa: PTH112 -- never raises
                yield HeadEntry(path)
            elif (entry := describe(path)) is not None:
                yield entry


def describe(path: Path) -> ModelEntry | None:
    """What a GGUF file is; None if it is no model to chat with. One that changed is read anew."""
    from specfit.models import ModelFileError

    try:
        stat = path.stat()
    except OSError:
        if _PART.search(path.stem):
            return ModelEntry(path, path.stem, problem=f"The first part, {path}, is missing.")
        return None  # a link whose file was cleaned away
    try:
        return _described(path, stat.st_size, stat.st_mtime_ns)
    except ModelFileError as error:
        problem = str(error)
    except RecursionError:
        problem = f"{path} is damaged: its header has arrays in arrays without end."
    if not _is_language_model(path):
        return None
    return ModelEntry(path, path.stem, bytes=stat.st_size, problem=problem)


def fit(entry: ModelEntry, memory: Memory) -> Fit:
    """A first estimate: as many experts on the GPU as fit there with the rest, if there is one."""
    need, free = entry.bytes + entry.kv_bytes, memory.ram + memory.vram
    numbers = f"{size(need)}, {size(free)} free"
    if need > free:
        return Fit("too big", f"too big: {numbers}")
    dense = need - entry.expert_bytes
    if memory.vram and dense > memory.vram:
        return Fit(
            "tight",
            f"tight: {size(dense)} without experts, {size(memory.vram)} free on the GPU; "
            "not all layers go there",
        )
    return (
        Fit("tight", f"tight: {numbers}")
        if need > _TIGHT * free
        else Fit("fits", f"fits: {numbers}")
    )


def freed(memory: Memory, loaded: ModelEntry) -> Memory:
    """What is free once `loaded` has left the GPU; its pages of host memory count as free."""
    if not memory.vram:
        return memory
    return replace(memory, vram=memory.vram + loaded.bytes + loaded.kv_bytes - loaded.expert_bytes)


def free_memory() -> Memory:
    """What is free now. Looks at the GPUs through llama.cpp, whose import takes a second."""
    from specfit.backend.devices import free_vram
    from specfit.backend.hostmemory import host_memory

    return Memory(host_memory().free, free_vram())


def head_problem(entry: ModelEntry, head: HeadEntry) -> str:
    """Why the head cannot draft for the model, in a sentence; "" if it can.

    Asks the loader itself: slow for a head that fits, whose weights it reads. For a thread.
    """
    from specfit.backend.head_file import read_head_file
    from specfit.backend.loading import DRAFTABLE
    from specfit.models import ModelFileError
    from specfit.models.checkpoint import TargetShape, read_checkpoint
    from specfit.models.gguf_info import read_gguf_info

    if entry.architecture not in DRAFTABLE:
        return f"llama.cpp gives no draft features for the architecture {entry.architecture}."
    try:
        target = read_gguf_info(entry.path)
        if head.path.suffix == ".gguf":
            read_head_file(head.path, target)
        else:
            read_checkpoint(head.path, TargetShape.of(target))
    except ModelFileError as error:
        return str(error)
    except Exception as error:  # a stranger's file: whatever is wrong with it, it is not chosen
        return f"{head.path} cannot be read as a draft head ({type(error).__name__}: {error})."
    return ""


def size(n_bytes: int) -> str:
    """Bytes for people, in powers of ten as files and shops count them."""
    if n_bytes >= 10**9:
        return f"{n_bytes / 10**9:.1f} GB"
    return f"{n_bytes / 10**6:.0f} MB"


def _candidates(root: Path) -> Iterator[Path]:
    """GGUF files, first parts for all, and folders of draft heads, in the order of their names."""
    if os.path.isfile(root):  # noqa: PTH113 -- a place that may not be looked into is none
        yield root.with_name(_first_part(root.name))
        return
    if "\0" in str(root):
        return
    visited: set[str] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if real in visited:  # links may lead in circles
            folders.clear()
            continue
        visited.add(real)
        here = Path(folder)
        if "config.json" in files and is_head_folder(here):
            yield here
        for name in _whole_models(files):
            yield here / name


def _is_gguf_head(path: Path) -> bool:
    """Whether a GGUF file says that it is an EAGLE-3 head, damaged or not."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return _GGUF_HEAD in file.read(_GGUF_BEGIN)
    return False


def _whole_models(files: Sequence[str]) -> list[str]:
    """The models among a folder's files; of a split one the first part, present or not."""
    models = (name for name in files if name.lower().endswith(".gguf") and name[0] != ".")
    return sorted(set(map(_first_part, models)))


def _first_part(name: str) -> str:
    """The name of the file that a split model is loaded by; of any other file, its own."""
    file = Path(name)
    part = _PART.search(file.stem)
    if part is None:
        return name
    return f"{file.stem[: part.start()]}-00001-of-{part[2]}{file.suffix}"


@functools.lru_cache(maxsize=20_000)
def _described(path: Path, _size: int, _changed: int) -> ModelEntry | None:
    """Remembered while the file stays the same; errors are not, another part may cure them."""
    from specfit.models.gguf_info import read_gguf_info

    info = read_gguf_info(path)
    if not info.tensors or _pools(info.architecture, info.metadata):
        return None
    return ModelEntry(
        path=path,
        name=info.name,
        architecture=info.architecture,
        quantisation=_quantisation(info),
        bytes=info.bytes,
        expert_bytes=info.expert_bytes,
        kv_bytes=info.kv_bytes(min(_CONTEXT, info.context_length or _CONTEXT)),
        n_experts=info.n_experts,
        n_experts_used=info.n_experts_used,
        context_length=info.context_length,
    )


def _is_language_model(path: Path) -> bool:
    """Whether a file that cannot be used is at least meant as one: projectors are left out."""
    from specfit.models import ModelFileError
    from specfit.models.gguf_header import read_header

    if path.name.lower().startswith("mmproj"):
        return False
    try:
        header = read_header(path)
    except (ModelFileError, RecursionError):
        return True  # too damaged to tell, so it is shown with the reason
    architecture = header.metadata.get("general.architecture")
    return f"{architecture}.block_count" in header.metadata


def _pools(architecture: str, metadata: Mapping[str, object]) -> bool:
    """Whether a model makes embeddings or ranks, and writes nothing."""
    pooling = metadata.get(f"{architecture}.pooling_type", 0)
    return isinstance(pooling, int) and pooling > 0


def _quantisation(info: GgufInfo) -> str:
    """The name of the file's type; without one, the type that most of its bytes have."""
    from gguf import LlamaFileType

    kind = info.metadata.get("general.file_type")
    if isinstance(kind, int):
        with suppress(ValueError):
            name = LlamaFileType(kind & ~LlamaFileType.GUESSED.value).name
            return name.removeprefix("MOSTLY_").removeprefix("ALL_")
    bytes_by_type: Counter[str] = Counter()
    for tensor in info.tensors:
        bytes_by_type[tensor.type.name] += tensor.n_bytes
    return bytes_by_type.most_common(1)[0][0]
