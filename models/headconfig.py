"""What an EAGLE-3 head's config.json says, in every layout that heads are published in.

- SpecForge (sgl-project/SpecForge `configs/`, `modeling/draft/llama3_eagle.py`), AngelSlim
  (Tencent/AngelSlim `compressor/speculative/train`), EAGLE itself (SafeAILab/EAGLE
  `model/cnets.py`) and ModelOpt (NVIDIA/Model-Optimizer `export/plugins/hf_spec_export.py`):
  a Llama config with `draft_vocab_size`, and in some `eagle_config`.
- speculators (vllm-project/speculators `models/eagle3/`, RedHat's heads): the layer's config in
  `transformer_layer_config`, which leaves out whatever has transformers' default value.

The layers whose features a head reads are given by `eagle_aux_hidden_state_layer_ids`. Within
`eagle_config` they count outputs (SGLang adds one, `set_eagle3_layers_to_capture`; ModelOpt and
SpecForge write them so); at the top level, where speculators writes it, they count inputs (vLLM
`_get_eagle3_aux_layers_from_config`). Without either, the inputs of layers 2, n/2 and n - 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specfit.models.errors import ModelFileError
from specfit.models.fields import integer, number, section
from specfit.models.gguf_info import GgufInfo
from specfit.models.rope import Rope, read_rope
from specfit.models.stored import Stored

_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
# transformers' default for Llama and Qwen3, left out of a speculators config.
_DEFAULT_HEADS = 32


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
    """Sizes, constants and options of a head.

    hidden_size: of the head; its features have the target's. vocab_size: of the draft vocabulary.
    taps: target layers whose inputs are its features, low to high.
    norm_before_residual: the layer's residual is the normalised hidden state.
    feature_norms: norms before `fc`: none, 1 over all features (`norm_before_fc`), or 3, one for
    each tap (`fc_norm`).
    norm_output: the next level reads the hidden state after the last norm, not before it.
    window: tokens that a token sees, itself included; 0 for all.
    """

    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    rope: Rope
    taps: tuple[int, int, int]
    norm_before_residual: bool = False
    feature_norms: int = 0
    norm_output: bool = False
    window: int = 0


def flat_config(path: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the options of a speculators layout's layer beside its own.

    Raises ModelFileError if it is no EAGLE-3 head's.
    """
    kind = raw.get("speculators_model_type", section(raw, "speculators_config").get("algorithm"))
    if kind not in (None, "eagle3"):
        raise ModelFileError(f"{path} is a speculator of the kind {kind!r:.40}, not EAGLE-3.")
    layer = section(raw, "transformer_layer_config")
    if kind is not None and not layer:
        raise ModelFileError(f"{path}: config.json lacks its transformer_layer_config.")
    return {**raw, **layer, "tie_word_embeddings": raw.get("tie_word_embeddings", False)}


def read_head_config(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, Stored], target: TargetShape
) -> HeadConfig:
    """config: flat. tensors: named as in SpecForge's layout, those that give sizes have two axes.

    Raises ModelFileError for what cannot be computed or was made for another target.
    """
    _refuse_unsupported(path, config)
    width = tensors["fc.weight"].shape[0]
    said = integer(path, config, "hidden_size", width)
    made_for = integer(path, config, "target_hidden_size", said)
    if made_for != target.hidden_size:
        raise ModelFileError(
            f"The draft head {path} is for hidden size {made_for}, its target has "
            f"{target.hidden_size}; it was made for another model."
        )
    if said != width:
        raise ModelFileError(f"{path}: fc.weight is for hidden size {width}, config.json {said}.")
    n_heads, n_kv_heads, head_dim = _heads(path, config, tensors)
    return HeadConfig(
        hidden_size=width,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        vocab_size=tensors["lm_head.weight"].shape[0],
        norm_eps=number(path, config, "rms_norm_eps", 1e-6),
        rope=read_rope(path, config, head_dim),
        taps=_taps(path, config, target),
        norm_before_residual=_switch(config, "norm_before_residual"),
        feature_norms=_feature_norms(path, config),
        norm_output=_switch(config, "norm_output"),
        window=_window(path, config),
    )


def _refuse_unsupported(path: Path, config: Mapping[str, Any]) -> None:
    if config.get("num_hidden_layers", 1) != 1:
        raise ModelFileError(
            f"{path} has {config['num_hidden_layers']!r:.20} layers; only heads of one layer can "
            "be used."
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ModelFileError(f"{path} asks for the activation {config['hidden_act']!r:.40}.")
    if not section(config, "eagle_config").get("use_aux_hidden_state", True):
        raise ModelFileError(
            f"{path} reads the target's last layer only, which is not what an EAGLE-3 head does."
        )
    if number(path, config, "logit_scale", 1.0) != 1:
        raise ModelFileError(f"{path} asks for logit_scale, which is not supported.")
    if config.get("quantization_config") is not None:
        raise ModelFileError(
            f"{path} is quantised; heads are needed in float16, bfloat16 or float32."
        )


def _switch(config: Mapping[str, Any], key: str) -> bool:
    """An option, for which NVIDIA's heads use `eagle_config`, others the top level."""
    return bool(section(config, "eagle_config").get(key, config.get(key)))


def _feature_norms(path: Path, config: Mapping[str, Any]) -> int:
    whole, each = _switch(config, "norm_before_fc"), _switch(config, "fc_norm")
    if whole and each:
        raise ModelFileError(f"{path} asks for norm_before_fc and fc_norm; one of them must do.")
    return 1 if whole else 3 if each else 0


def _heads(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, Stored]
) -> tuple[int, int, int]:
    """Query heads, key/value heads and their size.

    Published configs are wrong about the size now and then; the weights are not.
    """
    speculators = "transformer_layer_config" in config
    n_heads = integer(path, config, "num_attention_heads", _DEFAULT_HEADS if speculators else None)
    q_rows, kv_rows = (tensors[f"midlayer.self_attn.{n}_proj.weight"].shape[0] for n in "qk")
    head_dim = q_rows // n_heads
    if q_rows % (2 * n_heads) or head_dim == 0:
        raise ModelFileError(f"{path} has {q_rows} query rows, which {n_heads} heads cannot share.")
    n_kv_heads = integer(path, config, "num_key_value_heads", max(kv_rows // head_dim, 1))
    if n_heads % n_kv_heads:
        raise ModelFileError(f"{path} has {n_heads} heads, which {n_kv_heads} groups cannot share.")
    return n_heads, n_kv_heads, head_dim


def _window(path: Path, config: Mapping[str, Any]) -> int:
    """As vLLM reads it: a window counts if `layer_types` says that the layer has one."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or not kinds or kinds[0] == "full_attention":
        return 0
    if kinds[0] != "sliding_attention":
        raise ModelFileError(f"{path} asks for {kinds[0]!r:.40}, which is not supported.")
    return integer(path, config, "sliding_window")


def _taps(path: Path, config: Mapping[str, Any], target: TargetShape) -> tuple[int, int, int]:
    outputs = section(config, "eagle_config").get(_LAYER_IDS)
    ids = config.get(_LAYER_IDS) if outputs is None else outputs
    shift = 0 if outputs is None else 1
    if ids is None:
        taps = (2, target.n_layers // 2, target.n_layers - 3)
    elif isinstance(ids, list) and len(ids) == 3 and all(type(i) is int for i in ids):
        taps = (ids[0] + shift, ids[1] + shift, ids[2] + shift)
    else:
        raise ModelFileError(f"{path}: {_LAYER_IDS} in config.json must list three layers.")
    if min(taps) < 0 or max(taps) >= target.n_layers:
        raise ModelFileError(
            f"The draft head {path} reads the inputs of layers {taps!s:.60}, but its target has "
            f"{target.n_layers} layers; it was made for another model."
        )
    return taps
