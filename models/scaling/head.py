"""An EAGLE-3 head in the larger shape: the same drafts for the price of a published head.

Built like the target (see `target`). The target's constant channel comes with the embeddings and,
through `fc`, with the features, so that the head's norms need no epsilon of their own either;
tokens that pad the draft vocabulary are refused by it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from specfit.models.checkpoint import HeadCheckpoint, TargetShape, read_checkpoint
from specfit.models.errors import ModelFileError
from specfit.models.gguf_writing import check_space, replacing
from specfit.models.scaling.shape import Shape, check_shape, default_taps, place_heads, place_layers
from specfit.models.scaling.source import SourceModel
from specfit.models.scaling.target import REFUSAL
from specfit.models.stored import Stored

Array = NDArray[Any]

# Zero to float32's precision, where a head's epsilon must be above it.
_NO_EPSILON = 1e-30


@dataclass(frozen=True)
class ScaledHead:
    """A head for the larger model, in memory."""

    tensors: dict[str, Array]
    config: dict[str, Any]

    def write(self, out: Path) -> None:
        """Writes its folder. Raises ModelFileError if the disk has no room for it."""
        check_space(out, sum(tensor.nbytes for tensor in self.tensors.values()))
        out.mkdir(parents=True, exist_ok=True)
        with replacing(out / "model.safetensors") as part:
            save_file(self.tensors, part, metadata={"format": "pt"})
        with replacing(out / "config.json") as part:
            part.write_text(json.dumps(self.config, indent=2) + "\n", encoding="utf-8")


def scaled_head(model: SourceModel, source: Path, shape: Shape) -> ScaledHead:
    """The head in folder `source`, made for `model`, for that model in `shape`.

    Raises ModelFileError if it was not made for `model`, or the shape cannot hold it.
    """
    check_shape(Shape.of(model), shape, block=1)
    checkpoint = read_checkpoint(source, TargetShape(model.n_embd, model.n_vocab, model.n_layers))
    if "embed_tokens.weight" in checkpoint.tensors:
        raise ModelFileError(f"{source} has embeddings of its own, which cannot be scaled.")
    if not checkpoint.is_plain:
        raise ModelFileError(f"{source} has options beyond plain EAGLE-3, which cannot be scaled.")
    tensors = _scaled(checkpoint, model, shape)
    return ScaledHead(tensors, _scaled_config(source, checkpoint, model, shape, tensors))


def _scaled(checkpoint: HeadCheckpoint, model: SourceModel, shape: Shape) -> dict[str, Array]:
    old = checkpoint.config
    get = {name: _values(tensor) for name, tensor in checkpoint.tensors.items()}
    small, width = old.hidden_size, shape.embd
    wider = width > small
    heads, kv_heads = _heads(checkpoint, shape)
    queries, keys = place_heads(old.n_heads, old.n_kv_heads, heads, kv_heads, old.head_dim)
    old_ff = get["midlayer.mlp.gate_proj.weight"].shape[0]
    ff, vocab = shape.head_ff or old_ff, shape.draft_vocab or old.vocab_size
    if ff < old_ff or vocab < old.vocab_size:
        raise ModelFileError(
            f"{checkpoint.path} has {old_ff} units and {old.vocab_size} tokens, more than "
            f"the {ff} and {vocab} of the larger head."
        )
    if vocab > shape.vocab or (vocab > old.vocab_size and not wider):
        raise ModelFileError(f"{checkpoint.path}: its vocabulary cannot grow to {vocab} tokens.")
    real, constant = np.arange(small), width - 1
    shrink = (small / width) ** 0.5

    def placed(name: str, rows: int, columns: int, to: Array, frm: Array) -> Any:
        matrix = np.zeros((rows, columns), get[name].dtype)
        matrix[to[:, None], frm] = get[name]
        return matrix

    def norm(name: str) -> Array:
        weight = np.zeros(width, get[name].dtype)
        weight[:small] = get[name] * shrink
        return weight

    pairs = np.concatenate([real, width + real])  # embedding, hidden state
    features = np.concatenate([tap * width + real for tap in range(3)])
    attention, mlp, units = "midlayer.self_attn.", "midlayer.mlp.", np.arange(old_ff)
    inner, kv_inner = heads * old.head_dim, kv_heads * old.head_dim
    q, k, v, o = (f"{attention}{name}_proj.weight" for name in "qkvo")
    gate, up, down = (f"{mlp}{name}_proj.weight" for name in ("gate", "up", "down"))
    drafts = np.arange(old.vocab_size)
    names = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    tensors = {f"midlayer.{name}.weight": norm(f"midlayer.{name}.weight") for name in names}
    tensors |= {
        "fc.weight": placed("fc.weight", width, 3 * width, real, features),
        q: placed(q, inner, 2 * width, queries, pairs),
        k: placed(k, kv_inner, 2 * width, keys, pairs),
        v: placed(v, kv_inner, 2 * width, keys, pairs),
        o: placed(o, width, inner, real, queries),
        gate: placed(gate, ff, width, units, real),
        up: placed(up, ff, width, units, real),
        down: placed(down, width, ff, real, units),
        "norm.weight": norm("norm.weight"),
        "lm_head.weight": placed("lm_head.weight", vocab, width, drafts, real),
    }
    if wider:
        given, level = (small * e for e in (model.epsilon, min(model.epsilon, old.norm_eps)))
        tensors["fc.weight"][constant, constant] = (level / given) ** 0.5
        tensors["norm.weight"][constant] = REFUSAL * shrink / level**0.5
        tensors["lm_head.weight"][old.vocab_size :, constant] = -REFUSAL
    return tensors | _draft_ids(checkpoint, vocab, shape.vocab)


def _values(tensor: Stored) -> Array:
    """As stored, but for bfloat16, which numpy cannot write."""
    return tensor.floats() if tensor.kind == "BF16" else tensor.data


def _heads(checkpoint: HeadCheckpoint, shape: Shape) -> tuple[int, int]:
    """Query and key/value heads: the target's, if the head's groups fit into those."""
    old = checkpoint.config
    fits = shape.heads // shape.kv_heads >= old.n_heads // old.n_kv_heads
    if not fits or shape.kv_heads < old.n_kv_heads:
        raise ModelFileError(
            f"{checkpoint.path} has {old.n_heads} heads in {old.n_kv_heads} groups, which do not "
            f"fit into {shape.heads} in {shape.kv_heads}."
        )
    return shape.heads, shape.kv_heads


def _draft_ids(checkpoint: HeadCheckpoint, vocab: int, n_target: int) -> dict[str, Array]:
    """The tables of draft tokens; those that pad the vocabulary stand for the first unused ids."""
    known = np.zeros(n_target, np.bool_)
    known[checkpoint.target_ids] = True
    unused = np.flatnonzero(~known)[: vocab - len(checkpoint.target_ids)]
    ids = np.concatenate([checkpoint.target_ids, unused])
    known[unused] = True
    return {"d2t": ids - np.arange(vocab), "t2d": known}


def _scaled_config(
    source: Path,
    checkpoint: HeadCheckpoint,
    model: SourceModel,
    shape: Shape,
    tensors: dict[str, Array],
) -> dict[str, Any]:
    folder = source if source.is_dir() else source.parent
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = {key: value for key, value in config.items() if not key.startswith("_")}
    old = checkpoint.config
    if shape.embd > old.hidden_size:
        rest = old.hidden_size * (old.norm_eps - model.epsilon) / shape.embd
        config["rms_norm_eps"] = max(rest, _NO_EPSILON)
    heads, kv_heads = _heads(checkpoint, shape)
    config |= {
        "hidden_size": shape.embd,
        "target_hidden_size": shape.embd,
        "intermediate_size": len(tensors["midlayer.mlp.gate_proj.weight"]),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": old.head_dim,
        "vocab_size": shape.vocab,
        "draft_vocab_size": len(tensors["lm_head.weight"]),
    }
    taps = default_taps(shape.layers)
    if old.taps != default_taps(model.n_layers):
        places = place_layers(model.n_layers, shape.layers)
        taps = (places[old.taps[0]], places[old.taps[1]], places[old.taps[2]])
    section = dict(config.get("eagle_config") or {})
    # Layer ids mean outputs.
    section["eagle_aux_hidden_state_layer_ids"] = [tap - 1 for tap in taps]
    config["eagle_config"] = section
    return config
