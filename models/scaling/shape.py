"""The larger shape: its sizes, and where the small model's parts go in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specfit.models.errors import ModelFileError

if TYPE_CHECKING:
    from specfit.models.scaling.source import SourceModel


@dataclass(frozen=True)
class Shape:
    """Sizes of a `qwen3moe`; experts and head size stay those of the small model.

    head_ff, draft_vocab: of the EAGLE-3 head; None leaves them as they are.
    """

    layers: int
    embd: int
    heads: int
    kv_heads: int
    expert_ff: int
    vocab: int
    head_ff: int | None = None
    draft_vocab: int | None = None

    @classmethod
    def of(cls, model: SourceModel) -> Shape:
        return cls(
            model.n_layers,
            model.n_embd,
            model.n_heads,
            model.n_kv_heads,
            model.expert_ff,
            model.n_vocab,
        )


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {"qwen3-30b-a3b": Shape(48, 2048, 32, 4, 768, 151_936, head_ff=12_288, draft_vocab=32_000)}
)


def changed(shape: Shape, sizes: Mapping[str, int | None]) -> Shape:
    """`shape` with those `sizes` that are not None."""
    return replace(shape, **{name: size for name, size in sizes.items() if size is not None})


def check_shape(source: Shape, shape: Shape, block: int) -> None:
    """Raises ModelFileError, in one sentence, for a shape that cannot hold the source.

    block: values that the file's type quantises together.
    """
    for name in ("layers", "embd", "heads", "kv_heads", "expert_ff", "vocab"):
        old, new = getattr(source, name), getattr(shape, name)
        if new < old:
            raise ModelFileError(f"{_option(name)} {new} is less than the source's {old}.")
    if shape.embd == source.embd and (shape.layers, shape.vocab) != (source.layers, source.vocab):
        raise ModelFileError(
            f"More layers or tokens need a wider model: --embd above {source.embd}."
        )
    if shape.heads % shape.kv_heads or shape.heads // shape.kv_heads < _group(source):
        raise ModelFileError(
            f"--heads {shape.heads} must be a multiple of --kv-heads {shape.kv_heads}, and at "
            f"least {_group(source)} times as many, as in the source."
        )
    for name in ("embd", "expert_ff"):
        if getattr(shape, name) % block:
            raise ModelFileError(
                f"{_option(name)} {getattr(shape, name)} must be a multiple of {block} for this "
                "type."
            )
    if source.embd % block:
        raise ModelFileError(
            f"The source is {source.embd} wide, no multiple of {block}, which this type needs."
        )
    place_layers(source.layers, shape.layers)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _group(shape: Shape) -> int:
    return shape.heads // shape.kv_heads


def more_bits(layer: int, n_layers: int) -> bool:
    """llama.cpp's rule for Q4_K_M, by which values and down matrices of some layers are Q6_K: the
    first and last eighth, and every third between them."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def default_taps(n_layers: int) -> tuple[int, int, int]:
    """Layers whose inputs an EAGLE-3 head reads unless it says otherwise."""
    return (2, n_layers // 2, n_layers - 3)


def place_layers(n_source: int, n_layers: int) -> list[int]:
    """The place of every source layer among `n_layers`.

    The layers between two taps of an EAGLE-3 head stay between them, so that the inputs at the
    default taps are the same hidden states; where there is a choice they go where Q4_K_M is more
    exact. Layer 0 keeps its place. Raises ModelFileError if there is no room for that.
    """
    old, new = _bounds(n_source, n_layers), _bounds(n_layers, n_source)
    places: list[int] = []
    for i, (start, stop) in enumerate(pairwise(new)):
        count, room = old[i + 1] - old[i], stop - start
        if room < count:
            raise ModelFileError(
                f"--layers {n_layers} leaves no room for the {n_source} layers of the source "
                "between the taps of a draft head; take more, or as many."
            )
        for k in range(count):
            first, end = (start + part * room // count for part in (k, k + 1))
            better = (layer for layer in range(first, end) if more_bits(layer, n_layers))
            places.append(next(better, first) if places else first)
    return places


def _bounds(n_layers: int, other: int) -> list[int]:
    if n_layers == other or min(n_layers, other) < 6:
        return [0, n_layers]  # too few layers for three taps in order
    return [0, *default_taps(n_layers), n_layers]


def place_heads(
    n_heads: int, n_kv_heads: int, new_heads: int, new_kv_heads: int, head_dim: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows that queries, and keys and values, of the small model take among the new ones.

    A key/value head serves `heads / kv heads` queries in a row, so groups stay together.
    """
    old_group, new_group = n_heads // n_kv_heads, new_heads // new_kv_heads
    heads = np.arange(n_heads)
    queries = heads // old_group * new_group + heads % old_group
    rows = (queries[:, None] * head_dim + np.arange(head_dim)).ravel()
    return rows, np.arange(n_kv_heads * head_dim)
