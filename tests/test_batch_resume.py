"""Going on with a batch: after a kill, a torn line, a changed prompt, a failure."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from test_batch import lines_of

from specfit.app import batch
from specfit.app.entry import AppError
from specfit.app.lines_out import LinesOut
from specfit.models import bundled_model

QUICK = ("-n", "6", "--spec", "off", "-c", "512", "-t", "1", "-np", "1")
PROGRAM = (sys.executable, "-c", "from specfit.app.batch import main; main()")
FRUIT, BIRD = {"id": "a", "prompt": "Name a fruit."}, {"id": "b", "prompt": "Name a bird."}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def put(path: Path, *lines: object) -> None:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def ids(path: Path) -> list[Any]:
    return [record["id"] for record in lines_of(path)]


def test_what_is_there_is_not_done_again_and_what_is_new_is(command, source, out):
    put(source, FRUIT)
    assert command(batch.main, source, "-o", out, "-s", 1, *QUICK).code == 0
    first = out.read_text()
    put(source, BIRD, FRUIT)
    assert command(batch.main, source, "-o", out, "-s", 1, *QUICK).code == 0
    assert out.read_text().startswith(first)
    assert ids(out) == ["a", "b"]
    runs = json.loads((out.parent / "out.jsonl.manifest.json").read_text())["runs"]
    assert [(run["answered"], run["skipped"]) for run in runs] == [(1, 0), (1, 1)]


def test_where_nothing_is_left_no_model_is_loaded(command, source, out, monkeypatch):
    put(source, FRUIT)
    command(batch.main, source, "-o", out, *QUICK)
    before = out.read_text(), (out.parent / "out.jsonl.manifest.json").read_text()
    monkeypatch.setattr("specfit.app.loading.loaded_engine", None)
    assert command(batch.main, source, "-o", out, *QUICK).code == 0
    assert (out.read_text(), (out.parent / "out.jsonl.manifest.json").read_text()) == before


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ({**FRUIT, "prompt": "Name a tree."}, ()),
        ({**FRUIT, "id": "c"}, ()),
        ({**FRUIT, "temperature": 0.1}, ()),
        ({**FRUIT, "seed": 3}, ()),
        (FRUIT, ("--temp", "0.1")),
        (FRUIT, ("-s", "2")),
        (FRUIT, ("-n", "5")),
        (FRUIT, ("--system", "Be brief.")),
        (FRUIT, ("--stop", "x")),
        (FRUIT, ("--deterministic",)),
    ],
)
def test_a_line_that_would_be_answered_otherwise_is_done_again(command, source, out, line, flags):
    put(source, FRUIT)
    command(batch.main, source, "-o", out, "-s", 1, *QUICK)
    put(source, line)
    assert command(batch.main, source, "-o", out, "-s", 1, *QUICK, *flags).code == 0
    assert len(lines_of(out)) == 2


@pytest.mark.parametrize("flags", [("--spec", "chain:2"), ("-c", "600"), ("-np", "2")])
def test_what_only_makes_it_faster_changes_nothing_unless_it_must(command, source, out, flags):
    put(source, FRUIT)
    for more, expected in [((), 1), (flags, 1), (("--deterministic",), 2)]:
        command(batch.main, source, "-o", out, "-s", 1, *QUICK, *more)
        assert len(lines_of(out)) == expected
    if "-np" not in flags:
        command(batch.main, source, "-o", out, "-s", 1, *QUICK, "--deterministic", *flags)
        assert len(lines_of(out)) == 3


def test_another_model_is_another_answer_and_the_same_elsewhere_is_not(command, source, out):
    put(source, FRUIT)
    command(batch.main, source, "-o", out, *QUICK)
    copy = out.parent / "copy.gguf"
    shutil.copy(bundled_model(), copy)
    command(batch.main, source, "-o", out, *QUICK, "-m", copy)
    assert len(lines_of(out)) == 1
    data = bytearray(copy.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    command(batch.main, source, "-o", out, *QUICK, "-m", copy)
    assert len(lines_of(out)) == 2


def test_a_seed_that_was_drawn_is_no_reason_to_do_a_line_again(command, source, out):
    put(source, FRUIT)
    for flags in ((), ("-s", -1)):
        command(batch.main, source, "-o", out, *QUICK, *flags)
    (record,) = lines_of(out)
    runs = json.loads((out.parent / "out.jsonl.manifest.json").read_text())["runs"]
    from specfit.app.batch_parameters import derived_seed

    assert record["seed"] == derived_seed(runs[0]["seed"], "a", 0)


def test_lines_that_are_alike_have_a_record_each(command, source, out):
    put(source, FRUIT, FRUIT)
    err = command(batch.main, source, "-o", out, *QUICK).err
    assert 'several lines have the same id ("a"); each of them is answered' in err
    whole = out.read_text()
    out.write_text(whole.splitlines(keepends=True)[0])
    command(batch.main, source, "-o", out, *QUICK)
    command(batch.main, source, "-o", out, *QUICK)
    assert ids(out) == ["a", "a"]


@pytest.mark.parametrize("left", [1, 20, -1])
def test_a_torn_last_line_is_done_again(command, source, out, left):
    put(source, FRUIT, BIRD)
    command(batch.main, source, "-o", out, "-s", 1, *QUICK)
    whole = out.read_text()
    first, second = whole.splitlines(keepends=True)
    for kept in (first + second[:left], first[:left]):
        out.write_text(kept)
        command(batch.main, source, "-o", out, "-s", 1, *QUICK)
        assert out.read_text() == whole


@pytest.mark.parametrize(
    "content",
    [
        b"notes of mine",
        b'{"id": 1, "prompt": "Hi"}',
        b'{"id": 1}\n{"key": "torn',
        b"\n",
        b"\0\0\0",
        b'{"key": "1", "id": 1}\nnotes\n{"key": "2"}\n',
        b'{"key": 1, "id": 1}\n',
    ],
)
def test_a_file_that_is_not_ours_is_left_as_it_is(command, source, out, content):
    put(source, FRUIT)
    out.write_bytes(content)
    outcome = command(batch.main, source, "-o", out, *QUICK)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert "was not written by specfit-batch" in outcome.err
    assert out.read_bytes() == content


def test_answers_of_another_form_are_not_mixed(command, source, out):
    put(source, FRUIT)
    command(batch.main, source, "-o", out, *QUICK)
    outcome = command(batch.main, source, "-o", out, *QUICK, "--format", "openai")
    assert outcome.code == 2
    assert "was written with --format specfit" in outcome.err


def test_a_file_that_another_run_writes_is_refused(out):
    with LinesOut(out) as first:
        with pytest.raises(AppError, match="being written by another"):
            LinesOut(out)
        first.write({"key": "1"})
    with LinesOut(out) as second:
        assert list(second.records()) == [{"key": "1"}]


def test_a_manifest_that_is_none_is_found_before_the_model_loads(command, source, out):
    put(source, FRUIT)
    manifest = out.parent / "out.jsonl.manifest.json"
    manifest.write_text("[]")
    outcome = command(batch.main, source, "-o", out, *QUICK)
    assert outcome.code == 2
    assert outcome.err == f"specfit-batch: {manifest} is no manifest of specfit-batch; " + (
        "move it away\n"
    )
    assert manifest.read_text() == "[]"


def test_failures_stay_until_they_are_asked_for_again(command, source, out, monkeypatch):
    put(source, FRUIT, BIRD)
    source.write_text(f"{source.read_text()}{{broken\n")
    from specfit.backend import Engine, SpecfitError

    generate = Engine.generate

    def failing(self: Engine, messages: Any, **rest: Any) -> Any:
        if "bird" in str(messages):
            raise SpecfitError("no birds today")
        return generate(self, messages, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "generate", failing)
        outcome = command(batch.main, source, "-o", out, *QUICK)
    sentence = f'specfit-batch: {{}} of 3 lines failed; {out} says why under "error"'
    assert (outcome.code, outcome.err.splitlines()[-1]) == (2, sentence.format(2))
    outcome = command(batch.main, source, "-o", out, *QUICK)
    nothing = "nothing to do: 3 of 3 lines were done before\n"
    assert (outcome.code, outcome.err) == (2, f"{nothing}{sentence.format(2)}\n")
    assert ids(out) == ["a", "b", None]
    outcome = command(batch.main, source, "-o", out, "--retry-errors", *QUICK)
    started, ended, last = outcome.err.splitlines()
    assert started == "1 line to answer; 2 were done before"
    assert ended.startswith("3 of 3 lines, ")
    assert (outcome.code, last) == (2, sentence.format(1))
    assert ids(out) == ["a", "b", None, "b"]  # the last one counts
    assert ["error" in record for record in lines_of(out)] == [False, True, True, False]
    command(batch.main, source, "-o", out, "--retry-errors", *QUICK)
    assert len(lines_of(out)) == 4


def killed_until_done(arguments: tuple[object, ...], out: Path, rng: random.Random) -> int:
    """Runs the command, and kills it at random moments, until it ends by itself; how often."""
    for kills in range(3):
        process = subprocess.Popen([*PROGRAM, *map(str, arguments)], stderr=subprocess.PIPE)
        size = out.stat().st_size if out.exists() else 0
        deadline = time.monotonic() + 60
        while process.poll() is None and (not out.exists() or out.stat().st_size <= size):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(rng.random() * 0.1)  # some answers are there, one is under way
        if process.poll() is not None or kills >= 2:
            _, errors = process.communicate(timeout=60)
            assert (process.returncode, len(errors.splitlines())) == (0, 2)
            return kills
        process.kill()
        process.communicate()
        if rng.random() < 0.5:  # as a power cut would leave it
            data = out.read_bytes()
            out.write_bytes(data[: len(data) - rng.randrange(40)])
    raise AssertionError("never done")


def test_a_deterministic_run_that_is_killed_ends_as_one_that_is_not(command, source, out, tmp_path):
    put(source, *[{"id": i, "prompt": f"Tell me of {i} birds.", "n": 1 + i % 2} for i in range(16)])
    arguments = (source, "-n", 12, "-c", 512, "-t", 1, "--deterministic")
    arguments += ("--cost-profile", "cache-77")
    whole = tmp_path / "whole.jsonl"
    assert command(batch.main, *arguments, "-o", whole).code == 0
    assert killed_until_done((*arguments, "-o", out), out, random.Random(1)) >= 1
    assert out.read_bytes() == whole.read_bytes()
    speculation = [record["speculation"] for record in lines_of(out)]
    assert sum(record["drafted"] for record in speculation) > 0


def test_another_run_that_is_killed_has_every_line_once(source, out):
    put(source, *[{"id": i, "prompt": f"Tell me of {i} birds."} for i in range(40)])
    arguments = (source, "-o", out, "-n", 12, "-c", 256, "-t", 1, "-np", 3, "--spec", "off")
    assert killed_until_done(arguments, out, random.Random(2)) >= 1
    assert Counter(ids(out)) == Counter(range(40))
    assert all(record["text"] for record in lines_of(out))
