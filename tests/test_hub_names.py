"""Which files -hf and -hfd mean, from what a repository holds."""

from __future__ import annotations

import pytest

from specfit.app.entry import AppError
from specfit.app.hub import (
    Listing,
    RepoFile,
    Wanted,
    choose_head,
    choose_model,
    parse_head,
    parse_wanted,
    quant_of,
)


def listing(*paths: str) -> Listing:
    return Listing("owner/repo", "c" * 40, tuple(RepoFile(path, 10) for path in paths))


def chosen(quant: str | None, *paths: str) -> list[str]:
    return [file.path for file in choose_model(listing(*paths), quant)]


def test_a_repository_may_be_followed_by_a_quantisation():
    assert parse_wanted("Qwen/Qwen3-30B-A3B-GGUF") == Wanted("Qwen/Qwen3-30B-A3B-GGUF", None)
    assert parse_wanted("a/b.c:Q8_0") == Wanted("a/b.c", "Q8_0")
    assert parse_wanted("unsloth/x:UD-Q4_K_XL").quant == "UD-Q4_K_XL"


@pytest.mark.parametrize(
    "text", ["", "name", "a/b/c", "a/b:", "a/b:x/y", "../x", "a/..", "https://huggingface.co/a/b"]
)
def test_what_is_no_repository_is_refused_with_an_example(text):
    with pytest.raises(AppError, match="owner/repo"):
        parse_wanted(text)
    with pytest.raises(AppError, match="owner/repo"):
        parse_head(text)


def test_a_head_has_no_quantisation():
    with pytest.raises(AppError, match="-hfd a/b:Q4_0"):
        parse_head("a/b:Q4_0")


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("Qwen3-30B-A3B-Q4_K_M.gguf", "Q4_K_M"),
        ("Qwen3-30B-A3B.i1-IQ4_XS.gguf", "IQ4_XS"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Q8_0/model-Q8_0-00001-of-00002.gguf", "Q8_0"),
        ("BF16/model-00001-of-00002.gguf", "BF16"),
        ("gpt-oss-20b-mxfp4.gguf", "mxfp4"),
        ("model.gguf", ""),
    ],
)
def test_a_quantisation_is_read_from_the_name(path, quant):
    assert quant_of(path) == quant


def test_a_quantisation_is_a_whole_word_in_any_case():
    files = ("m-Q4_K_S.gguf", "m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "m-IQ4_K_M.gguf")
    assert chosen("q4_k_m", *files) == ["m-Q4_K_M.gguf"]
    assert chosen("UD-Q4_K_M", *files) == ["m-UD-Q4_K_M.gguf"]
    assert chosen("Q4_K_XL", "m-UD-Q4_K_XL.gguf", "m-Q8_0.gguf") == ["m-UD-Q4_K_XL.gguf"]
    assert chosen("asym-2bit", "m-asym-2bit.gguf", "m-Q8_0.gguf") == ["m-asym-2bit.gguf"]
    with pytest.raises(AppError, match="no Q4_K; it has Q4_K_M, Q4_K_S"):
        chosen("Q4_K", "m-Q4_K_S.gguf", "m-Q4_K_M.gguf")


def test_without_one_it_is_q4_k_m_or_what_is_nearest():
    assert chosen(None, "m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf") == ["m-Q4_K_M.gguf"]
    assert chosen(None, "m-BF16.gguf", "m-Q2_K.gguf", "m-Q8_0.gguf") == ["m-Q8_0.gguf"]
    assert chosen(None, "m-F16.gguf", "m-Q2_K.gguf") == ["m-Q2_K.gguf"]
    assert chosen(None, "b.gguf", "a.gguf") == ["a.gguf"]
    assert chosen(None, "m-F32.gguf") == ["m-F32.gguf"]


def test_projectors_and_matrices_are_no_models():
    files = ("mmproj-Q4_K_M.gguf", "m-imatrix.gguf", "m-Q8_0.gguf")
    assert chosen(None, *files) == ["m-Q8_0.gguf"]
    with pytest.raises(AppError, match="owner/repo has no GGUF file"):
        chosen(None, *files[:2])


def test_a_split_file_comes_with_all_its_parts_in_order():
    parts = [f"Q8_0/m-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert chosen("Q8_0", *reversed(parts), "m-Q4_0.gguf") == parts
    with pytest.raises(AppError, match="lacks a part of Q8_0/m-Q8_0-00001"):
        chosen("Q8_0", parts[0], parts[2])


def test_original_weights_are_told_from_gguf():
    with pytest.raises(AppError, match="…-GGUF"):
        chosen(None, "model.safetensors", "config.json")


def test_a_head_is_its_config_and_its_weights():
    def files(*paths: str) -> list[str]:
        return [file.path for file in choose_head(listing(*paths))]

    assert files("README.md", "model.safetensors", "config.json", "pytorch_model.bin") == [
        "config.json",
        "model.safetensors",
    ]
    assert files("pytorch_model.bin", "config.json", "training_args.bin") == [
        "config.json",
        "pytorch_model.bin",
    ]
    assert files("eagle3/config.json", "eagle3/model.safetensors", "config.json") == [
        "eagle3/config.json",
        "eagle3/model.safetensors",
    ]
    parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert files("config.json", *parts, "model.safetensors.index.json") == [
        "config.json",
        "model.safetensors.index.json",
        *parts,
    ]
    with pytest.raises(AppError, match="holds GGUF files, not an EAGLE-3 head"):
        files("m-Q4_0.gguf", "config.json")
    with pytest.raises(AppError, match="no draft head"):
        files("README.md")
