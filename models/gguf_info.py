"""What a GGUF model is, read from its header in milliseconds.

Models may be split over several files (NAME-00001-of-00003.gguf); the first names the others, and
all of them are looked at, so that a missing or cut part is noticed before llama.cpp loads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specfit.models.errors import ModelFileError
from specfit.models.gguf_header import GgufHeader, SkippedArray, TensorInfo, Value, read_header

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_EXPERT_TENSOR = re.compile(r"blk\.(\d+)\..*_exps\.")
_KV_BYTES = 2
_LONGEST_NAME = 200
# llama.cpp ends the process for models that have more, or experts that make no sense.
_MOST_LAYERS, _MOST_EXPERTS = 512, 1024


@dataclass(frozen=True)
class GgufInfo:
    """A model as its files describe it.

    n_experts, n_experts_used: per MoE layer; 0 for dense models.
    context_length: tokens that the model was made for; 0 if it does not say.
    bytes: of all parts. metadata: all keys of the header; arrays only by their length.
    """

    path: Path
    name: str
    architecture: str
    n_layers: int
    n_embd: int
    n_vocab: int
    n_experts: int
    n_experts_used: int
    context_length: int
    bytes: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]

    @property
    def expert_bytes(self) -> int:
        """Bytes of all routed experts' weights; 0 for dense models."""
        return sum(t.n_bytes for t in self.tensors if _EXPERT_TENSOR.search(t.name))

    def kv_bytes(self, tokens: int) -> int:
        """Keys and values of so many tokens in float16, all layers alike."""

        def number(key: str, default: int) -> int:
            value = self.metadata.get(f"{self.architecture}.attention.{key}", default)
            return value if isinstance(value, int) else default

        heads = max(1, number("head_count", 1))
        width = self.n_embd // heads
        per_head = number("key_length", width) + number("value_length", width)
        return tokens * self.n_layers * number("head_count_kv", heads) * per_head * _KV_BYTES

    def tensor(self, name: str) -> TensorInfo:
        """The tensor of that name. Raises ModelFileError if there is none."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise ModelFileError(f"{self.path} has no tensor {name}.")


def read_gguf_info(path: Path) -> GgufInfo:
    """Reads the headers of a model's file or files.

    Raises ModelFileError, in one sentence, if a file is missing, unreadable, no GGUF file, cut
    short, not the first of its parts, or holds no language model that makes sense.
    """
    path = Path(path)
    first = read_header(path)
    headers = [first, *(read_header(part) for part in _other_parts(path, first))]
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    fields = _Fields(path, first.metadata)
    return GgufInfo(
        path=path,
        name=fields.text("general.name") or path.stem,
        architecture=fields.architecture,
        n_layers=fields.layers(),
        n_embd=fields.required("embedding_length"),
        n_vocab=_vocabulary(first.metadata, tensors),
        n_experts=fields.experts(tensors),
        n_experts_used=fields.number("expert_used_count"),
        context_length=fields.number("context_length"),
        bytes=sum(header.bytes for header in headers),
        metadata=first.metadata,
        tensors=tensors,
    )


class _Fields:
    """Typed access to the metadata; architecture's own keys go without their prefix."""

    def __init__(self, path: Path, metadata: Mapping[str, Value]) -> None:
        self._path = path
        self._metadata = metadata
        self.architecture = self.text("general.architecture")
        if not self.architecture:
            raise ModelFileError(f"{path} does not say which architecture its model has.")

    def text(self, key: str) -> str:
        """A short text, which a terminal can show."""
        value = self._metadata.get(key, "")
        if not isinstance(value, str):
            return ""
        return "".join(c if c.isprintable() else "\ufffd" for c in value[:_LONGEST_NAME])

    def number(self, key: str) -> int:
        value = self._metadata.get(f"{self.architecture}.{key}", 0)
        return value if isinstance(value, int) else 0

    def required(self, key: str) -> int:
        value = self.number(key)
        if value < 1:
            raise ModelFileError(
                f"{self._path} holds no language model: it has no {self.architecture}.{key} "
                "(a projector, an adapter, or a vocabulary alone)."
            )
        return value

    def bounded(self, n: int, most: int, what: str) -> int:
        if n > most:
            raise ModelFileError(
                f"{self._path} says that it has {n:,} {what}; {most:,} are the most that llama.cpp "
                "runs."
            )
        return n

    def layers(self) -> int:
        return self.bounded(self.required("block_count"), _MOST_LAYERS, "layers")

    def experts(self, tensors: tuple[TensorInfo, ...]) -> int:
        n = self.bounded(self.number("expert_count"), _MOST_EXPERTS, "experts a layer")
        used = [self.number("expert_used_count")]
        given = self._metadata.get(f"{self.architecture}.expert_used_count")
        if isinstance(given, SkippedArray):  # layers differ; those without experts use none
            found = (_EXPERT_TENSOR.search(tensor.name) for tensor in tensors)
            layers = {int(match[1]) for match in found if match}
            used = [n for layer, n in enumerate(given.numbers) if layer in layers]
        wrong = next((m for m in used if m < (n > 1) or m > max(n, 1)), None)
        if n < 0 or wrong is not None:
            raise ModelFileError(
                f"{self._path} is damaged: it says that a token uses {wrong or 0:,} of {n:,} "
                "experts; download or convert it again."
            )
        return n


def _vocabulary(metadata: Mapping[str, Value], tensors: tuple[TensorInfo, ...]) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, SkippedArray):
        return tokens.length
    return next((t.shape[0] for t in tensors if t.name == "token_embd.weight" and t.shape), 0)


def _other_parts(path: Path, first: GgufHeader) -> list[Path]:
    count, number = first.metadata.get("split.count", 0), first.metadata.get("split.no", 0)
    if not isinstance(count, int) or count < 2:
        return []
    match = _PART.search(path.name)
    if match is None or int(match[2]) != count:
        raise ModelFileError(
            f"{path} is part of a model in {count} files; keep their names "
            f"(…-00001-of-{count:05d}.gguf), by which the others are found."
        )
    stem = path.name[: match.start()]
    names = [f"{stem}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]
    if number != 0:
        raise ModelFileError(
            f"{path} is not the first part of its model; give {path.with_name(names[0])}."
        )
    return [path.with_name(name) for name in names[1:]]
