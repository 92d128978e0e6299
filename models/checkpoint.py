"""Reading an EAGLE-3 checkpoint and checking that it fits its target.

The layout is SpecForge's, in which most heads are published: `fc`, one decoder layer named
`midlayer`, `norm`, `lm_head` over a draft vocabulary, `d2t` (an offset: target id = draft id +
d2t[draft id]) and `t2d` (which target tokens the draft vocabulary has). Whatever this layout does
not define is refused by name: a head that is computed almost right drafts badly, and nobody sees
why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from specfit.models.errors import ModelFileError
from specfit.models.gguf_info import GgufInfo

_LAYER = "midlayer."
_NORMS = (
    "midlayer.input_layernorm.weight",
    "midlayer.hidden_norm.weight",
    "midlayer.post_attention_layernorm.weight",
    "norm.weight",
)
# Present in some checkpoints and of no effect on the result.
_IGNORED = ("midlayer.self_attn.rotary_emb.inv_freq",)
# Switches of other layouts; a false or missing one is fine.
_UNSUPPORTED_SWITCHES = ("norm_before_residual", "norm_before_fc", "attention_bias", "mlp_bias")


@dataclass(frozen=True)
class TargetShape:
    """What a head must know of its target: width, vocabulary and number of layers."""

    hidden_size: int
    vocab_size: int
    n_layers: int

    @classmethod
    def of(cls, model: GgufInfo) -> TargetShape:
        return cls(model.n_embd, model.n_vocab, model.n_layers)


@dataclass(frozen=True)
class HeadConfig:
    """Sizes and constants of a head.

    taps: target layers whose inputs are its features, low to high.
    vocab_size: of the draft vocabulary.
    """

    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    rope_theta: float
    taps: tuple[int, int, int]


@dataclass(frozen=True)
class HeadCheckpoint:
    """A checkpoint that fits its target.

    tensors: by checkpoint name, in the type they are stored in.
    target_ids: int64 [draft vocabulary], each draft token's id in the target's vocabulary.
    """

    path: Path
    config: HeadConfig
    tensors: Mapping[str, torch.Tensor]
    target_ids: torch.Tensor


def read_checkpoint(path: Path, target: TargetShape) -> HeadCheckpoint:
    """Reads a checkpoint: a folder, or a .safetensors file with config.json beside it.

    Raises ModelFileError if it is not there, not readable, damaged, of another layout, or made for
    another target (hidden size, vocabulary, layers).
    """
    path = Path(path)
    folder, files = _locate(path)
    raw = _read_config(folder / "config.json")
    tensors = _read_tensors(files)
    _refuse_other_layouts(path, raw, tensors)
    config = _config(path, raw, tensors, target)
    _check_tensors(path, config, tensors, target)
    return HeadCheckpoint(path, config, tensors, _target_ids(path, raw, tensors, target))


def _locate(path: Path) -> tuple[Path, list[Path]]:
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise ModelFileError(
                f"{path} holds no .safetensors file, so there is no draft head to load from it."
            )
        return path, files
    if not path.exists():
        raise ModelFileError(f"There is no draft head {path}.")
    return path.parent, [path]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFileError(f"The draft head lacks its config.json ({path}).") from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(config, dict):
        raise ModelFileError(f"{path} holds no JSON object, so it is no model configuration.")
    return config


def _read_tensors(files: list[Path]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise ModelFileError(f"{file} is not a readable safetensors file ({reason}).") from None
    return tensors


def _refuse_other_layouts(path: Path, raw: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    if "speculators_model_type" in raw or any(name.startswith("layers.") for name in tensors):
        raise ModelFileError(
            f"{path} is in another layout (speculators or EAGLE-1/2); only EAGLE-3 heads in "
            "SpecForge's layout can be used."
        )
    for switch in _UNSUPPORTED_SWITCHES:
        if raw.get(switch) or _section(raw, "eagle_config").get(switch):
            raise ModelFileError(f"{path} asks for {switch}, which is not supported.")
    if raw.get("num_hidden_layers", 1) != 1:
        raise ModelFileError(
            f"{path} has {raw['num_hidden_layers']} layers; only heads of one layer can be used."
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelFileError(f"{path} asks for the activation {raw['hidden_act']}, not silu.")


def _section(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def _config(
    path: Path, raw: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], target: TargetShape
) -> HeadConfig:
    width = _integer(path, raw, "hidden_size")
    made_for = raw.get("target_hidden_size", width)
    for size in (width, made_for):
        if size != target.hidden_size:
            raise ModelFileError(
                f"The draft head {path} is for hidden size {size}, its target has "
                f"{target.hidden_size}; it was made for another model."
            )
    n_heads = _integer(path, raw, "num_attention_heads")
    n_kv_heads = _integer(path, raw, "num_key_value_heads", n_heads)
    # Published configs are wrong about the head size now and then; the weights are not.
    q_rows = _tensor(path, tensors, "midlayer.self_attn.q_proj.weight").shape[0]
    if q_rows % (2 * n_heads) or n_heads % n_kv_heads:
        raise ModelFileError(
            f"{path} has {q_rows} query rows, which {n_heads} heads in {n_kv_heads} groups cannot "
            "share."
        )
    return HeadConfig(
        hidden_size=width,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=q_rows // n_heads,
        vocab_size=_tensor(path, tensors, "lm_head.weight").shape[0],
        norm_eps=_number(path, raw, "rms_norm_eps", 1e-6),
        rope_theta=_rope_theta(path, raw),
        taps=_taps(path, raw, target),
    )


def _number(path: Path, raw: Mapping[str, Any], key: str, default: float) -> float:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ModelFileError(f"{path}: {key} in config.json must be a number above 0.")
    return float(value)


def _integer(path: Path, raw: Mapping[str, Any], key: str, default: int = 0) -> int:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelFileError(f"{path}: {key} in config.json must be a whole number above 0.")
    return value


def _rope_theta(path: Path, raw: Mapping[str, Any]) -> float:
    """The RoPE base; newer configs keep it in `rope_parameters`. Scaled RoPE is refused."""
    for key in ("rope_scaling", "rope_parameters"):
        kind = _section(raw, key).get("rope_type", _section(raw, key).get("type", "default"))
        if kind != "default":
            raise ModelFileError(f"{path} asks for RoPE scaling {kind!r}, which is not supported.")
    nested = _section(raw, "rope_parameters")
    return _number(path, nested if "rope_theta" in nested else raw, "rope_theta", 10000.0)


def _taps(path: Path, raw: Mapping[str, Any], target: TargetShape) -> tuple[int, int, int]:
    """SpecForge's layer ids mean outputs, and the output of a layer is the next one's input."""
    key = "eagle_aux_hidden_state_layer_ids"
    ids = _section(raw, "eagle_config").get(key, raw.get(key))
    if ids is None:
        taps = (2, target.n_layers // 2, target.n_layers - 3)
    elif isinstance(ids, list) and len(ids) == 3 and all(isinstance(i, int) for i in ids):
        taps = (ids[0] + 1, ids[1] + 1, ids[2] + 1)
    else:
        raise ModelFileError(f"{path}: {key} in config.json must list three layers.")
    if min(taps) < 0 or max(taps) >= target.n_layers:
        raise ModelFileError(
            f"The draft head {path} reads the inputs of layers {taps}, but its target has "
            f"{target.n_layers} layers; it was made for another model."
        )
    return taps


def _check_tensors(
    path: Path, config: HeadConfig, tensors: Mapping[str, torch.Tensor], target: TargetShape
) -> None:
    shapes = _expected_shapes(config, tensors, target)
    optional = {"d2t", "t2d", "embed_tokens.weight", *_IGNORED}
    unknown = sorted(tensors.keys() - shapes.keys() - optional)
    if unknown:
        raise ModelFileError(f"{path} has a tensor {unknown[0]} that EAGLE-3 heads do not have.")
    for name, shape in shapes.items():
        tensor = _tensor(path, tensors, name)
        if tuple(tensor.shape) != shape:
            raise ModelFileError(
                f"{path}: {name} has shape {list(tensor.shape)} instead of {list(shape)}."
            )
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise ModelFileError(
                f"{path}: {name} is stored as {tensor.dtype}; float16, bfloat16 or float32 is "
                "needed."
            )
        if not bool(torch.isfinite(tensor).all()):
            raise ModelFileError(f"{path} is damaged: {name} has values that are not numbers.")


def _expected_shapes(
    config: HeadConfig, tensors: Mapping[str, torch.Tensor], target: TargetShape
) -> dict[str, tuple[int, ...]]:
    width, inner = config.hidden_size, config.n_heads * config.head_dim
    kv_inner = config.n_kv_heads * config.head_dim
    gate = tensors.get("midlayer.mlp.gate_proj.weight")
    mlp = gate.shape[0] if gate is not None and gate.dim() == 2 else 0
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_NORMS, (width,))
    shapes |= {
        "fc.weight": (width, 3 * target.hidden_size),
        f"{_LAYER}self_attn.q_proj.weight": (inner, 2 * width),
        f"{_LAYER}self_attn.k_proj.weight": (kv_inner, 2 * width),
        f"{_LAYER}self_attn.v_proj.weight": (kv_inner, 2 * width),
        f"{_LAYER}self_attn.o_proj.weight": (width, inner),
        f"{_LAYER}mlp.gate_proj.weight": (mlp, width),
        f"{_LAYER}mlp.up_proj.weight": (mlp, width),
        f"{_LAYER}mlp.down_proj.weight": (width, mlp),
        "lm_head.weight": (config.vocab_size, width),
    }
    if "embed_tokens.weight" in tensors:
        shapes["embed_tokens.weight"] = (target.vocab_size, width)
    return shapes


def _tensor(path: Path, tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in tensors:
        raise ModelFileError(
            f"{path} is not a complete EAGLE-3 head: the tensor {name} is missing."
        )
    return tensors[name]


def _target_ids(
    path: Path, raw: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], target: TargetShape
) -> torch.Tensor:
    n_draft = tensors["lm_head.weight"].shape[0]
    offsets = tensors.get("d2t", torch.zeros(n_draft, dtype=torch.int64))
    if offsets.shape != (n_draft,) or offsets.is_floating_point():
        raise ModelFileError(
            f"{path}: d2t must hold one whole number for each of {n_draft} tokens."
        )
    ids = torch.arange(n_draft) + offsets.to(torch.int64)
    known = tensors.get("t2d")
    vocab_size = raw.get("vocab_size", target.vocab_size)
    if known is not None:
        vocab_size = known.shape[0]
    if vocab_size != target.vocab_size or not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise ModelFileError(
            f"The draft head {path} drafts from a vocabulary of "
            f"{max(vocab_size, int(ids.max()) + 1)} tokens, its target has {target.vocab_size}; it "
            "was made for another model."
        )
    if len(set(ids.tolist())) != n_draft or (known is not None and not bool(known[ids].all())):
        raise ModelFileError(f"{path} is damaged: its tables d2t and t2d do not agree.")
    return ids
