"""specfit-chat without the chat: -p, pipes, no terminal, and what goes wrong there."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys

import pytest
from flowcases import Scripted
from tinymodel import write_float32_moe

from specfit.app import chat
from specfit.app.chat import SHOWCASE_QUESTION
from specfit.app.interrupts import Interrupts
from specfit.app.oneshot import print_answer
from specfit.backend import Engine, Sampling, Spec, library
from specfit.models import bundled_head, bundled_model

LOAD = ("-c", "1024", "-t", "1")
QUESTION = "Why is the sky blue?"
PROGRAM = [sys.executable, "-c", "from specfit.app.chat import main; main()", *LOAD]


def pipe_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def greedy(engine: Engine, messages: list[dict[str, str]], tokens: int) -> str:
    """What the engine itself answers at temperature 0."""
    engine.forget()
    generation = engine.generate(
        messages, sampling=Sampling(temp=0), max_tokens=tokens, spec=Spec.parse("off")
    )
    return "".join(generation)


def test_p_prints_the_answer_alone(command, bundled_engine):
    outcome = command(
        *(chat.main, "-p", QUESTION, "--temp", 0, "-n", 24, "--spec", "off", *LOAD),
    )
    messages = [{"role": "user", "content": QUESTION}]
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == greedy(bundled_engine, messages, 24) + "\n"


def test_a_pipe_is_the_question_and_system_the_system_prompt(command, monkeypatch, bundled_engine):
    pipe_in(monkeypatch, f"{QUESTION}\n".encode())
    outcome = command(
        *(chat.main, "--system", "You are a pirate.", "--temp", 0, "-n", 24, "--spec", "off"),
        *LOAD,
    )
    messages = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": QUESTION},
    ]
    assert outcome.code == 0
    assert outcome.out == greedy(bundled_engine, messages, 24) + "\n"


def test_without_a_terminal_one_question_is_answered_with_statistics(command, monkeypatch):
    pipe_in(monkeypatch, b"")
    outcome = command(chat.main, "-n", 24, "--spec", "chain:3", *LOAD)
    assert outcome.code == 0
    description, _, question, _, *answer, _, statistics = outcome.out.splitlines()
    assert "qwen3moe" in description
    assert question == f"> {SHOWCASE_QUESTION}"
    assert len(" ".join(answer)) > 10
    assert statistics.startswith("chain:3 · ")
    for part in ("tok/s", "acceptance length", "4.0 tokens checked in each (rows)"):
        assert part in statistics


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-p", "  "], "-p needs a text"),
        (["-p", "hi", "--spec", "magic"], "magic"),
        (["-p", "hi", "-m", "/nowhere/model.gguf"], "/nowhere/model.gguf"),
        (["-p", "hi", "-md", "/nowhere/head"], "/nowhere/head"),
        (["-p", "hi", "--cost-profile", "nonesuch"], "nonesuch"),
        (["-p", "word " * 1200, "--spec", "off", *LOAD], "context holds 1024"),
        (["-p", "hi", "-c", "9999999"], "-c 9999999"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(command, arguments, reason):
    outcome = command(chat.main, *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("specfit-chat: ")
    assert reason in outcome.err


def test_files_that_are_no_models_are_one_sentence(command, tmp_path):
    text = tmp_path / "text.gguf"
    text.write_text("This is not a model.\n" * 40)
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (text, folder):
        outcome = command(chat.main, "-p", "hi", "-m", path)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert str(path) in outcome.err


def test_a_truncated_model_is_one_sentence(command, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(bundled_model().read_bytes()[:-5000])
    outcome = command(chat.main, "-p", "hi", "-m", cut)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "cut.gguf" in outcome.err
    assert "bytes" in outcome.err


def test_the_head_of_another_model_is_refused_with_the_reason(command, tmp_path):
    write_float32_moe(tmp_path / "other.gguf")
    outcome = command(chat.main, "-p", "hi", "-m", tmp_path / "other.gguf", "-md", bundled_head())
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "hidden size 256" in outcome.err


@pytest.mark.skipif(library.supports_gpu(), reason="this build has a GPU")
def test_gpu_layers_without_a_gpu_are_refused_with_the_remedy(command):
    outcome = command(chat.main, "-p", "hi", "--gpu-layers", "10")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "make setup GPU=" in outcome.err


def test_an_argument_that_is_no_text_is_one_sentence(command):
    outcome = command(chat.main, "-p", b"\xff\xfe".decode("utf-8", "surrogateescape"), *LOAD)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "UTF-8" in outcome.err


def test_piped_bytes_that_are_no_text_are_refused(command, monkeypatch):
    pipe_in(monkeypatch, b"\xff\xfe\x00")
    outcome = command(chat.main)
    assert outcome.code == 2
    assert outcome.err == "specfit-chat: what is piped in is not UTF-8 text\n"


CLOSED = b"specfit-chat: standard output is closed, so there is nobody to answer\n"


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [("<&-", 0, b""), (">&-", 2, CLOSED), ("<&- >&- 2>&-", 2, b""), ("2>&-", 0, b"")],
)
def test_a_question_is_answered_where_somebody_listens(redirection, code, said):
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {redirection}', "sh", *PROGRAM, "-n", "2", "--spec", "off"],
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_an_encoding_that_lacks_a_character_is_no_error():
    done = subprocess.run(
        [*PROGRAM, "--spec", "off", "-n", "2"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"off ? " in done.stdout


# So hot that it hardly comes to an end by itself.
HOT = "--temp 9 --top-k 0 --top-p 1 --min-p 0"
ENDLESS = (*PROGRAM, "-p", "la", "-n", "3000", *HOT.split())


def test_a_reader_that_leaves_ends_it_quietly():
    process = subprocess.Popen(
        [*ENDLESS, "--spec", "off"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(4)
    process.stdout.close()
    assert process.wait(60) == 128 + 13
    assert process.stderr.read() == b""
    process.stderr.close()


def test_control_c_keeps_what_was_printed():
    process = subprocess.Popen(
        [*ENDLESS, "--spec", "eagle3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    first = process.stdout.read(4)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (first + rest).endswith(b"\n")
    assert errors.strip() == b""


def test_a_terminal_without_a_screen_is_told_what_works_there(command, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(getattr(sys, name), "isatty", lambda: True, raising=False)
    outcome = command(chat.main)
    assert outcome.code == 2
    assert "(TERM=dumb) has no screen to draw on; ask with -p TEXT" in outcome.err


@pytest.mark.parametrize(("opens", "begin"), [(True, ""), (False, "<think>\n")])
@pytest.mark.parametrize("end", ["</think>\n\nTea is hot.", ""])
def test_what_the_model_thinks_is_no_part_of_the_answer(capsys, opens, begin, end):
    generation = Scripted(f"{begin}Let me see.{end}", opens=opens).generate(
        [], sampling=Sampling(), thinking=None
    )
    generation.filled_context = False
    print_answer(generation, Interrupts())
    written = capsys.readouterr()
    assert written.out == ("Tea is hot.\n" if end else "\n")
    assert ("end of its thinking" in written.err) != bool(end)
    assert "Let me see" not in written.err  # which is no terminal
