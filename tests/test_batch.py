"""specfit-batch: what goes in, what comes out, and what a bad line or a full disk does."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from specfit.app import batch
from specfit.app.entry import AppError
from specfit.app.lines_out import LinesOut
from specfit.app.prompts import BadLine, Prompt, parse_line, read_prompts

LOAD = ("-c", "1024", "-t", "1", "-np", "1")
PROGRAM = (sys.executable, "-c", "from specfit.app.batch import main; main()")


def lines_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


def test_good_lines_are_answered_and_bad_ones_named(command, source, tmp_path):
    source.write_bytes(
        b'{"id": "a", "prompt": "Name a fruit.", "note": 1}\n'
        b"\n"
        b"{broken\n"
        b'{"id": 7, "messages": [{"role": "system", "content": "Be brief."},'
        b' {"role": "user", "content": "Hello"}]}\r\n'
        b'{"id": "long", "prompt": "' + b"word " * 1200 + b'"}\n'
        b'{"id": "last", "prompt": "Hi"}'
    )
    out = tmp_path / "out.jsonl"
    outcome = command(batch.main, source, "-o", out, "-n", 12, "-s", 1, "--spec", "chain:3", *LOAD)
    assert outcome.code == 2
    assert outcome.out == ""
    started, ended, sentence = outcome.err.splitlines()
    assert started == "5 lines to answer"
    assert ended.startswith("5 of 5 lines, 2 failed, ")
    assert sentence == f'specfit-batch: 2 of 5 lines failed; {out} says why under "error"'
    fruit, broken, hello, long, last = lines_of(out)
    assert [record["id"] for record in (fruit, broken, hello, long, last)] == [
        *("a", None, 7, "long", "last")
    ]
    assert set(broken) == set(long) == {"key", "id", "error"}
    assert broken["error"].startswith("line 3: not JSON")
    assert "context holds 1024" in long["error"]
    for record in (fruit, hello, last):
        assert list(record) == [
            *("key", "id", "text", "finish_reason", "seed", "usage", "speculation")
        ]
        usage, speculation = record["usage"], record["speculation"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert 0 < usage["completion_tokens"] <= 12
        assert record["finish_reason"] in ("stop", "length")
        assert speculation["mode"] == "chain:3"
        committed = speculation["cycles"] + speculation["accepted"]
        assert committed == usage["completion_tokens"] - 1
        assert speculation["mean_acceptance_length"] == pytest.approx(
            committed / speculation["cycles"]
        )
        assert speculation["rows_per_cycle"] == pytest.approx(
            1 + speculation["drafted"] / speculation["cycles"]
        )


def test_all_good_lines_is_code_0_and_the_seed_fixes_the_text(command, monkeypatch, tmp_path):
    request = b'{"id": "a", "prompt": "Tell me a story."}\n'
    texts = []
    for name in ("one", "two"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(request)))
        out = tmp_path / name
        outcome = command(batch.main, "-", "-o", out, "-n", 16, "-s", 5, "--spec", "off", *LOAD)
        assert outcome.code == 0
        assert outcome.err.startswith("1 line to answer\n1 of 1 lines, ")
        texts += [record["text"] for record in lines_of(out)]
    assert texts[0] == texts[1]
    assert texts[0]


def test_an_answer_that_is_there_is_not_overwritten(command, source, tmp_path):
    source.write_text('{"id": 1, "prompt": "Hi"}\n')
    out = tmp_path / "out.jsonl"
    out.write_text('{"id": 1}\n')
    for target in (out, source):
        before = target.read_text()
        outcome = command(batch.main, source, "-o", target)
        assert outcome.code == 2
        assert outcome.err == (
            f"specfit-batch: {target}: line 1 was not written by specfit-batch; move the file away "
            "or name another\n"
        )
        assert target.read_text() == before


def test_files_that_cannot_be_used_are_named_before_the_model_loads(command, source, tmp_path):
    source.write_text('{"id": 1, "prompt": "Hi"}\n')
    no_model = ("-m", "/nowhere.gguf")  # would be the error if it were loaded first
    for arguments, named in [
        ((tmp_path / "missing", "-o", tmp_path / "out"), tmp_path / "missing"),
        ((source, "-o", tmp_path / "none" / "out"), tmp_path / "none" / "out"),
        ((source, "-o", tmp_path), tmp_path),
    ]:
        outcome = command(batch.main, *arguments, *no_model)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert str(named) in outcome.err


def test_a_model_that_does_not_load_leaves_no_empty_file(command, source, tmp_path):
    source.write_text('{"id": 1, "prompt": "Hi"}\n')
    outcome = command(batch.main, source, "-o", tmp_path / "out", "-m", "/nowhere.gguf")
    assert outcome.code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_device_is_one_sentence(command, source):
    source.write_text('{"id": 1, "prompt": "Hi"}\n')
    outcome = command(batch.main, source, "-o", "/dev/full", "-n", 3, "--spec", "off", *LOAD)
    assert outcome.code == 2
    assert outcome.err.endswith("\nspecfit-batch: /dev/full: No space left on device\n")


def test_a_disk_that_fills_up_leaves_whole_lines(tmp_path):
    """A file size limit stops a write half way, as a full disk does."""
    path = tmp_path / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with LinesOut(path) as out:
        out.write({"key": "1"})
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
            with pytest.raises(AppError, match=str(path)):
                out.write({"key": "2", "text": "x" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert lines_of(path) == [{"key": "1"}]
        out.write({"key": "3"})
    assert lines_of(path) == [{"key": "1"}, {"key": "3"}]


def test_every_line_is_in_the_file_before_the_next_begins(tmp_path):
    path = tmp_path / "out"
    with LinesOut(path) as out:
        for count in range(1, 4):
            out.write({"text": "line\u2028\x85end"})
            assert len(path.read_bytes().splitlines()) == count


def test_control_c_leaves_whole_lines_and_code_130(source, tmp_path):
    count = 500
    source.write_text("".join(f'{{"id": {i}, "prompt": "Hi {i}"}}\n' for i in range(count)))
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        [*PROGRAM, source, "-o", out, "-n", "40", "--spec", "chain:3", *LOAD],
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while not (out.exists() and out.stat().st_size):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    answered = lines_of(out)
    started, ended, after = errors.decode().splitlines()
    assert started == f"{count} lines to answer"
    assert ended.startswith(f"{len(answered)} of {count} lines, ")
    assert after.startswith(f"stopped at {len(answered)} of {count} lines; the same command goes")
    assert 0 < len(answered) < count
    assert [record["id"] for record in answered] == list(range(len(answered)))
    assert all(record["text"] for record in answered)


@pytest.mark.parametrize(
    ("line", "known_id", "why"),
    [
        (b"[1]", None, "not a JSON object"),
        (b'"text"', None, "not a JSON object"),
        (b'{"id": "a", "prompt": "x"', None, "not JSON"),
        (b"\xff\xfe", None, "not UTF-8"),
        (b"[" * 100_000, None, "not JSON"),
        (b'{"id": 1' + b"0" * 5000 + b', "prompt": "x"}', None, "not JSON"),
        (b'{"prompt": "x"}', None, '"id" is missing'),
        (b'{"id": null, "prompt": "x"}', None, '"id" must be'),
        (b'{"id": true, "prompt": "x"}', None, '"id" must be'),
        (b'{"id": "\\ud800", "prompt": "x"}', None, "surrogate"),
        (b'{"id": 1}', 1, "neither"),
        (b'{"id": 1, "prompt": "x", "messages": []}', 1, "both"),
        (b'{"id": 1, "prompt": ""}', 1, '"prompt" must be'),
        (b'{"id": 1, "prompt": 5}', 1, '"prompt" must be'),
        (b'{"id": 1, "prompt": "\\udc00"}', 1, "surrogate"),
        (b'{"id": 1, "messages": []}', 1, "at least one"),
        (b'{"id": 1, "messages": "hi"}', 1, "at least one"),
        (b'{"id": 1, "messages": ["hi"]}', 1, '"messages"[0] must be an object'),
        (b'{"id": 1, "messages": [{"role": "robot", "content": "x"}]}', 1, '"role" must be'),
        (b'{"id": 1, "messages": [{"role": [], "content": "x"}]}', 1, '"role" must be'),
        (b'{"id": 1, "messages": [{"role": "user"}]}', 1, '"content" must be'),
    ],
)
def test_a_bad_line_says_what_is_wrong(line, known_id, why):
    bad = parse_line(line, 12)
    assert isinstance(bad, BadLine)
    assert (bad.number, bad.id) == (12, known_id)
    assert bad.error.startswith("line 12: ")
    assert why in bad.error


def test_a_byte_order_mark_and_blank_lines_are_passed_over(source):
    source.write_bytes(b'\xef\xbb\xbf{"id": 1, "prompt": "x"}\n\n  \n{"id": 2, "prompt": "y"}\n')
    assert read_prompts(source) == [
        Prompt(1, 1, ({"role": "user", "content": "x"},)),
        Prompt(4, 2, ({"role": "user", "content": "y"},)),
    ]


def test_an_input_without_a_line_is_refused(command, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    outcome = command(batch.main, empty, "-o", tmp_path / "out.jsonl")
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert "holds no line to answer" in outcome.err
    assert not (tmp_path / "out.jsonl").exists()
