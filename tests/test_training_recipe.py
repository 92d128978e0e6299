"""The training recipe, dry: every stage on a CPU, with the bundled model as its own teacher."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome
from hypothesis import given
from hypothesis import strategies as st

from specfit.models import bundled_model
from specfit.models.gguf_info import read_gguf_info
from specfit.models.training import corpus, judge, scripts, vocabulary
from specfit.models.training.__main__ import main


def train(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specfit.models.training", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working folder of a run of all stages.

    The teacher has one example before every script instead of three: it reads them token by token.
    """
    folder = tmp_path_factory.mktemp("training")
    arguments = ["all", "--tiny", "--work", str(folder), "--teacher", str(bundled_model())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "SHOTS", scripts.SHOTS[:1])
        main.main(arguments, standalone_mode=False)
    return folder


def test_all_stages_make_a_pair_that_loads(work: Path) -> None:
    info = read_gguf_info(work / "shipped.gguf")
    assert (info.n_layers, info.n_embd, info.n_vocab) == (8, 64, 512)
    assert info.n_experts_used == 8
    assert (work / "eagle3" / "model.safetensors").stat().st_size > 0
    assert (work / "eagle3-step-2" / "config.json").exists()
    assert json.loads((work / "polish.json").read_text())["held_out"] > 0


def test_a_stage_that_is_done_is_passed_over(work: Path) -> None:
    before = (work / "shipped.gguf").stat().st_mtime_ns
    done = train("all", "--tiny", "--work", work)
    assert done.returncode == 0
    assert done.stdout.count("is done") == 7
    assert (work / "shipped.gguf").stat().st_mtime_ns == before


def test_a_stage_before_its_time_says_what_is_missing(
    tmp_path: Path, command: Callable[..., Outcome]
) -> None:
    done = command(main, "target", "--tiny", "--work", tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "is not there yet" in done.err


def test_the_whole_recipe_on_a_cpu_is_refused(
    tmp_path: Path, command: Callable[..., Outcome]
) -> None:
    done = command(main, "target", "--work", tmp_path, "--device", "cpu")
    assert (done.code, done.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("text", "--tiny", "--teacher", __file__),
        ("target", "--tiny", "--device", "quantum"),
        ("target", "--tiny"),
    ],
)
def test_what_cannot_be_used_is_named_in_a_sentence(
    tmp_path: Path, command: Callable[..., Outcome], arguments: tuple[str]
) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.npz").write_text("torn")
    done = command(main, *arguments, "--work", tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("arguments", [(__file__,), (bundled_model(), "--questions", __file__)])
def test_the_judge_names_what_it_cannot_use(
    command: Callable[..., Outcome], arguments: tuple[str | Path]
) -> None:
    done = command(judge.main, *arguments)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert str(arguments[-1]) in done.err


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=200),
    st.integers(20, 50),
)
def test_packing_keeps_documents_whole_and_in_one_row(sizes: list[int], length: int) -> None:
    documents = [np.full(size, 1 + i, np.uint16) for i, size in enumerate(sizes)]
    rows = corpus.packed(documents, length)
    found: dict[int, int] = {}
    for tokens, fill in zip(rows.tokens, rows.fill, strict=True):
        assert not tokens[fill:].any()
        values, counts = np.unique(tokens[:fill], return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            assert value not in found
            found[value] = count
    assert all(count == min(sizes[value - 1], length) for value, count in found.items())


def test_the_mask_covers_answers_and_their_end() -> None:
    # 9 opens an answer with 8; 2 ends a turn.
    row = np.array([[1, 9, 8, 5, 6, 2, 3, 9, 8, 7, 2, 4]], np.uint16)
    mask = corpus.answer_mask(row, [9, 8], 2)
    assert mask.tolist() == [[0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0]]


def test_chatml_and_back() -> None:
    conversation = {
        "kind": "chat",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Two\nlines?"},
            {"role": "assistant", "content": "Yes."},
        ],
    }
    assert corpus.messages(corpus.chatml(conversation)) == conversation["messages"]


def test_the_tokenizer_of_a_file_splits_as_llama_cpp_does() -> None:
    from llama_cpp import Llama

    path = bundled_model()
    ours = vocabulary.read(path)
    theirs = Llama(str(path), vocab_only=True, verbose=False)
    text = "<|im_start|>user\nIt's 12 + 345, isn't it?\n\n  Straße, 東京 😀<|im_end|>\n"
    assert ours.encode(text).ids == theirs.tokenize(text.encode(), add_bos=False, special=True)
    assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text
