"""Reading GGUF files: what is read, how fast, and what is said about files that are no good."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from counting import counted

from specfit.models import ModelFileError, bundled_model
from specfit.models.dequantise import main
from specfit.models.embeddings import TokenEmbeddings
from specfit.models.gguf_info import read_gguf_info

Kind = gguf.GGMLQuantizationType


def write_model(
    path: Path,
    *,
    table: np.ndarray | None = None,
    kind: Kind = Kind.F32,
    n_tokens: int = 0,
    split_tensors: int = 0,
) -> Path:
    """A small MoE GGUF that has only what the reader looks at."""
    writer = gguf.GGUFWriter(path, "qwen3moe", split_max_tensors=split_tensors)
    writer.add_name("A test model")
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_expert_count(4)
    writer.add_expert_used_count(2)
    writer.add_array("qwen3moe.layers", [1, 2, 3])
    if n_tokens:
        writer.add_token_list([f"token {i}" for i in range(n_tokens)])
        writer.add_token_types([1] * n_tokens)
        writer.add_token_merges([f"mer {i}" for i in range(n_tokens)])
    table = np.zeros((10, 64), np.float32) if table is None else table
    data = table if kind == Kind.F32 else gguf.quantize(table, kind)
    writer.add_tensor("token_embd.weight", data, raw_dtype=kind)
    for layer in range(2):
        experts = np.ones((4, 32, 64), np.float32)
        writer.add_tensor(f"blk.{layer}.ffn_up_exps.weight", experts)
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as error:
        read_gguf_info(path)
    text = str(error.value)
    assert str(path) in text
    assert "\n" not in text and text.endswith((".", ")"))
    return text


def test_what_a_model_is(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf")
    info = read_gguf_info(path)
    assert (info.name, info.architecture) == ("A test model", "qwen3moe")
    assert (info.n_layers, info.n_embd, info.n_vocab) == (2, 64, 10)
    assert (info.n_experts, info.n_experts_used, info.context_length) == (4, 2, 4096)
    assert info.bytes == path.stat().st_size
    assert info.expert_bytes == 2 * 4 * 32 * 64 * 4
    assert info.metadata["general.architecture"] == "qwen3moe"


def test_headers_agree_with_the_gguf_package() -> None:
    info, reader = read_gguf_info(bundled_model()), gguf.GGUFReader(bundled_model())
    assert len(info.tensors) == len(reader.tensors)
    for ours, theirs in zip(info.tensors, reader.tensors, strict=True):
        assert (ours.name, ours.type, ours.offset, ours.n_bytes) == (
            theirs.name,
            theirs.tensor_type,
            theirs.data_offset,
            theirs.n_bytes,
        )
        assert list(ours.shape) == theirs.shape[::-1].tolist()
    names = {name for name in reader.fields if not name.startswith("GGUF.")}
    assert set(info.metadata) == names


def test_a_large_vocabulary_costs_little(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", n_tokens=152_000)
    with counted() as calls:
        info = read_gguf_info(path)
    assert calls.n < 3 * 152_000  # two for a token, to skip its text
    assert info.n_vocab == 152_000


def test_what_is_no_model_file(tmp_path: Path) -> None:
    assert "There is no model file" in refusal(tmp_path / "nowhere.gguf")
    assert "is a folder" in refusal(tmp_path)
    empty, text = tmp_path / "empty.gguf", tmp_path / "text.gguf"
    empty.touch()
    assert "is empty" in refusal(empty)
    text.write_text("This is a letter, not a model.\n")
    assert "not a GGUF model file" in refusal(text)
    assert "cannot be read" in refusal(text / "model.gguf")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf")
    path.chmod(0)
    if os.geteuid() != 0:
        assert "permission denied" in refusal(path)
        return
    # The superuser may read everything, so an ordinary user has to try.
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    script = (
        "import os, sys; from pathlib import Path; from specfit.models import gguf_info as g\n"
        "os.setuid(65534)\n"
        "try: g.read_gguf_info(Path(sys.argv[1]))\n"
        "except g.ModelFileError as error: print(error)"
    )
    tried = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert "permission denied" in tried.stdout, tried.stderr


def test_a_cut_file_is_noticed_wherever_it_is_cut(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole.gguf", n_tokens=20).read_bytes()
    start_of_data = read_gguf_info(tmp_path / "whole.gguf").tensors[0].offset
    cut = tmp_path / "cut.gguf"
    for length in (4, 7, 23, 24, 100, 500, start_of_data // 2):
        cut.write_bytes(whole[:length])
        assert "cut short" in refusal(cut) and "within its header" in refusal(cut)
    cut.write_bytes(whole[:-1000])
    assert f"1,000 of its {len(whole):,} bytes are missing" in refusal(cut)


def test_a_damaged_header_is_noticed(tmp_path: Path) -> None:
    whole = bytearray(write_model(tmp_path / "whole.gguf").read_bytes())
    damaged = tmp_path / "damaged.gguf"
    for offset, value, reason in (
        (4, 99, "GGUF version 99"),
        (4, 3 << 24, "big-endian"),
        (8, 2**31, "damaged"),  # tensors
        (16, 2**31, "damaged"),  # metadata
        (24, 2**31 - 1, "damaged"),  # the first key's length
        (24 + 8 + len("general.architecture"), 77, "damaged"),  # its type
    ):
        copy = whole.copy()
        struct.pack_into("<I", copy, offset, value)
        damaged.write_bytes(copy)
        assert reason in refusal(damaged)


def test_random_damage_never_escapes(tmp_path: Path) -> None:
    whole = np.frombuffer(write_model(tmp_path / "whole.gguf", n_tokens=5).read_bytes(), np.uint8)
    random = np.random.default_rng(0)
    damaged = tmp_path / "damaged.gguf"
    header = read_gguf_info(tmp_path / "whole.gguf").tensors[0].offset
    for _ in range(500):
        copy = whole.copy()
        places = random.integers(4, header, 3)
        copy[places] = random.integers(0, 256, 3)
        damaged.write_bytes(copy.tobytes())
        try:
            read_gguf_info(damaged)
        except ModelFileError as error:
            assert "\n" not in str(error)


def test_files_without_a_language_model(tmp_path: Path) -> None:
    path = tmp_path / "projector.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "holds no language model" in refusal(path)


def test_split_models(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf", split_tensors=2)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert parts[0].name == "model-00001-of-00003.gguf"
    info = read_gguf_info(parts[0])
    assert len(info.tensors) == 5
    assert info.bytes == sum(part.stat().st_size for part in parts)
    assert TokenEmbeddings.load(info).rows([3]).shape == (1, 64)

    assert f"give {parts[0]}" in refusal(parts[1])
    data = parts[2].read_bytes()
    parts[2].write_bytes(data[:-64])
    with pytest.raises(ModelFileError, match=r"00003-of-00003.*64 of its"):
        read_gguf_info(parts[0])
    parts[2].unlink()
    with pytest.raises(ModelFileError, match=r"There is no model file .*00003-of-00003"):
        read_gguf_info(parts[0])
    renamed = parts[0].rename(tmp_path / "mine.gguf")
    assert "in 3 files; keep their names" in refusal(renamed)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0, Kind.Q4_0])
def test_embeddings_are_the_dequantised_rows(tmp_path: Path, kind: Kind) -> None:
    table = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
    info = read_gguf_info(write_model(tmp_path / "model.gguf", table=table, kind=kind))
    want = torch.from_numpy(gguf.dequantize(gguf.quantize(table, kind), kind))
    whole, by_row = TokenEmbeddings.load(info), TokenEmbeddings.load(info, whole_bytes=0)
    for embeddings in (whole, by_row):
        assert (embeddings.n_vocab, embeddings.n_embd) == (300, 64)
        for ids in ([5], [7, 5, 7, 299], torch.tensor([0, 1]), np.array([5, 9], np.int32)):
            rows = embeddings.rows(ids)
            assert rows.dtype == torch.float32
            assert torch.equal(rows, want[torch.as_tensor(ids, dtype=torch.int64)])
        assert embeddings.rows([]).shape == (0, 64)


def test_embedding_rows_leave_the_cache_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specfit.models.embeddings._CACHE_ROWS", 16)
    table = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32)
    info = read_gguf_info(write_model(tmp_path / "model.gguf", table=table))
    embeddings = TokenEmbeddings.load(info, whole_bytes=0)
    random = np.random.default_rng(1)
    for _ in range(200):
        ids = random.integers(0, 100, random.integers(1, 40))
        np.testing.assert_array_equal(embeddings.rows(ids).numpy(), table[ids])


def same_metadata(one: Path, other: Path) -> bool:
    def values(path: Path) -> dict[str, object]:
        changed = ("GGUF.", "general.file_type", "general.quantization_version")
        fields = gguf.GGUFReader(path).fields
        return {k: (f.types, f.contents()) for k, f in fields.items() if not k.startswith(changed)}

    return values(one) == values(other)


def test_dequantising_keeps_metadata_and_values(bundled_f16: Path) -> None:
    tensors = read_gguf_info(bundled_f16).tensors
    assert {tensor.type for tensor in tensors} == {Kind.F16, Kind.F32}
    assert same_metadata(bundled_model(), bundled_f16)
    for one, other in zip(
        gguf.GGUFReader(bundled_model()).tensors, gguf.GGUFReader(bundled_f16).tensors, strict=True
    ):
        assert (one.name, list(one.shape)) == (other.name, list(other.shape))
        for some in (slice(2), slice(-2, None)):  # all of them would take seconds
            values = gguf.dequantize(one.data[some], one.tensor_type)
            np.testing.assert_allclose(other.data[some], values, rtol=1e-3, atol=1e-6)


def test_the_dequantising_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_model(tmp_path / "f32.gguf")
    assert main([str(source), str(tmp_path / "same.gguf")]) == 0
    assert same_metadata(source, tmp_path / "same.gguf")
    assert main([str(tmp_path / "none.gguf"), str(tmp_path / "out.gguf")]) == 2
    assert main([str(source), str(source)]) == 2
    assert "is the source itself" in capsys.readouterr().err
