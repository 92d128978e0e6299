"""Finding models and heads where programs keep them, and judging whether they fit."""

from __future__ import annotations

import random
import shutil
from itertools import islice
from pathlib import Path

import gguf
import numpy as np
import pytest

from specfit.app.library import (
    HeadEntry,
    Memory,
    ModelEntry,
    describe,
    find,
    fit,
    freed,
    head_problem,
    places,
    scan,
)
from specfit.models import bundled_head, bundled_model

GB = 10**9


def write_model(
    path: Path, architecture: str = "qwen3moe", *, tensors: bool = True, split: str = "", **numbers
) -> Path:
    """A GGUF file with little in it. numbers: the architecture's own keys. split: "NO/COUNT"."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"Name of {path.stem}")
    for key, value in numbers.items():
        writer.add_uint32(f"{architecture}.{key.replace('__', '.')}", value)
    if split:
        number, count = map(int, split.split("/"))
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
    if tensors:
        writer.add_tensor(f"token_embd{split[:1]}.weight", np.zeros((8, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


SHAPE = {
    "block_count": 4,
    "embedding_length": 32,
    "context_length": 40960,
    "expert_count": 128,
    "expert_used_count": 8,
    "attention__head_count": 8,
    "attention__head_count_kv": 2,
    "attention__key_length": 16,
    "attention__value_length": 16,
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home, in which all programs have their usual places."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    return home


def found_names(*roots: Path) -> list[str]:
    return [entry.label for entry in scan(roots)]


def in_hugging_face_cache(hub: Path, repo: str, name: str, revision: str = "abc") -> Path:
    """A model as the cache has it: a link to a blob without a name."""
    blob = write_model(hub / repo / "blobs" / name.encode().hex(), **SHAPE)
    snapshot = hub / repo / "snapshots" / revision / name
    snapshot.parent.mkdir(parents=True, exist_ok=True)
    snapshot.symlink_to(blob)
    return snapshot


def test_every_programs_place_is_looked_in(home, tmp_path):
    write_model(tmp_path / "mine" / "own.gguf", **SHAPE)
    in_hugging_face_cache(home / ".cache/huggingface/hub", "models--a--b", "hub.gguf")
    write_model(home / ".lmstudio/models/x/y/studio.gguf", **SHAPE)
    write_model(home / ".cache/lm-studio/models/x/y/old-studio.gguf", **SHAPE)
    write_model(home / ".cache/llama.cpp/cpp.gguf", **SHAPE)
    write_model(home / "Library/Caches/llama.cpp/mac.gguf", **SHAPE)
    assert found_names(*places([tmp_path / "mine"])) == [
        *("own", "hub", "studio", "old-studio", "cpp", "mac")
    ]


def test_the_programs_variables_are_respected(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    assert tmp_path / "hf/hub" in places()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    assert {tmp_path / "hub", tmp_path / "llama"} <= set(places())


def test_an_entry_says_what_the_file_says(tmp_path):
    entry = describe(write_model(tmp_path / "Model-Q4_K_M.gguf", **SHAPE))
    assert entry is not None
    assert (entry.label, entry.name) == ("Model-Q4_K_M", "Name of Model-Q4_K_M")
    assert (entry.architecture, entry.context_length) == ("qwen3moe", 40960)
    assert (entry.n_experts, entry.n_experts_used, entry.problem) == (128, 8, "")
    # no general.file_type: the type of most of its bytes
    assert entry.quantisation == "F32"
    # 4096 tokens x 4 layers x 2 heads x (16 + 16) x 2 bytes
    assert entry.kv_bytes == 4096 * 4 * 2 * 32 * 2


def test_the_bundled_pair_comes_first_and_once(home):
    entries = list(find([bundled_model().parent]))
    assert isinstance(entries[0], ModelEntry)
    assert entries[0].bundled
    assert entries[0].quantisation == "Q4_0"
    assert [entry.path for entry in entries].count(bundled_model()) == 1
    assert [entry for entry in entries if isinstance(entry, HeadEntry)] == [
        HeadEntry(bundled_head())
    ]


def test_links_make_no_doubles_and_no_circles(tmp_path):
    hub = tmp_path / "hub"
    first = in_hugging_face_cache(hub, "models--a--b", "m.gguf")
    second = hub / "models--a--b/snapshots/def/m.gguf"
    second.parent.mkdir()
    second.symlink_to(first.resolve())
    (hub / "models--a--b/circle").symlink_to(hub)
    (tmp_path / "again").symlink_to(hub)
    assert found_names(hub, tmp_path / "again", hub) == ["m"]


def test_a_split_model_is_one_entry(tmp_path):
    write_model(tmp_path / "big-00001-of-00002.gguf", split="0/2", **SHAPE)
    write_model(tmp_path / "big-00002-of-00002.gguf", split="1/2")
    (entry,) = scan([tmp_path])
    assert isinstance(entry, ModelEntry)
    assert (entry.label, entry.problem) == ("big", "")
    assert entry.bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
    assert list(scan([tmp_path / "big-00002-of-00002.gguf"])) == [entry]


@pytest.mark.parametrize("part", [1, 2])
def test_a_missing_part_is_told_until_it_is_there(tmp_path, part):
    write_model(tmp_path / "big-00001-of-00002.gguf", split="0/2", **SHAPE)
    write_model(tmp_path / "big-00002-of-00002.gguf", split="1/2")
    gone = tmp_path / f"big-0000{part}-of-00002.gguf"
    gone.rename(tmp_path / "away")
    (entry,) = scan([tmp_path])
    assert isinstance(entry, ModelEntry)
    assert gone.name in entry.problem
    (tmp_path / "away").rename(gone)
    (entry,) = scan([tmp_path])
    assert isinstance(entry, ModelEntry)
    assert entry.problem == ""


def test_files_that_are_no_chat_models_are_left_out(tmp_path):
    write_model(tmp_path / "mmproj-x.gguf", "clip")
    write_model(tmp_path / "projector.gguf", "clip", vision__block_count=4)
    write_model(tmp_path / "vocab-only.gguf", tensors=False, **SHAPE)
    write_model(tmp_path / "embedder.gguf", pooling_type=3, **SHAPE)
    write_model(tmp_path / ".hidden.gguf", **SHAPE)
    write_model(tmp_path / ".git" / "a.gguf", **SHAPE)
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    assert found_names(tmp_path) == []


def test_damaged_files_are_listed_with_the_reason(tmp_path):
    whole = write_model(tmp_path / "whole.gguf", **SHAPE).read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-100])
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "page.gguf").write_bytes(b"<html>not found</html>")
    problems = {entry.label: entry.problem for entry in scan([tmp_path])}
    assert problems.pop("whole") == ""
    assert {name: reason.partition(str(tmp_path))[2][:30] for name, reason in problems.items()} == {
        "cut": "/cut.gguf is cut short: 100 of",
        "empty": "/empty.gguf is empty; download",
        "page": "/page.gguf is not a GGUF model",
    }


def test_no_damage_to_a_header_raises(tmp_path):
    whole = write_model(tmp_path / "whole.gguf", **SHAPE).read_bytes()
    rng = random.Random(1)
    for number in range(300):
        content = bytearray(whole)
        for _ in range(rng.choice([1, 2, 8])):
            content[rng.randrange(4, len(content))] = rng.randrange(256)
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(content)
        entry = describe(path)
        if entry is not None:
            assert fit(entry, Memory(GB)).state
        path.unlink()


def test_a_changed_file_is_read_anew(tmp_path):
    path = write_model(tmp_path / "m.gguf", **SHAPE)
    assert describe(path).context_length == 40960
    write_model(path, **(SHAPE | {"context_length": 7, "more": 1}))
    assert describe(path).context_length == 7


@pytest.mark.parametrize("root", ["missing", "x" * 300, "a\0b"])
def test_a_place_that_cannot_be_looked_into_is_passed_over(tmp_path, root):
    write_model(tmp_path / "m.gguf", **SHAPE)
    assert found_names(tmp_path / root, tmp_path) == ["m"]


def test_the_scan_stops_between_files(tmp_path):
    for name in "abcd":
        write_model(tmp_path / f"{name}.gguf", **SHAPE)
    scanning = scan([tmp_path])
    assert [entry.label for entry in islice(scanning, 2)] == ["a", "b"]
    scanning.close()


def test_heads_are_known_by_their_configuration(tmp_path):
    for name, content in {
        "spec-forge": '{"architectures": ["LlamaForCausalLMEagle3"]}',
        "keys": '{"eagle_config": {}}',
        "draft": '{"draft_vocab_size": 32000}',
        "model": '{"architectures": ["Qwen3MoeForCausalLM"]}',
        "damaged": '{"architectures": ["Eagle',
        "list": '["eagle"]',
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
    heads = [entry.path.name for entry in scan([tmp_path])]
    assert heads == ["draft", "keys", "spec-forge"]


def test_a_head_of_the_hugging_face_cache_goes_by_its_repository():
    head = HeadEntry(Path("/hub/models--AngelSlim--Qwen3-a3B_eagle3/snapshots/0a1b"))
    assert head.label == "AngelSlim/Qwen3-a3B_eagle3"


def test_a_head_fits_its_own_model_and_says_why_not_another(tmp_path):
    own, other = describe(bundled_model()), describe(write_model(tmp_path / "m.gguf", **SHAPE))
    assert head_problem(own, HeadEntry(bundled_head())) == ""
    assert "made for another model" in head_problem(other, HeadEntry(bundled_head()))
    strange = describe(write_model(tmp_path / "n.gguf", "mamba", **SHAPE))
    assert "no draft features" in head_problem(strange, HeadEntry(bundled_head()))
    shutil.copy(bundled_head() / "config.json", tmp_path)
    assert "no .safetensors" in head_problem(own, HeadEntry(tmp_path))


def entry_of(n_bytes: float, experts: float = 0, kv: float = 0) -> ModelEntry:
    return ModelEntry(
        Path("m.gguf"), "m", bytes=int(n_bytes), expert_bytes=int(experts), kv_bytes=int(kv)
    )


@pytest.mark.parametrize(
    ("entry", "memory", "state", "why"),
    [
        (entry_of(18.2 * GB, 17 * GB, 0.4 * GB), Memory(12 * GB), "too big", "18.6 GB, 12.0 GB"),
        (entry_of(10 * GB), Memory(12 * GB), "fits", "10.0 GB, 12.0 GB free"),
        (entry_of(11 * GB), Memory(12 * GB), "tight", "11.0 GB, 12.0 GB free"),
        (entry_of(18 * GB, 17 * GB), Memory(24 * GB, 8 * GB), "fits", "18.0 GB, 32.0 GB"),
        (entry_of(18 * GB, 17 * GB), Memory(13 * GB, 8 * GB), "fits", "18.0 GB, 21.0 GB"),
        (entry_of(18 * GB, 17 * GB), Memory(11 * GB, 8 * GB), "tight", "18.0 GB, 19.0 GB"),
        (entry_of(12 * GB), Memory(24 * GB, 8 * GB), "tight", "12.0 GB without experts, 8.0 GB"),
        (entry_of(7.5 * GB), Memory(24 * GB, 8 * GB), "fits", "7.5 GB, 32.0 GB"),
        (entry_of(40 * GB, 36 * GB), Memory(24 * GB, 8 * GB), "too big", "40.0 GB, 32.0 GB"),
    ],
)
def test_the_estimate_weighs_experts_against_host_memory(entry, memory, state, why):
    result = fit(entry, memory)
    assert result.state == state
    assert why in result.why


def test_what_the_loaded_model_holds_of_the_gpu_counts_as_free():
    loaded = entry_of(18 * GB, 17 * GB)
    assert freed(Memory(24 * GB, 3 * GB), loaded) == Memory(24 * GB, 4 * GB)
    assert freed(Memory(24 * GB), loaded) == Memory(24 * GB)
