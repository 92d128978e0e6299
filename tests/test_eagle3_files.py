"""Files that are no checkpoint, or a hostile one, are refused in a sentence and run nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from randomhead import LAYERS, VOCAB, make_checkpoint

from specfit.models import ModelFileError
from specfit.models.eagle3 import Eagle3Head, TargetShape
from specfit.models.embeddings import TokenEmbeddings


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
