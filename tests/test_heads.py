"""Where a draft head comes from: converted files, foreign and damaged ones, and PyTorch's part."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from headpairs import target_of
from publishedheads import VOCAB, specforge

from specfit.app import batch, chat, scale_model
from specfit.app.convert_head import main
from specfit.app.library import HeadEntry, head_problem, scan
from specfit.backend import Engine, LoadOptions, Sampling, SpecfitError, heads
from specfit.backend.head_file import read_head_file
from specfit.backend.runtime import Runtime
from specfit.models import ModelFileError, bundled_head, bundled_model
from specfit.models.convert_head import convert_head
from specfit.models.gguf_info import GgufInfo, read_gguf_info
from specfit.models.stretch import Stretch, stretched

ALONE = {"threads": 1, "on_gpu": False}
Command = Callable[..., Any]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(
        "specfit.backend.cache.platformdirs.user_cache_path", lambda _name: tmp_path / "cache"
    )
    return tmp_path / "cache" / "heads"


@pytest.fixture
def target(tmp_path: Path) -> GgufInfo:
    return target_of(specforge(), tmp_path / "target.gguf")


@pytest.fixture
def file(tmp_path: Path, target: GgufInfo) -> Path:
    """A converted head."""
    convert_head(specforge().save(tmp_path / "head"), target, tmp_path / "head.gguf", "F16")
    return tmp_path / "head.gguf"


def test_a_checkpoint_is_converted_once_and_anew_when_it_or_the_file_changed(
    cache: Path, tmp_path: Path, target: GgufInfo
) -> None:
    folder = specforge().save(tmp_path / "head")
    first = heads.converted(folder, target)
    written = first.path.stat().st_mtime_ns
    assert list(cache.iterdir()) == [first.path]
    assert heads.converted(folder, target).path.stat().st_mtime_ns == written
    first.path.write_bytes(first.path.read_bytes()[:3000])
    assert heads.converted(folder, target).taps == first.taps
    other = specforge()
    other.tensors["norm.weight"] += 1
    assert heads.converted(other.save(folder), target).path != first.path


def test_a_copy_of_a_checkpoint_is_not_converted_again(
    cache: Path, tmp_path: Path, target: GgufInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = specforge().save(tmp_path / "head")
    first = heads.converted(folder, target)
    shutil.copytree(folder, tmp_path / "copied")
    moved = target.path.rename(tmp_path / "moved.gguf")
    assert heads.converted(tmp_path / "copied", read_gguf_info(moved)).path == first.path
    assert list(cache.iterdir()) == [first.path]
    with monkeypatch.context() as patch:  # what was read once is known
        patch.setattr("hashlib.file_digest", None)
        assert heads.converted(folder, read_gguf_info(moved)).path == first.path


def test_a_home_that_cannot_be_written_is_no_obstacle(
    cache: Path, tmp_path: Path, target: GgufInfo
) -> None:
    cache.parent.write_text("no folder")
    head = heads.converted(specforge().save(tmp_path / "head"), target)
    assert head.path.exists() and not head.path.is_relative_to(tmp_path)


def test_a_full_disk_is_no_obstacle(
    target: GgufInfo, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, usage = specforge().save(tmp_path / "head"), shutil.disk_usage
    monkeypatch.setattr(
        shutil,
        "disk_usage",
        lambda at: usage("/")._replace(free=10**6) if at == cache else usage(at),
    )
    file = heads.converted(folder, target)
    assert file.path.exists() and not file.path.is_relative_to(cache)
    assert not list(cache.iterdir())


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path, command: Command) -> None:
    os.mkfifo(tmp_path / "pipe")
    for write, *what in (
        (main, bundled_head(), "-m", bundled_model()),
        (scale_model.main, "--layers", 9),
    ):
        ended = command(write, *what, "-o", tmp_path / "pipe")
        assert ended.code == 2
        assert ended.err.endswith(
            "pipe is no file, and would be replaced by one; give another name\n"
        )


def test_heads_and_models_are_not_taken_for_each_other(tmp_path: Path, command: Command) -> None:
    head = tmp_path / "head.gguf"
    assert command(main, bundled_head(), "-m", bundled_model(), "-o", head).code == 0
    for ended, said in (
        (command(chat.main, "-m", head, "-p", "hi"), "is a draft head: give it with -md"),
        (command(main, head, "-m", bundled_model(), "-o", tmp_path / "o"), "GGUF file already"),
        (command(main, bundled_head(), "-m", head, "-o", tmp_path / "o"), "not the model of one"),
    ):
        assert (ended.code, said in ended.err) == (2, True), ended.err
    source, out = tmp_path / "in", tmp_path / "o"
    source.write_text("hi\n")
    for given in (
        (chat.main, "-p", "hi"),
        (batch.main, source, "-o", out),
        (main, bundled_head(), "-o", out),
    ):
        ended = command(*given, "-m", bundled_head())
        assert "eagle3 is the folder of a draft head, which -md takes; give" in ended.err
        assert ended.code == 2


def test_what_llama_cannot_compute_is_left_to_pytorch(
    cache: Path, tmp_path: Path, target: GgufInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = specforge()
    published.config["norm_output"] = True
    published.tensors["embed_tokens.weight"] = published.embeddings
    folder = published.save(tmp_path / "head")
    source = heads.find_head(folder, target, Runtime(), **ALONE)
    head = source.start(None)  # type: ignore[arg-type]
    features, tokens = published.pairs(3)
    head.commit(features.numpy(), tokens.numpy())
    assert (source.taps, head.propose(4)[0].shape) == (head.taps, (4,))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "specfit.models.eagle3", raising=False)
    with pytest.raises(
        SpecfitError, match=r"hands on normalised states, .*PyTorch can .*pip install"
    ):
        heads.find_head(folder, target, Runtime(), **ALONE)


def rewritten(file: Path, **changed: Any) -> Path:
    """The head's file with other values, by the last part of their keys, or without (None); and
    tensors, by their names with "_" for ".", changed by a function."""
    reader, out = gguf.GGUFReader(file), file.with_name("changed.gguf")
    writer = gguf.GGUFWriter(out, changed.pop("architecture", "eagle3"))
    for field in reader.fields.values():
        name = field.name.rpartition(".")[2]
        if field.name.startswith("GGUF.") or name == "architecture":
            continue
        value = changed.get(name, field.contents())
        if value is not None:
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, value, field.types[0], sub_type=element)
    for tensor in reader.tensors:
        change = changed.get(tensor.name.replace(".", "_"), np.array)
        if change is not None:
            writer.add_tensor(tensor.name, change(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a model": ({"architecture": "qwen3"}, "no EAGLE-3 head: its architecture is qwen3"),
    "two layers": ({"block_count": 2}, "one layer"),
    "no layers named": ({"target_layers": None}, "which three layers"),
    "four layers": ({"target_layers": [1, 2, 3, 4]}, "which three layers"),
    "layers beyond": ({"target_layers": [1, 2, 40]}, r"layers \(1, 2, 40\), but its target has"),
    "another width": ({"target_hidden_size": 2048}, "for hidden size 2048, its target has 24"),
    "another vocabulary": ({"vocab_size": 61}, "a vocabulary of 61 tokens, its target has 60"),
    "no heads": ({"head_count": None}, "attention.head_count is None"),
    "odd heads": ({"head_count_kv": 3}, "attention heads make no sense"),
    "ids beyond": ({"d2t": lambda t: t + VOCAB}, "d2t does not fit the vocabulary"),
    "ids below": ({"d2t": lambda t: t - VOCAB}, "d2t does not fit the vocabulary"),
    "ids twice": ({"d2t": lambda t: t * 0}, "d2t does not fit the vocabulary"),
    "ids of floats": ({"d2t": lambda t: t.astype(np.float32)}, "d2t holds no token ids"),
    "no output": ({"output_weight": None}, "no output matrix"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_file_that_is_damaged_or_foreign_is_refused_in_a_sentence(
    file: Path, target: GgufInfo, what: str
) -> None:
    changed, says = BAD[what]
    path = rewritten(file, **changed)
    with pytest.raises(ModelFileError, match=says) as refusal:
        heads.find_head(path, target, Runtime(), **ALONE)
    assert str(path) in str(refusal.value) and str(refusal.value).endswith(".")


def test_a_file_with_a_tensor_of_another_shape_is_refused_by_llama(
    file: Path, bundled_engine: Engine, tmp_path: Path
) -> None:
    info = bundled_engine.model.info
    convert_head(bundled_head(), info, file, "F16")
    path = rewritten(file, **{"blk_0_ffn_up_weight": lambda t: t[:64]})
    source = heads.find_head(path, info, Runtime(), **ALONE)
    with pytest.raises(SpecfitError, match=r"cannot load the draft head .*ffn_up"):
        source.start(bundled_engine.context)


def test_a_file_drafts_as_the_checkpoint_that_it_was_made_of(tmp_path: Path) -> None:
    out = tmp_path / "head.gguf"
    convert_head(bundled_head(), read_gguf_info(bundled_model()), out, "F16")
    answers, accepted = [], []
    for path in (bundled_head(), out):
        options = LoadOptions(model=bundled_model(), head=path, ctx=512, threads=1)
        with Engine.load(options) as engine:
            said = engine.generate(
                [{"role": "user", "content": "Why is the sky blue?"}],
                max_tokens=40,
                sampling=Sampling(temp=0.0),
                spec=engine_spec("eagle3:31"),
            )
            answers.append("".join(said))
            accepted.append(said.report.means.mean_acceptance_length)
    assert answers[0] == answers[1]
    assert accepted[0] == accepted[1] > 1.3


def engine_spec(text: str) -> Any:
    from specfit.backend import Spec

    return Spec.parse(text)


def test_positions_are_stretched_as_the_references_are(file: Path, target: GgufInfo) -> None:
    head = read_head_file(file, target)
    assert head.base == pytest.approx(10_000, rel=1e-5)
    by = Stretch(factor=4.0, base=2.0, extrapolated=0.0, trained=64, magnitude=1.3)
    params = type("Params", (), {})()
    head.set_rope(params, by)
    rope = specforge_rope()
    slow = params.rope_freq_scale * params.rope_freq_base ** -(np.arange(4) / 4)
    np.testing.assert_allclose(slow, stretched(rope, by).frequencies, rtol=1e-4)
    assert params.yarn_attn_factor == 1.3


def specforge_rope() -> Any:
    from specfit.models.rope import Rope

    return Rope(tuple(10_000.0 ** -(np.arange(4) / 4)))


def test_the_picker_knows_heads_from_models(file: Path, tmp_path: Path) -> None:
    found = {entry.path.name: entry for entry in scan([tmp_path])}
    assert isinstance(found["head.gguf"], HeadEntry)
    assert isinstance(found["head"], HeadEntry)
    assert not isinstance(found.get("target.gguf"), HeadEntry)
    entry = next(one for one in scan([bundled_model()]))
    assert "its target has" in head_problem(entry, HeadEntry(file))  # type: ignore[arg-type]


def test_the_command_converts_and_says_why_not(
    command: Command, tmp_path: Path, target: GgufInfo
) -> None:
    head, out = specforge().save(tmp_path / "head"), tmp_path / "out.gguf"
    made = command(main, head, "-m", target.path, "-o", out, "--type", "q8_0")
    assert (made.code, made.err) == (0, "")
    assert read_head_file(out, target).n_vocab == VOCAB
    out.write_text("GGUF, older")
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    for arguments, says in (
        ((tmp_path, "-m", target.path, "-o", out), "holds no .safetensors"),
        ((head, "-m", tmp_path / "none", "-o", out), "There is no model file"),
        ((head, "-m", bundled_model(), "-o", out), "made for another model"),
        ((head, "-m", target.path, "-o", tmp_path), "is a folder"),
        ((head, "-m", target.path, "-o", notes), "holds something else already"),
        ((head, "-m", target.path, "-o", target.path), "is the model itself"),
        ((head, "-m", target.path, "-o", tmp_path / "no" / "out"), "No such file"),
    ):
        refused = command(main, *arguments)
        assert refused.code == 2 and says in refused.err and refused.err.count("\n") == 1
    assert (out.read_text(), notes.read_text()) == ("GGUF, older", "mine")
    assert not list(tmp_path.glob("*.part"))


def test_everything_but_its_extra_works_without_pytorch(tmp_path: Path) -> None:
    """In a process that cannot import it: an answer with drafts, and a .bin head converted."""
    published = specforge()
    target = target_of(published, tmp_path / "target.gguf")
    published.save(tmp_path / "head", lambda tensors, folder: torch.save(tensors, folder / BIN))
    program = f"""
import sys
sys.modules["torch"] = None
from pathlib import Path
import specfit.app.tui, specfit.app.batch, specfit.app.bench, specfit.app.scale_model
from specfit.app.report_visit import _gpu_name
from specfit.backend import Engine, LoadOptions, Spec
from specfit.models.convert_head import convert_head
from specfit.models.gguf_info import read_gguf_info
_gpu_name()
convert_head(Path({str(tmp_path / "head")!r}), read_gguf_info(Path({str(target.path)!r})),
             Path({str(tmp_path / "out.gguf")!r}))
with Engine.load(LoadOptions(ctx=256, threads=1)) as engine:
    said = engine.generate([{{"role": "user", "content": "Hi"}}], max_tokens=12,
                           spec=Spec.parse("eagle3:8"))
    print(len(list(said)), said.report.means.rows_per_cycle > 2)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("True\n")
    assert (tmp_path / "out.gguf").exists()


BIN = "pytorch_model.bin"
