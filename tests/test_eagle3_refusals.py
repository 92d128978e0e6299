"""A checkpoint that is damaged, of another layout or of another model is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from randomhead import DRAFT_VOCAB, LAYERS, VOCAB, Checkpoint, make_checkpoint

from specfit.models import ModelFileError
from specfit.models.eagle3 import Eagle3Head, TargetShape
from specfit.models.embeddings import TokenEmbeddings

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
        lambda checkpoint: checkpoint.tensors.update(
            {"midlayer.self_attn.q_norm.weight": torch.ones(8)}
        ),
        "q_norm.weight that EAGLE-3 heads do not have",
    ),
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
        configured(eagle_aux_hidden_state_layer_ids=[1, 4, 7]),
        r"inputs of layers \(2, 5, 8\), but its target has 8 layers",
    ),
    "two taps": (configured(eagle_aux_hidden_state_layer_ids=[1, 4]), "three layers"),
    "scaled rope": (configured(rope_scaling={"rope_type": "yarn", "factor": 4}), "'yarn'"),
    "norm before residual": (configured(norm_before_residual=True), "norm_before_residual"),
    "two layers": (configured(num_hidden_layers=2), "2 layers"),
    "another activation": (configured(hidden_act="gelu"), "gelu"),
    "heads that do not divide": (configured(num_attention_heads=3), "3 heads"),
    "no head count": (configured(num_attention_heads=None), "num_attention_heads"),
    "negative eps": (configured(rms_norm_eps=-1), "rms_norm_eps"),
    "speculators layout": (configured(speculators_model_type="eagle3"), "another layout"),
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


def load_path(path: Path) -> Eagle3Head:
    return Eagle3Head.load(
        path,
        embeddings=TokenEmbeddings.of_table(torch.zeros(VOCAB, 24)),
        target=TargetShape(24, VOCAB, LAYERS),
    )


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = make_checkpoint().save(tmp_path / "head")
    weights, config = folder / "model.safetensors", folder / "config.json"
    assert load_path(weights).taps == (2, 4, 5)

    with pytest.raises(ModelFileError, match="There is no draft head"):
        load_path(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match=r"no \.safetensors file"):
        load_path(tmp_path / "empty")

    good = weights.read_bytes()
    for damaged in (b"just text", b"", good[:100], good[:-50]):
        weights.write_bytes(damaged)
        with pytest.raises(ModelFileError, match="not a readable safetensors file"):
            load_path(folder)
    weights.write_bytes(good)

    for damaged, reason in (
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[]", "object"),
    ):
        config.write_bytes(damaged)
        with pytest.raises(ModelFileError, match=reason):
            load_path(folder)
    config.unlink()
    with pytest.raises(ModelFileError, match=r"lacks its config\.json"):
        load_path(folder)
