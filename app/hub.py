"""Models on the Hugging Face hub by name: what -hf and -hfd ask for, and which files that is.

Pure: it is told what a repository holds. The names mean what they mean to llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from .entry import AppError

# The first that a repository has is taken when none is asked for: llama.cpp's default, then what is
# near it, better ones before worse, and full precision only where there is nothing else.
PREFERRED = (
    *("Q4_K_M", "UD-Q4_K_XL", "Q4_K_S", "Q4_K_L", "Q4_0", "IQ4_XS", "IQ4_NL", "Q4_1", "MXFP4_MOE"),
    *("MXFP4", "Q5_K_M", "Q5_K_S", "Q5_0", "Q6_K", "Q8_0", "Q3_K_M", "Q3_K_L", "Q3_K_S", "IQ3_M"),
)
_FLOATS = ("BF16", "F16", "FP16", "F32", "FP32")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_TAG = re.compile(r"[\w.-]+", re.ASCII)
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32))(?=$|[-./])",
    re.IGNORECASE,
)
# Beside models: projectors of vision models, and what quantisers measured.
_NO_MODEL = ("mmproj", "imatrix")
_MOST_NAMED = 12


@dataclass(frozen=True)
class Wanted:
    """repo: "owner/name". quant: as typed; None takes the first of PREFERRED."""

    repo: str
    quant: str | None = None


@dataclass(frozen=True)
class RepoFile:
    """path: in the repository, with "/". size: bytes."""

    path: str
    size: int

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


@dataclass(frozen=True)
class Listing:
    """The files of a repository at a commit."""

    repo: str
    commit: str
    files: tuple[RepoFile, ...]


@dataclass(frozen=True)
class _Model:
    """A GGUF file, or the parts of one in their order; `whole` says whether all are there."""

    parts: tuple[RepoFile, ...]
    whole: bool
    quant: str


def parse_wanted(text: str) -> Wanted:
    """Reads "owner/repo[:quant]"; raises AppError for anything else."""
    repo, colon, quant = text.strip().partition(":")
    if not _REPO.fullmatch(repo) or (colon and not _TAG.fullmatch(quant)):
        raise AppError(
            f"-hf {text}: write owner/repo or owner/repo:quant, such as "
            "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M"
        )
    return Wanted(repo, quant or None)


def parse_head(text: str) -> Wanted:
    """Reads "owner/repo"; raises AppError for anything else."""
    if not _REPO.fullmatch(text.strip()):
        raise AppError(f"-hfd {text}: write owner/repo, such as AngelSlim/Qwen3-a3B_eagle3")
    return Wanted(text.strip())


def choose_model(listing: Listing, quant: str | None) -> tuple[RepoFile, ...]:
    """The GGUF file of that quantisation, all its parts, in order.

    quant: in any case; a whole word of the file's name. Raises AppError, naming what there is, if
    there is none, or if a part is missing.
    """
    models = list(_models(listing.files))
    if not models:
        raise AppError(f"{listing.repo} has no GGUF file{_where_to_look(listing)}")
    found = _of_quant(models, quant) if quant else _first_sensible(models)
    if found is None:
        raise AppError(f"{listing.repo} has no {quant}; it has {_named(models)}")
    if not found.whole:
        raise AppError(f"{listing.repo} lacks a part of {found.parts[0].path}")
    return found.parts


def quant_of(path: str) -> str:
    """The quantisation that a file's name tells, as it is written there; "" if none."""
    found = _QUANT.findall(path.removesuffix(PurePosixPath(path).suffix))
    return str(found[-1]) if found else ""


def choose_head(listing: Listing) -> tuple[RepoFile, ...]:
    """The files of an EAGLE-3 head: config.json first, then its weights, all of one folder.

    Raises AppError if there is no such folder.
    """
    folders = sorted({_folder(file) for file in listing.files}, key=lambda f: (f.count("/"), f))
    for folder in folders:
        here = [file for file in listing.files if _folder(file) == folder]
        config = [file for file in here if file.name == "config.json"]
        weights = [file for file in here if file.name.endswith(".safetensors")] or [
            file for file in here if re.fullmatch(r"pytorch_model.*\.bin", file.name)
        ]
        if config and weights:
            kind = PurePosixPath(weights[0].name).suffix
            index = [file for file in here if file.name.endswith(f"{kind}.index.json")]
            return (*config, *index, *weights)
    if any(file.name.lower().endswith(".gguf") for file in listing.files):
        raise AppError(
            f"{listing.repo} holds GGUF files, not an EAGLE-3 head (config.json with safetensors); "
            "-hf takes models"
        )
    raise AppError(
        f"{listing.repo} holds no draft head: no config.json with .safetensors beside it"
    )


def _folder(file: RepoFile) -> str:
    return file.path.rpartition("/")[0]


def _models(files: Sequence[RepoFile]) -> Iterator[_Model]:
    groups: dict[tuple[str, str], dict[int, RepoFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        name = file.name.lower()
        if not name.endswith(".gguf") or any(word in name for word in _NO_MODEL):
            continue
        part = _PART.search(file.path)
        key = (_PART.sub("", file.path), part[2] if part else "00001")
        groups.setdefault(key, {})[int(part[1]) if part else 1] = file
    for (path, count), parts in groups.items():
        whole = sorted(parts) == list(range(1, int(count) + 1))
        yield _Model(tuple(parts[number] for number in sorted(parts)), whole, quant_of(path))


def _of_quant(models: Sequence[_Model], quant: str) -> _Model | None:
    """That of just this name; else Unsloth's of it (UD-…); else whose name has it as a word."""
    wanted = quant.upper()
    word = re.compile(rf"(?:^|[-._/]){re.escape(quant)}(?=[-./])", re.IGNORECASE)
    rules = (
        lambda model: model.quant.upper() == wanted,
        lambda model: model.quant.upper() == f"UD-{wanted}",
        lambda model: word.search(model.parts[0].path),
    )
    return next((model for rule in rules for model in models if rule(model)), None)


def _first_sensible(models: Sequence[_Model]) -> _Model:
    by_name = {model.quant.upper(): model for model in reversed(models)}
    preferred = (by_name[quant] for quant in PREFERRED if quant in by_name)
    small = (model for model in models if model.quant.upper() not in _FLOATS)
    return next(preferred, None) or next(small, models[0])


def _named(models: Sequence[_Model]) -> str:
    names = list(dict.fromkeys(model.quant or model.parts[0].path for model in models))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _where_to_look(listing: Listing) -> str:
    if any(file.path.endswith(".safetensors") for file in listing.files):
        return "; it holds other weights, and GGUF files are mostly in a repository named …-GGUF"
    return ""
