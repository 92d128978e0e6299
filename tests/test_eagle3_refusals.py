"""A checkpoint that is damaged, of another layout or of another model is refused by name."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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
    "8 bits": (replaced("fc.weight", lambda t: t.to(torch.float8_e4m3fn)), "float8_e4m3fn"),
    "complex numbers": (replaced("fc.weight", lambda t: t.to(torch.complex64)), "complex64"),
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
    with pytest.raises(ModelFileError, match=r"no \.safetensors or pytorch_model\.bin file"):
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
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' + b"9" * 100_000 + b"}", "not valid JSON"),
        (b" " * (9 << 20), "too large"),
    ):
        config.write_bytes(damaged)
        with pytest.raises(ModelFileError, match=reason):
            load_path(folder)
    config.unlink()
    with pytest.raises(ModelFileError, match=r"lacks its config\.json"):
        load_path(folder)
    config.mkdir()
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_path(folder)


def test_weights_that_are_no_file_are_refused_without_waiting(tmp_path: Path) -> None:
    folder = make_checkpoint().save(tmp_path / "head")
    weights = folder / "model.safetensors"
    weights.unlink()
    os.mkfifo(weights)
    with pytest.raises(ModelFileError, match="not a file"):
        load_path(folder)


INDEXES: dict[str, tuple[Any, str]] = {
    "no map": ({"metadata": {}}, "does not say"),
    "a list": ({"weight_map": ["a"]}, "does not say"),
    "a part that is missing": (
        {"weight_map": {"fc.weight": "model-00003-of-00003.safetensors"}},
        r"lacks its part model-00003-of-00003\.safetensors",
    ),
    "a part elsewhere": (
        {"weight_map": {"fc.weight": "../x/model-00001-of-00002.safetensors"}},
        "no part of a checkpoint",
    ),
    "a part that is no weights": ({"weight_map": {"fc.weight": "config.json"}}, "no part"),
    "a part without a name": ({"weight_map": {"fc.weight": None}}, "no part"),
}


@pytest.mark.parametrize("what", INDEXES)
def test_an_unsound_index_is_refused(tmp_path: Path, what: str) -> None:
    folder = make_checkpoint().save(tmp_path / "head")
    content, reason = INDEXES[what]
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    with pytest.raises(ModelFileError, match=reason):
        load_path(folder)


class Runs:
    """A pickle of this runs a command when it is loaded."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def zipped(program: bytes, kind: int = zipfile.ZIP_STORED) -> Callable[[Path], object]:
    def write(file: Path) -> None:
        with zipfile.ZipFile(file, "w", kind) as archive:
            archive.writestr("archive/data.pkl", program)
            archive.writestr("archive/version", "3")

    return write


def saved(content: object, **options: Any) -> Callable[[Path], object]:
    return lambda file: torch.save(content, file, **options)


PICKLES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a command": (saved({"fc.weight": Runs(os.system, "touch ran")}), "would run 'posix.system'"),
    "evaluated text": (saved({"a": Runs(eval, "open('ran', 'w')")}), "would run .*eval"),
    "much memory": (saved({"a": Runs(bytearray, 10**12)}), "would run .*bytearray"),
    "a whole module": (saved(torch.nn.Linear(2, 2)), "would run .*Linear"),
    "protocol 4": (saved({"a": Runs(os.system, "touch ran")}, pickle_protocol=4), "would run"),
    "an old file": (
        saved({"a": torch.ones(2)}, _use_new_zipfile_serialization=False),
        r"PyTorch 1\.5 or older",
    ),
    "a bare pickle": (lambda file: file.write_bytes(pickle.dumps({})), "not a readable PyTorch"),
    "text": (lambda file: file.write_text("just text"), "not a readable PyTorch file"),
    "nothing": (lambda file: file.write_bytes(b""), "not a readable PyTorch file"),
    "another zip file": (
        lambda file: zipfile.ZipFile(file, "w").close(),
        "not one as PyTorch writes them",
    ),
    "a bomb": (
        zipped(pickle.dumps({"a": "b" * (50 << 20)}), zipfile.ZIP_DEFLATED),
        "not one as PyTorch writes them",
    ),
    "half a pickle": (zipped(pickle.dumps({"a": [1, 2]}, 2)[:-4]), "not a readable PyTorch file"),
    "no pickle": (zipped(b"\x00\x01"), "not a readable PyTorch file"),
    "a list": (saved([torch.ones(2)]), "no tensors by name"),
    "a number": (saved({"epoch": 3}), "'epoch', which is no tensor"),
    "a tensor without name": (saved({7: torch.ones(2)}), "'7', which is no tensor"),
    "a large view of a small tensor": (
        saved({"lm_head.weight": torch.ones(1).expand(10**9, 10**3)}),
        "larger than what is stored",
    ),
}


@pytest.mark.parametrize("what", PICKLES)
def test_an_unsound_pickle_is_refused(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_checkpoint().save(tmp_path / "head")
    (folder / "model.safetensors").unlink()
    monkeypatch.chdir(tmp_path)
    write, reason = PICKLES[what]
    write(folder / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match=reason) as refusal:
        load_path(folder)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500
    assert not (tmp_path / "ran").exists()


def test_a_pickle_cut_or_changed_anywhere_is_refused_or_read(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    folder = checkpoint.save(tmp_path / "head")
    (folder / "model.safetensors").unlink()
    file = folder / "pytorch_model.bin"
    torch.save(checkpoint.tensors, file)
    good, random = file.read_bytes(), np.random.default_rng(0)
    for _ in range(40):
        file.write_bytes(good[: int(random.integers(len(good)))])
        with pytest.raises(ModelFileError):
            load_path(folder)
    start = good.index(b"data.pkl")
    for _ in range(150):
        damaged = bytearray(good)
        damaged[int(random.integers(start, start + 2500))] = int(random.integers(256))
        file.write_bytes(bytes(damaged))
        with contextlib.suppress(ModelFileError):
            load_path(folder)


def test_other_files_of_a_folder_are_left_alone(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    folder = checkpoint.save(tmp_path / "head")
    torch.save({"a": Runs(os.system, "false")}, folder / "training_args.bin")
    torch.save({"a": 1}, folder / "pytorch_model.bin")
    assert load_path(folder).taps == (2, 4, 5)
    (folder / "model.safetensors").unlink()
    torch.save(checkpoint.tensors, folder / "pytorch_model.bin")
    assert load_path(folder).taps == load_path(folder / "pytorch_model.bin").taps == (2, 4, 5)


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
