"""Writes a small model in a larger shape; see `target` for how that works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGUFValueType, GGUFWriter

from specfit.models.errors import ModelFileError
from specfit.models.gguf_writing import Progress, check_space, replacing, write_tensors
from specfit.models.scaling.routing import HiddenStates, RoutingStats, routing_stats, union_targets
from specfit.models.scaling.shape import Shape, check_shape, place_layers
from specfit.models.scaling.source import Recording, SourceModel, write_texts
from specfit.models.scaling.storage import FILE_TYPES, block_of
from specfit.models.scaling.target import Plan, SilentLayer, all_tensors

SEED = 0
_TEXTS, _LENGTH = 32, 160


@dataclass(frozen=True)
class Scaled:
    """What was written. routing: of every layer, on text that the small model wrote."""

    path: Path
    n_bytes: int
    routing: tuple[RoutingStats, ...]
    silent: tuple[bool, ...]


def make_plan(
    model: SourceModel, shape: Shape, file_type: str, seed: int = SEED
) -> tuple[Plan, tuple[RoutingStats, ...]]:
    """Places the layers and makes the silent ones' routers; says how every layer routes.

    Raises ModelFileError for a shape that cannot hold the model.
    """
    block = block_of(file_type)
    check_shape(Shape.of(model), shape, block)
    places = {place: i for i, place in enumerate(place_layers(model.n_layers, shape.layers))}
    recording = write_texts(model, _TEXTS, _LENGTH, seed)
    own = [routing_stats(chosen, model.n_experts) for chosen in recording.experts]
    silent, routing = _silent_layers(model, shape, places, recording, own, seed)
    stats = tuple(
        routing[layer] if layer in routing else own[places[layer]] for layer in range(shape.layers)
    )
    return Plan(model, shape, file_type, block, places, silent), stats


def _silent_layers(
    model: SourceModel,
    shape: Shape,
    places: dict[int, int],
    recording: Recording,
    own: Sequence[RoutingStats],
    seed: int,
) -> tuple[dict[int, SilentLayer], dict[int, RoutingStats]]:
    random = np.random.default_rng(seed)
    quiet = [layer for layer in range(shape.layers) if layer not in places]
    targets = union_targets([stats.union4 for stats in own], len(quiet), random)
    layers: dict[int, SilentLayer] = {}
    routing: dict[int, RoutingStats] = {}
    seen, states = -1, None
    for layer, target in zip(quiet, targets, strict=True):
        before = max(i for place, i in places.items() if place < layer)
        if states is None or before != seen:
            seen, states = before, HiddenStates(recording.residuals[before], model.epsilon)
        router, routing[layer] = states.fitted(model.n_experts, model.n_used, target, random)
        layers[layer] = SilentLayer(router, states.usual_size)
    return layers, routing


def write_scaled(
    model: SourceModel,
    out: Path,
    shape: Shape,
    file_type: str,
    seed: int = SEED,
    progress: Progress = lambda _done, _total: None,
) -> Scaled:
    """Writes the model in that shape; the same arguments give the same bytes.

    file_type: a key of FILE_TYPES. progress: told bytes written and bytes in all. An error leaves
    `out` as it was. Raises ModelFileError for a shape that cannot hold the model, or a disk that
    cannot hold the file.
    """
    if out.exists() and out.samefile(model.path):
        raise ModelFileError(f"{out} is the source itself; give another name to write to.")
    plan, routing = make_plan(model, shape, file_type, seed)
    tensors = all_tensors(plan, seed)
    n_bytes = sum(tensor.n_bytes for tensor in tensors)
    check_space(out, n_bytes)
    with replacing(out) as part:
        writer = GGUFWriter(part, "qwen3moe")
        try:
            _add_metadata(writer, plan)
            write_tensors(writer, tensors, progress)
        finally:
            writer.close()
    silent = tuple(layer not in plan.places for layer in range(shape.layers))
    return Scaled(out, n_bytes, routing, silent)


def _add_metadata(writer: GGUFWriter, plan: Plan) -> None:
    shape = plan.shape
    changed = {
        "embedding_length": shape.embd,
        "block_count": shape.layers,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "expert_feed_forward_length": shape.expert_ff,
        "vocab_size": shape.vocab,
    }
    values = {f"qwen3moe.{key}": value for key, value in changed.items()}
    for field in plan.model.reader.fields.values():
        name, kind = field.name, field.types[0]
        if name.startswith("GGUF.") or name in (
            "general.architecture",
            "general.file_type",
            "general.quantization_version",
        ):
            continue
        value = values.get(name, field.contents())
        n_padding = shape.vocab - plan.model.n_vocab
        if name == "tokenizer.ggml.tokens":
            value = value + [f"<|specfit_pad_{i}|>" for i in range(n_padding)]
        elif name == "tokenizer.ggml.token_type":
            value = value + [int(gguf.TokenType.UNUSED)] * n_padding
        elif name == "tokenizer.ggml.scores":
            value = value + [0.0] * n_padding
        elif name == "general.name":
            value = f"{value}, scaled to {shape.layers} layers of {shape.embd}"
        elif name == "qwen3moe.attention.layer_norm_rms_epsilon" and plan.constant is not None:
            value = 0.0
        element = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub_type=element)
    writer.add_file_type(FILE_TYPES[plan.file_type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
