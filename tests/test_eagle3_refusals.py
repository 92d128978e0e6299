"""A checkpoint that is damaged, of another layout or of another model is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from randomhead import DRAFT_VOCAB, VOCAB, Checkpoint, make_checkpoint

from specfit.models import ModelFileError

Damage = Callable[[Checkpoint], object]


def without(name: str) -> Damage:
    return lambda checkpoint: checkpoint.tensors.pop(name)


def replaced(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    def damage(checkpoint: Checkpoint) -> None:
        checkpoint.tensors[name] = change(checkpoint.tensors[name]).contiguous()

    return damage


def configured(**values: Any) -> Damage:
    return lambda checkpoint: checkpoint.config.update(values)


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[3] = math.nan
    return tensor


DAMAGES: dict[str, tuple[Damage, str]] = {
    "missing tensor": (without("fc.weight"), "fc.weight is missing"),
    "missing q": (without("midlayer.self_attn.q_proj.weight"), "q_proj.weight is missing"),
    "missing gate": (without("midlayer.mlp.gate_proj.weight"), "gate_proj.weight is missing"),
    "wrong shape": (
        replaced("midlayer.self_attn.o_proj.weight", lambda t: t.T),
        r"o_proj.weight has shape \[32, 24\] instead of \[24, 32\]",
    ),
    "one feature instead of three": (replaced("fc.weight", lambda t: t[:, :48]), "fc.weight has"),
    "not a number": (replaced("lm_head.weight", with_nan), "lm_head.weight has values"),
    "whole numbers": (replaced("norm.weight", lambda t: t.to(torch.int32)), "stored as"),
    "unknown tensor": (
        lambda checkpoint: checkpoint.tensors.update({"midlayer.self_attn.sinks": torch.ones(8)}),
        "sinks that its config.json does not ask for, and that EAGLE-3 heads do not have",
    ),
    "norms that the config does not ask for": (
        lambda checkpoint: checkpoint.tensors.update({"input_norm.weight": torch.ones(72)}),
        "input_norm.weight that its config.json does not ask for",
    ),
    "norms that are missing": (configured(norm_before_fc=True), "input_norm.weight is missing"),
    "a norm for two taps": (
        lambda checkpoint: (
            checkpoint.config.update(fc_norm=True),
            checkpoint.tensors.update({f"fc_norm.{tap}.weight": torch.ones(24) for tap in (0, 1)}),
        ),
        r"fc_norm\.2\.weight is missing",
    ),
    "both norms before fc": (configured(norm_before_fc=True, fc_norm=True), "one of them"),
    "a bias for queries only": (
        lambda checkpoint: checkpoint.tensors.update(
            {"midlayer.self_attn.q_proj.bias": torch.ones(32)}
        ),
        "k_proj.bias is missing",
    ),
    "a bias of another size": (
        lambda checkpoint: checkpoint.tensors.update(
            {"midlayer.mlp.down_proj.bias": torch.ones(23)}
        ),
        r"down_proj.bias has shape \[23\] instead of \[24\]",
    ),
    "queries normed and keys not": (
        lambda checkpoint: checkpoint.tensors.update(
            {"midlayer.self_attn.q_norm.weight": torch.ones(8)}
        ),
        "k_norm.weight is missing",
    ),
    "the same layer twice": (
        lambda checkpoint: checkpoint.tensors.update(
            {"layers.0.hidden_norm.weight": torch.ones(24)}
        ),
        "hidden_norm.weight twice",
    ),
    "a second layer": (
        lambda checkpoint: checkpoint.tensors.update(
            {"layers.1.hidden_norm.weight": torch.ones(24)}
        ),
        "more than one layer",
    ),
    "latent attention": (
        lambda checkpoint: checkpoint.tensors.update(
            {"midlayer.self_attn.q_a_proj.weight": torch.ones(24)}
        ),
        "latent attention",
    ),
    "experts": (
        lambda checkpoint: checkpoint.tensors.update(
            {"midlayer.mlp.experts.0.gate_proj.weight": torch.ones(24)}
        ),
        "experts of its own",
    ),
    "EAGLE-2": (
        lambda checkpoint: (
            checkpoint.tensors.pop("midlayer.hidden_norm.weight"),
            checkpoint.tensors.update({"fc.weight": torch.ones(24, 48)}),
        ),
        "EAGLE-1 or EAGLE-2",
    ),
    "embeddings of another vocabulary": (
        lambda checkpoint: checkpoint.tensors.update({"embed_tokens.weight": torch.ones(61, 24)}),
        r"embed_tokens.weight has shape \[61, 24\] instead of \[60, 24\]",
    ),
    "infinite embeddings": (
        lambda checkpoint: checkpoint.tensors.update(
            {"embed_tokens.weight": torch.full((60, 24), math.inf)}
        ),
        "embed_tokens.weight has values",
    ),
    "weights that overflow": (
        replaced("midlayer.self_attn.o_proj.weight", lambda t: t * 0 + 3e38),
        "too large",
    ),
    "norms that overflow": (replaced("norm.weight", lambda t: t * 1e38), "too large"),
    "8 bits": (replaced("fc.weight", lambda t: t.to(torch.float8_e4m3fn)), "F8_E4M3"),
    "complex numbers": (replaced("fc.weight", lambda t: t.to(torch.complex64)), "C64"),
    "one number": (replaced("fc.weight", lambda t: t[0, 0]), r"fc.weight has shape \[\]"),
    "no rows": (replaced("lm_head.weight", lambda t: t[:0]), r"lm_head.weight has shape \[0, 24\]"),
    "no columns, and a billion rows": (
        replaced("lm_head.weight", lambda t: torch.zeros(10**9, 0)),
        r"lm_head.weight has shape \[1000000000, 0\]",
    ),
    "no units": (
        replaced("midlayer.mlp.gate_proj.weight", lambda t: t[:0]),
        r"gate_proj.weight has shape \[0, 24\]",
    ),
    "a flat matrix": (
        replaced("midlayer.self_attn.k_proj.weight", lambda t: t.ravel()),
        "k_proj.weight has shape",
    ),
    "d2t in floating point": (replaced("d2t", lambda t: t.float()), "d2t must hold"),
    "d2t as truth": (replaced("d2t", lambda t: t.bool()), "d2t must hold"),
    "d2t beyond 64 bits": (replaced("d2t", lambda t: t + 2**63 - 20), "made for another model"),
    "t2d in two dimensions": (replaced("t2d", lambda t: t.view(6, 10)), "t2d must say"),
    "t2d in floating point": (replaced("t2d", lambda t: t.float()), "t2d must say"),
    "draft ids beyond the target": (
        replaced("d2t", lambda t: t + VOCAB),
        "drafts from a vocabulary of .* tokens, its target has 60",
    ),
    "d2t is not an offset": (
        replaced("d2t", lambda t: (t + torch.arange(DRAFT_VOCAB)).clamp(max=20)),
        "d2t and t2d do not agree",
    ),
    "d2t too short": (replaced("d2t", lambda t: t[:-1]), "d2t must hold"),
    "another vocabulary": (
        lambda checkpoint: (checkpoint.tensors.pop("t2d"), checkpoint.config.update(vocab_size=61)),
        "vocabulary of 61 tokens, its target has 60",
    ),
    "tap beyond the target": (
        configured(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 4, 7]}),
        r"inputs of layers \(2, 5, 8\), but its target has 8 layers",
    ),
    "two taps": (configured(eagle_aux_hidden_state_layer_ids=[1, 4]), "three layers"),
    "a negative tap": (
        configured(eagle_aux_hidden_state_layer_ids=[-1, 4, 7]),
        r"inputs of layers \(-1, 4, 7\)",
    ),
    "taps that are no numbers": (
        configured(eagle_aux_hidden_state_layer_ids=["1", 4, True]),
        "three layers",
    ),
    "the last layer only": (
        configured(eagle_config={"use_aux_hidden_state": False}),
        "last layer only",
    ),
    "unknown rope": (configured(rope_scaling={"rope_type": "longrope"}), "'longrope'"),
    "rope without factor": (configured(rope_scaling={"rope_type": "yarn"}), "factor .* is missing"),
    "rope without bounds": (
        configured(rope_scaling={"rope_type": "linear", "factor": 1e-310}),
        "RoPE that heads cannot have",
    ),
    "rope of no size": (configured(partial_rotary_factor=0.1), "RoPE that heads cannot have"),
    "rope of more than a head": (configured(partial_rotary_factor=3), "RoPE that heads"),
    "rope base not a number": (configured(rope_theta=math.nan), "rope_theta .* but is nan"),
    "rope base without end": (configured(rope_theta=math.inf), "rope_theta .* but is inf"),
    "rope base as text": (configured(rope_theta="1e6"), "rope_theta .* but is '1e6'"),
    "yarn with base 1": (
        configured(rope_theta=1, rope_scaling={"rope_type": "yarn", "factor": 4}),
        "RoPE that heads cannot have",
    ),
    "a window of nothing": (
        configured(layer_types=["sliding_attention"], sliding_window=0),
        "sliding_window",
    ),
    "linear attention": (configured(layer_types=["linear_attention"]), "'linear_attention'"),
    "quantised": (configured(quantization_config={"quant_method": "fp8"}), "quantised"),
    "scaled logits": (configured(logit_scale=0.5), "logit_scale"),
    "a trillion heads": (configured(num_attention_heads=10**12), "num_attention_heads .* absurd"),
    "a number of 4000 digits": (configured(num_attention_heads=10**4000), "absurd size"),
    "as many heads as rows": (configured(num_attention_heads=32), "32 heads cannot share"),
    "half a head": (configured(num_attention_heads=2.5), "num_attention_heads .* 2.5"),
    "more groups than heads": (configured(num_key_value_heads=8), "8 groups cannot share"),
    "groups that the weights do not have": (configured(num_key_value_heads=4), "k_proj.weight has"),
    "eps not a number": (configured(rms_norm_eps=math.nan), "rms_norm_eps"),
    "eps as a list": (configured(rms_norm_eps=[1]), "rms_norm_eps .* a list"),
    "vocabulary as text": (configured(vocab_size="many"), "vocab_size .* 'many'"),
    "layers as a list": (configured(num_hidden_layers=[1] * 100), "layers; only"),
    "two layers": (configured(num_hidden_layers=2), "2 layers"),
    "another activation": (configured(hidden_act="gelu"), "gelu"),
    "heads that do not divide": (configured(num_attention_heads=3), "3 heads"),
    "no head count": (configured(num_attention_heads=None), "num_attention_heads"),
    "negative eps": (configured(rms_norm_eps=-1), "rms_norm_eps"),
    "speculators without its layer": (
        configured(speculators_model_type="eagle3"),
        "lacks its transformer_layer_config",
    ),
    "another kind of speculator": (configured(speculators_model_type="dflash"), "'dflash', not"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path, what: str) -> None:
    checkpoint = make_checkpoint()
    damage, reason = DAMAGES[what]
    damage(checkpoint)
    with pytest.raises(ModelFileError, match=reason) as refusal:
        checkpoint.load(tmp_path)
    assert str(tmp_path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ({"hidden_size": 32}, "hidden size 24, its target has 32"),
        ({"vocab_size": 50}, "vocabulary of 60 tokens, its target has 50"),
        ({"n_layers": 2}, "its target has 2 layers"),
    ],
)
def test_a_head_of_another_model_is_refused(
    tmp_path: Path, target: dict[str, int], reason: str
) -> None:
    with pytest.raises(ModelFileError, match=reason):
        make_checkpoint().load(tmp_path, **target)


def test_a_config_of_another_head_is_refused(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    checkpoint.config |= {"hidden_size": 25, "target_hidden_size": 24}
    with pytest.raises(ModelFileError, match=r"for hidden size 24, config\.json 25"):
        checkpoint.load(tmp_path, hidden_size=24)


def test_a_narrower_head_without_embeddings_is_refused(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    checkpoint.config["target_hidden_size"] = 32
    checkpoint.tensors["fc.weight"] = torch.ones(24, 96)
    with pytest.raises(ModelFileError, match="hidden size 24, its target 32, and it brings no"):
        checkpoint.load(tmp_path, hidden_size=32)
