"""Reading an EAGLE-3 checkpoint and checking that it fits its target.

Tensors are named as SpecForge names them: `fc`, one decoder layer `midlayer`, `norm`, `lm_head`
over a draft vocabulary, `d2t` (an offset: target id = draft id + d2t[draft id]; without it the
draft vocabulary is the target's) and `t2d` (which target tokens the draft vocabulary has).
speculators and ModelOpt call the layer `layers.0`; some prefix `model.`. Whatever these layouts do
not define is refused by name: a head that is computed almost right drafts badly, and nobody sees
why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specfit.models.errors import ModelFileError
from specfit.models.fields import integer
from specfit.models.headconfig import HeadConfig, TargetShape, flat_config, read_head_config
from specfit.models.stored import FLOATS, INTEGERS, Stored
from specfit.models.weights import checkpoint_files, read_json, read_tensors

__all__ = ["HeadCheckpoint", "HeadConfig", "TargetShape", "read_checkpoint"]

_ATTENTION, _MLP = "midlayer.self_attn.", "midlayer.mlp."
# What training leaves in some files, of no effect on a head that drafts token by token.
_LEFTOVERS = ("verifier_lm_head.weight", "verifier_norm.weight", "mask_hidden")


@dataclass(frozen=True)
class HeadCheckpoint:
    """A checkpoint that fits its target.

    tensors: by SpecForge's names, in the type they are stored in; of biases, those it has.
    target_ids: int64 [draft vocabulary], each draft token's id in the target's vocabulary.
    is_plain: it is computed as in the paper, without any option, and its config is flat.
    """

    path: Path
    config: HeadConfig
    tensors: Mapping[str, Stored]
    target_ids: NDArray[np.int64]
    is_plain: bool = True


def read_checkpoint(path: Path, target: TargetShape) -> HeadCheckpoint:
    """Reads a checkpoint: a folder, or a file of its weights with config.json beside it.

    Raises ModelFileError if it is not there, not readable, damaged, unsound, of another layout, or
    made for another target (hidden size, vocabulary, layers).
    """
    path = Path(path)
    folder, files = checkpoint_files(path)
    raw = flat_config(path, read_json(folder / "config.json"))
    tensors = _named(path, read_tensors(files))
    if "lm_head.weight" not in tensors and raw["tie_word_embeddings"]:
        tensors["lm_head.weight"] = _tensor(path, tensors, "embed_tokens.weight")
    _check_layout(path, tensors)
    config = read_head_config(path, raw, tensors, target)
    _check_tensors(path, config, tensors, target)
    ids = _target_ids(path, raw, tensors, target)
    return HeadCheckpoint(path, config, tensors, ids, _is_plain(raw, config, tensors, target))


def _is_plain(
    raw: Mapping[str, Any],
    config: HeadConfig,
    tensors: Mapping[str, Stored],
    target: TargetShape,
) -> bool:
    options = (config.norm_before_residual, config.feature_norms, config.norm_output, config.window)
    return (
        not any(options)
        and not any(name.endswith((".bias", "q_norm.weight")) for name in tensors)
        and config.hidden_size == target.hidden_size
        and "transformer_layer_config" not in raw
    )


def _named(path: Path, stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """The tensors by SpecForge's names, without what training left."""
    tensors: dict[str, Stored] = {}
    for name, tensor in stored.items():
        ours = name.removeprefix("model.")
        if ours.startswith("layers.0."):
            ours = "midlayer." + ours.removeprefix("layers.0.")
        if ours in _LEFTOVERS or ours.endswith("rotary_emb.inv_freq"):
            continue
        if ours in tensors:
            raise ModelFileError(f"{path} has {ours} twice, under two names.")
        tensors[ours] = tensor
    return tensors


def _check_layout(path: Path, tensors: Mapping[str, Stored]) -> None:
    """Says what it is that is no EAGLE-3 head, and that sizes can be read from the tensors."""
    for part, what in (
        ("layers.1.", "has more than one layer"),
        ("_a_proj", "has latent attention (as DeepSeek's)"),
        ("mlp.experts", "has experts of its own"),
        ("_scale", "is quantised"),
    ):
        if any(part in name for name in tensors):
            raise ModelFileError(f"{path} {what}, which is not supported.")
    fc = _tensor(path, tensors, "fc.weight")
    two_inputs = len(fc.shape) == 2 and fc.shape[1] == 2 * fc.shape[0]
    if two_inputs and "midlayer.hidden_norm.weight" not in tensors:
        raise ModelFileError(f"{path} is an EAGLE-1 or EAGLE-2 head; an EAGLE-3 one is needed.")
    names = (
        *(f"{_ATTENTION}{name}_proj.weight" for name in "qk"),
        f"{_MLP}gate_proj.weight",
        "lm_head.weight",
        "fc.weight",
    )
    for name in names:
        tensor = _tensor(path, tensors, name)
        if len(tensor.shape) != 2 or 0 in tensor.shape:
            raise ModelFileError(f"{path}: {name} has shape {list(tensor.shape)}.")


def _check_tensors(
    path: Path, config: HeadConfig, tensors: Mapping[str, Stored], target: TargetShape
) -> None:
    shapes = _shapes(config, tensors, target)
    optional = _optional_shapes(config, tensors, target)
    unknown = sorted(tensors.keys() - shapes.keys() - optional.keys() - {"d2t", "t2d"})
    if unknown:
        raise ModelFileError(
            f"{path} has a tensor {unknown[0][:100]} that its config.json does not ask for, and "
            "that EAGLE-3 heads do not have."
        )
    if config.hidden_size != target.hidden_size and "embed_tokens.weight" not in tensors:
        raise ModelFileError(
            f"The draft head {path} has hidden size {config.hidden_size}, its target "
            f"{target.hidden_size}, and it brings no embeddings of its own."
        )
    for name, shape in (shapes | {n: s for n, s in optional.items() if n in tensors}).items():
        tensor = _tensor(path, tensors, name)
        if tensor.shape != shape:
            raise ModelFileError(
                f"{path}: {name} has shape {list(tensor.shape)} instead of {list(shape)}."
            )
        if tensor.kind not in FLOATS:
            raise ModelFileError(
                f"{path}: {name} is stored as {tensor.kind}; float16, bfloat16 or float32 is "
                "needed."
            )
        if not tensor.is_finite():
            raise ModelFileError(f"{path} is damaged: {name} has values that are not numbers.")


def _shapes(
    config: HeadConfig, tensors: Mapping[str, Stored], target: TargetShape
) -> dict[str, tuple[int, ...]]:
    width, inner = config.hidden_size, config.n_heads * config.head_dim
    kv_inner, mlp = config.n_kv_heads * config.head_dim, _mlp_size(tensors)
    shapes: dict[str, tuple[int, ...]] = {
        "midlayer.input_layernorm.weight": (width,),
        "midlayer.hidden_norm.weight": (width,),
        "midlayer.post_attention_layernorm.weight": (width,),
        "norm.weight": (width,),
        "fc.weight": (width, 3 * target.hidden_size),
        f"{_ATTENTION}q_proj.weight": (inner, 2 * width),
        f"{_ATTENTION}k_proj.weight": (kv_inner, 2 * width),
        f"{_ATTENTION}v_proj.weight": (kv_inner, 2 * width),
        f"{_ATTENTION}o_proj.weight": (width, inner),
        f"{_MLP}gate_proj.weight": (mlp, width),
        f"{_MLP}up_proj.weight": (mlp, width),
        f"{_MLP}down_proj.weight": (width, mlp),
        "lm_head.weight": (config.vocab_size, width),
    }
    if config.feature_norms == 1:
        shapes["input_norm.weight"] = (3 * target.hidden_size,)
    if config.feature_norms == 3:
        shapes |= {f"fc_norm.{tap}.weight": (target.hidden_size,) for tap in range(3)}
    # Whether there are biases is seen here: configs repeat what the target has. All or none of
    # what one product adds.
    for group in (("q", "k", "v"), ("gate", "up")):
        place = _ATTENTION if "q" in group else _MLP
        names = [f"{place}{name}_proj" for name in group]
        if any(f"{name}.bias" in tensors for name in names):
            shapes |= {f"{name}.bias": shapes[f"{name}.weight"][:1] for name in names}
    if f"{_ATTENTION}q_norm.weight" in tensors:
        shapes |= {f"{_ATTENTION}{name}_norm.weight": (config.head_dim,) for name in "qk"}
    return shapes


def _optional_shapes(
    config: HeadConfig, tensors: Mapping[str, Stored], target: TargetShape
) -> dict[str, tuple[int, ...]]:
    width = (config.hidden_size,)
    return {
        "embed_tokens.weight": (target.vocab_size, config.hidden_size),
        "fc.bias": width,
        f"{_ATTENTION}o_proj.bias": width,
        f"{_MLP}down_proj.bias": width,
    }


def _mlp_size(tensors: Mapping[str, Stored]) -> int:
    return tensors[f"{_MLP}gate_proj.weight"].shape[0]


def _tensor(path: Path, tensors: Mapping[str, Stored], name: str) -> Stored:
    if name not in tensors:
        raise ModelFileError(
            f"{path} is not a complete EAGLE-3 head: the tensor {name} is missing."
        )
    return tensors[name]


def _target_ids(
    path: Path, raw: Mapping[str, Any], tensors: Mapping[str, Stored], target: TargetShape
) -> NDArray[np.int64]:
    n_draft, known = tensors["lm_head.weight"].shape[0], tensors.get("t2d")
    offsets = tensors.get("d2t")
    if known is not None and (len(known.shape) != 1 or known.kind not in ("BOOL", *INTEGERS)):
        raise ModelFileError(
            f"{path} is damaged: t2d must say of each token whether it is drafted."
        )
    vocab_size = integer(path, raw, "vocab_size", target.vocab_size)
    if known is not None:
        vocab_size = known.shape[0]
    if vocab_size != target.vocab_size or n_draft > target.vocab_size:
        raise _other_vocabulary(path, max(vocab_size, n_draft), target)
    if offsets is not None and (offsets.shape != (n_draft,) or offsets.kind not in INTEGERS):
        raise ModelFileError(
            f"{path}: d2t must hold one whole number for each of {n_draft} tokens."
        )
    ids = np.arange(n_draft)
    if offsets is not None:
        ids += offsets.data.astype(np.int64)
    if not 0 <= int(ids.min()) <= int(ids.max()) < target.vocab_size:
        raise _other_vocabulary(path, int(ids.max()) + 1, target)
    # With the target's own vocabulary, trainers leave a t2d of zeros behind.
    if n_draft == target.vocab_size:
        known = None
    if len(np.unique(ids)) != n_draft or (known is not None and not known.data[ids].all()):
        raise ModelFileError(f"{path} is damaged: its tables d2t and t2d do not agree.")
    return ids


def _other_vocabulary(path: Path, size: int, target: TargetShape) -> ModelFileError:
    return ModelFileError(
        f"The draft head {path} drafts from a vocabulary of {size} tokens, its target has "
        f"{target.vocab_size}; it was made for another model."
    )
