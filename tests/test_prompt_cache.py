"""A prompt that was processed once is not processed again, whoever asks, and says the same."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording import exact_engine

from specfit.app import batch, bench, chat
from specfit.app.chat_setup import chosen
from specfit.app.options import ModelChoice
from specfit.app.stats import statistics
from specfit.app.widgets.model_picker import Choice
from specfit.backend import Engine, Generation, LoadOptions, Sampling, Spec, SpecfitError
from specfit.backend.prompt_cache import (
    MAGIC,
    Kept,
    PromptCache,
    Unusable,
    made_with,
    packed,
    unpacked,
)
from specfit.backend.rope import Rope
from specfit.backend.runtime import Runtime
from specfit.models import bundled_head

GREEDY = Sampling(temp=0.0)
STORY = "Once there was a fox who lived at the edge of a wood and counted the trains. "
QUESTION = [{"role": "user", "content": f"{STORY * 8}\nWhat did the fox count?"}]
PLAIN = LoadOptions(ctx=512, threads=1, drafting=False)


# The file


def kept(head: np.ndarray) -> Kept:
    rng = np.random.default_rng(0)
    state = rng.integers(0, 256, 300).astype(np.uint8)
    return Kept({"model": ["m.gguf", 7]}, np.arange(9, dtype=np.int32), state, head)


@pytest.mark.parametrize("shape", [(0,), (7,), (5, 16)])
def test_what_is_packed_is_unpacked(shape: tuple[int, ...]) -> None:
    before = kept(np.random.default_rng(0).integers(0, 256, shape, np.uint8))
    after = unpacked(b"".join(packed(before)))
    assert after.made_with == before.made_with
    np.testing.assert_array_equal(after.tokens, before.tokens)
    np.testing.assert_array_equal(after.state, before.state)
    np.testing.assert_array_equal(after.head, before.head)


def test_no_byte_can_be_wrong_or_missing() -> None:
    data = b"".join(packed(kept(np.ones(8, np.uint8))))
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        for damaged in (bytes(flipped), data[:at], data[:at] + bytes(len(data) - at)):
            if damaged != data:
                with pytest.raises(Unusable):
                    unpacked(damaged)


def test_a_place_where_there_can_be_no_file_is_refused_before_anything_is_loaded(
    tmp_path: Path,
) -> None:
    for path, why in ((tmp_path / "no" / "cache", "no folder"), (tmp_path, "no file")):
        with pytest.raises(SpecfitError, match=why):
            Engine.load(replace(PLAIN, prompt_cache=path))


# What it is of


@pytest.fixture(scope="module")
def exact(exact_pair: tuple[Path, Path]) -> Iterator[Engine]:
    with exact_engine(exact_pair, ctx=512) as engine:
        yield engine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fox.cache"


def cache_of(engine: Engine, file: Path, *, writes: bool = True, **otherwise: Any) -> PromptCache:
    """As the engine itself would have it. otherwise: what it is made with, changed."""
    head = None if engine.lines[0].drafter is None else bundled_head()
    made = made_with(engine.model.info, engine.model.runtime, head)
    return PromptCache(file, {**made, **otherwise}, writes=writes)


def answer(
    engine: Engine, messages: list[dict[str, str]], spec: str = "off", tokens: int = 32
) -> Generation:
    """Finished."""
    generation = engine.generate(
        messages, sampling=GREEDY, max_tokens=tokens, spec=Spec.parse(spec)
    )
    for _ in generation:
        pass
    return generation


def more(text: str) -> list[dict[str, str]]:
    return [
        *QUESTION,
        {"role": "assistant", "content": text},
        {"role": "user", "content": "And what did it do then?"},
    ]


def left_and_back(engine: Engine, file: Path) -> None:
    """What is in the cache goes to the file, is forgotten, and comes back."""
    assert cache_of(engine, file).keep(engine.lines[0]) == ""
    engine.forget()
    assert cache_of(engine, file).restore(engine.lines[0]) == ""


@pytest.mark.parametrize("leaves", [True, False])
def test_a_conversation_goes_on_from_the_file_as_if_nobody_had_left(
    bundled_engine: Engine, file: Path, leaves: bool
) -> None:
    """To the bit: the same tokens are decoded in the same batches either way."""
    engine, logits = bundled_engine, []
    for now in (False, leaves):
        engine.forget()
        first = answer(engine, QUESTION).report.text
        if now:
            left_and_back(engine, file)
        second = answer(engine, more(first), tokens=48)
        assert second.report.reused_tokens > 150
        logits.append((second.tokens, engine.context.logits(0).copy()))
    assert logits[0][0] == logits[1][0]
    np.testing.assert_array_equal(logits[0][1], logits[1][1])


@pytest.mark.parametrize("mode", ["off", "chain:3", "specfit"])
def test_the_text_is_that_of_a_prompt_processed_anew(exact: Engine, file: Path, mode: str) -> None:
    exact.forget()
    afresh = answer(exact, QUESTION, mode)
    left_and_back(exact, file)
    again = answer(exact, QUESTION, mode)
    assert again.tokens == afresh.tokens
    assert afresh.report.reused_tokens == 0
    n = len(again.prompt_tokens)
    assert again.report.reused_tokens >= n - 2
    assert f"{again.report.reused_tokens} of {n} prompt tokens reused" in statistics(
        again.report, mode
    )
    assert "reused" not in statistics(afresh.report, mode)
    assert again.report.cycles == afresh.report.cycles or mode == "specfit"
    if mode != "off":
        assert again.report.accepted > 5


def test_the_head_goes_on_from_the_file_and_drafts_alike(exact: Engine, file: Path) -> None:
    exact.forget()
    first = answer(exact, QUESTION, "chain:3").report.text
    left_and_back(exact, file)
    drafter = exact.lines[0].drafter
    assert drafter is not None
    assert drafter.n_known == drafter.head.n_pairs == len(exact.lines[0].tokens) - 1
    back = answer(exact, more(first), "chain:3")
    exact.forget()
    afresh = answer(exact, more(first), "chain:3")
    assert back.tokens == afresh.tokens
    assert (back.report.cycles, back.report.accepted) == (
        *(afresh.report.cycles, afresh.report.accepted),
    )


def test_an_answer_that_was_stopped_at_its_first_token_is_kept_as_far_as_it_came(
    exact: Engine, file: Path
) -> None:
    exact.forget()
    afresh = answer(exact, QUESTION, "chain:3")
    exact.forget()
    generation = exact.generate(QUESTION, sampling=GREEDY, spec=Spec.parse("chain:3"))
    next(iter(generation), None)
    left_and_back(exact, file)
    assert answer(exact, QUESTION, "chain:3").tokens == afresh.tokens


@pytest.mark.parametrize(
    ("otherwise", "why"),
    [
        ({"model": ["other.gguf", 1, 2]}, "another model"),
        ({"types": ["q8_0", "f16"]}, "another --cache-type-k"),
        ({"rope": {"scaling": "yarn"}}, "other RoPE options"),
        ({"head": None}, "another draft head, or none"),
        ({"llama.cpp": "0.0.1"}, "another version of llama.cpp"),
    ],
)
def test_what_was_made_otherwise_is_not_used_and_is_replaced(
    exact: Engine, file: Path, otherwise: dict[str, object], why: str
) -> None:
    exact.forget()
    answer(exact, QUESTION, tokens=2)
    assert cache_of(exact, file, **otherwise).keep(exact.lines[0]) == ""
    exact.forget()
    cache = cache_of(exact, file)
    assert why in cache.restore(exact.lines[0])
    assert exact.lines[0].tokens == []
    answer(exact, QUESTION, tokens=2)
    assert cache.keep(exact.lines[0]) == ""
    exact.forget()
    assert cache_of(exact, file).restore(exact.lines[0]) == ""


def test_two_kinds_of_rope_and_of_types_are_told_apart(bundled_engine: Engine) -> None:
    info = bundled_engine.model.info
    runtimes = [Runtime(), Runtime("q8_0"), Runtime(rope=Rope("yarn", freq_scale=0.5))]
    assert len({json.dumps(made_with(info, one, None)) for one in runtimes}) == 3
    assert made_with(info, Runtime(), None)["head"] is None
    assert made_with(info, Runtime(), bundled_head())["head"][0][1] > 10**6


def damaged(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 255
    return bytes(changed)


DAMAGES = {
    "a flipped bit of the state": lambda data: damaged(data, len(data) // 2),
    "torn": lambda data: data[: len(data) // 3],
    "full of zeros from the middle on": lambda data: data[:5000] + bytes(len(data) - 5000),
    "with the magic line alone": lambda _data: MAGIC,
    "of a later version": lambda data: data.replace(b"cache 2", b"cache 9", 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_sentence_and_is_replaced(
    exact: Engine, file: Path, damage: str
) -> None:
    exact.forget()
    afresh = answer(exact, QUESTION, tokens=12)
    assert cache_of(exact, file).keep(exact.lines[0]) == ""
    whole = file.read_bytes()
    file.write_bytes(DAMAGES[damage](whole))
    exact.forget()
    cache = cache_of(exact, file)
    told = cache.restore(exact.lines[0])
    assert str(file) in told
    assert "not used" in told
    assert "\n" not in told
    assert answer(exact, QUESTION, tokens=12).tokens == afresh.tokens
    assert cache.keep(exact.lines[0]) == ""
    assert file.read_bytes() == whole


def test_a_file_of_somebody_elses_is_left_alone(exact: Engine, file: Path) -> None:
    file.write_text("My notes on foxes.\n")
    exact.forget()
    cache = cache_of(exact, file)
    assert "was not made by SpecFit; it is not used, and left as it is" in cache.restore(
        exact.lines[0]
    )
    answer(exact, QUESTION, tokens=2)
    assert cache.keep(exact.lines[0]) == ""
    assert file.read_text() == "My notes on foxes.\n"


def test_an_empty_file_is_a_new_one_and_keeps_its_mode(exact: Engine, file: Path) -> None:
    answer(exact, QUESTION, tokens=2)
    assert cache_of(exact, file).keep(exact.lines[0]) == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # what was said is nobody else's
    file.write_bytes(b"")
    file.chmod(0o640)
    link = file.with_name("link")
    link.symlink_to(file)
    exact.forget()
    cache = cache_of(exact, link)
    assert cache.restore(exact.lines[0]) == ""
    answer(exact, QUESTION, tokens=2)
    assert cache.keep(exact.lines[0]) == ""
    assert file.stat().st_size > 1000
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert link.is_symlink()


def test_a_text_of_more_than_the_context_is_not_used(exact: Engine, file: Path) -> None:
    exact.forget()
    answer(exact, QUESTION, tokens=2)
    cache_of(exact, file).keep(exact.lines[0])
    exact.forget()
    line = exact.lines[0]
    limit, exact.context.ctx = exact.context.ctx, 100
    try:
        assert "and the context 100; it is not used" in cache_of(exact, file).restore(line)
    finally:
        exact.context.ctx = limit
    assert (line.tokens, line.n_past) == ([], 0)


# A disk that is full


@pytest.fixture
def old(exact: Engine, file: Path) -> bytes:
    """A file of a text, and another text in the cache."""
    exact.forget()
    answer(exact, QUESTION, tokens=2)
    assert cache_of(exact, file).keep(exact.lines[0]) == ""
    answer(exact, more("Trains."), tokens=2)
    return file.read_bytes()


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("noticed", ["before", "while"])
def test_a_full_disk_is_one_sentence_and_the_old_file_stays(
    exact: Engine, file: Path, old: bytes, monkeypatch: pytest.MonkeyPatch, noticed: str
) -> None:
    if noticed == "before":
        usage = shutil.disk_usage(file.parent)._replace(free=1000)
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    else:
        monkeypatch.setattr(os, "fsync", full)
    told = cache_of(exact, file).keep(exact.lines[0])
    reason = {"before": "0 MiB are free on the disk", "while": "No space left on device"}
    assert told.startswith(f"the prompt cache {file} was not written: ")
    assert reason[noticed] in told
    assert file.read_bytes() == old
    assert list(file.parent.iterdir()) == [file]


def test_where_memory_is_short_nothing_is_read_or_written(
    exact: Engine, file: Path, old: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    free = psutil.virtual_memory()._replace(available=100)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert "more memory than is free" in cache_of(exact, file).keep(exact.lines[0])
    assert file.read_bytes() == old
    exact.forget()
    assert "more than is free; it is not used" in cache_of(exact, file).restore(exact.lines[0])


def test_a_file_that_is_only_read_stays(exact: Engine, file: Path, old: bytes) -> None:
    exact.forget()
    cache = cache_of(exact, file, writes=False)
    assert cache.restore(exact.lines[0]) == ""
    assert answer(exact, more("Trains."), tokens=2).report.reused_tokens > 100
    assert cache.keep(exact.lines[0]) == ""
    assert file.read_bytes() == old


def test_a_text_that_did_not_change_is_not_written_again(exact: Engine, file: Path) -> None:
    exact.forget()
    answer(exact, QUESTION, tokens=4)
    cache_of(exact, file).keep(exact.lines[0])
    exact.forget()
    cache, number = cache_of(exact, file), file.stat().st_ino
    cache.restore(exact.lines[0])
    assert cache.keep(exact.lines[0]) == ""
    answer(exact, QUESTION, tokens=4)
    assert cache.keep(exact.lines[0]) == ""
    assert file.stat().st_ino == number


# Engines and commands


def test_an_engine_keeps_the_text_when_it_is_closed(file: Path) -> None:
    options = replace(PLAIN, prompt_cache=file)
    texts, reused = [], []
    for _ in range(2):
        with Engine.load(options) as engine:
            assert not engine.notices
            report = answer(engine, QUESTION).report
        texts.append(report.text)
        reused.append(report.reused_tokens)
    assert (engine.not_kept, texts[0]) == ("", texts[1])
    assert reused == [0, report.prompt_tokens - 1]
    # Values lie otherwise without flash attention, which llama.cpp itself finds out.
    other = replace(options, runtime=Runtime(flash_attn="off"), prompt_cache_ro=True)
    with Engine.load(other) as engine:
        assert "is none of this context's" in engine.notices[0]
        assert answer(engine, QUESTION).report.reused_tokens == 0


def test_an_answer_for_scripts_is_the_same_from_the_file(command, file: Path):
    asked = (chat.main, "-p", QUESTION[0]["content"], "--temp", 0, "-n", 16, "--spec", "off")
    asked += ("-c", 512, "-t", 1)
    plain, first, again = (command(*asked, *more) for more in ((), *[("--prompt-cache", file)] * 2))
    assert plain.code == first.code == again.code == 0
    assert plain.out == first.out == again.out
    assert plain.err == first.err == again.err == ""
    file.write_bytes(file.read_bytes()[:-9])
    torn = command(*asked, "--prompt-cache", file)
    assert (torn.code, torn.out) == (0, plain.out)
    assert torn.err == f"the prompt cache {file} is damaged; it is not used\n"


def test_a_batch_begins_from_what_its_lines_have_in_common(command, file: Path, monkeypatch):
    folder = file.parent
    reused: list[int] = []
    begin = Generation.begin

    def watched(generation: Generation, line: object, lines: int) -> None:
        begin(generation, line, lines)  # type: ignore[arg-type]
        reused.append(generation.report.reused_tokens)

    monkeypatch.setattr(Generation, "begin", watched)
    for run in ("first", "second"):
        lines = [{"id": n, "prompt": f"{STORY * 8}\n{run} question {n}?"} for n in range(3)]
        (folder / run).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        outcome = command(
            *(batch.main, folder / run, "-o", folder / f"{run}.jsonl", "-n", 4, "--temp", 0),
            *("--spec", "off", "-np", 2, "-c", 512, "-t", 1, "--prompt-cache", file),
        )
        assert (outcome.code, len((folder / f"{run}.jsonl").read_text().splitlines())) == (0, 3)
    assert reused[0] == 0
    assert min(reused[1:]) > 100


@pytest.mark.parametrize(
    ("main", "arguments", "why"),
    [
        (chat.main, ["-p", "hi", "--prompt-cache-ro"], "goes with --prompt-cache FILE"),
        (chat.main, ["-p", "hi", "--prompt-cache", "/nowhere/x"], "there is no folder /nowhere"),
        (
            batch.main,
            ["in", "-o", "out", "--deterministic", "--prompt-cache", "x"],
            "begins from an empty cache",
        ),
        (bench.main, ["--prompts", "in", "--prompt-cache", "x"], "No such option"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(command, main, arguments, why):
    outcome = command(main, *arguments)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert why in outcome.err


def test_another_model_picked_in_the_chat_leaves_the_first_ones_file_alone(tmp_path):
    place = {"gpu_layers": None, "cpu_moe": False, "n_cpu_moe": None, "ctx_size": None}
    unplaced = ModelChoice(tmp_path / "a.gguf", None, threads=1, cost_profile=None, **place)
    first = replace(unplaced, prompt_cache=tmp_path / "a.cache")
    other = chosen(first, Choice(tmp_path / "b.gguf", None), None)
    assert (other.model, other.prompt_cache) == (tmp_path / "b.gguf", None)
    assert chosen(first, Choice(first.model, None), None).prompt_cache == first.prompt_cache
