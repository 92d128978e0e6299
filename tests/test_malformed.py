"""Whatever file a command is given: a sentence, in time, within bounds of memory, and no crash."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from badfiles import (
    INPUTS,
    LINES,
    MANIFESTS,
    OPTIONS,
    OUTPUTS,
    PROFILES,
    PROMPTS,
    SETTINGS,
    TRACES,
    trace,
)
from badgguf import HEADERS, MODELS
from badheads import HEADS, fitted
from badtemplates import TEMPLATES, templated
from tinymodel import write_float32_moe

Outcome = dict[str, Any]
# Seconds that a case may take on a slow machine, where most take a tenth; and MiB beside what a
# command has loaded before it reads anything.
SECONDS, MIB = 15.0, 512.0


class Ask:
    """Runs commands within limits, on a user's folders of its own: ask("chat", "-p", "Hi")."""

    def __init__(self, folder: Path) -> None:
        self.settings = folder / "CONFIG" / "specfit" / "config.toml"
        self.settings.parent.mkdir(parents=True)
        places = {f"XDG_{name}_HOME": str(folder / name) for name in ("CACHE", "CONFIG", "DATA")}
        self._server = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("badserver.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **places},
        )

    def __call__(self, command: str, *arguments: object) -> Outcome:
        assert self._server.stdin is not None and self._server.stdout is not None
        request = {"command": command, "arguments": list(map(str, arguments))}
        print(json.dumps(request), file=self._server.stdin, flush=True)
        outcome: Outcome = json.loads(self._server.stdout.readline())
        return outcome

    def close(self) -> None:
        self._server.communicate(timeout=10)


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    asking = Ask(tmp_path_factory.mktemp("user"))
    yield asking
    asking.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    write_float32_moe(path)
    return path


NOTICE = "drafting by n-grams alone: no draft head was given (-md)"
# Of a batch, where there is no terminal.
PROGRESS = re.compile(r"\d+ (of \d+ )?lines?\b")


def refused(outcome: Outcome, says: str) -> None:
    told = outcome["err"].splitlines()
    assert (outcome["code"], outcome["out"]) == (2, ""), outcome
    *notices, sentence = told
    assert re.search(says, sentence), sentence
    assert re.match(r"(specfit-)?\w+: ", sentence) and sentence.isprintable(), sentence
    notices = [notice for notice in notices if not PROGRESS.match(notice)]
    assert not notices or notices == [NOTICE]
    assert outcome["seconds"] < SECONDS
    assert outcome["mib"] < MIB


QUICK = ("-n", 2, "-t", 1, "-c", 256, "--spec", "off")
CHAT = ("chat", "-p", "Hi", "-n", 2, "-t", 1)


@pytest.mark.parametrize("name", [*HEADERS, *MODELS])
def test_a_bad_model_is_refused(ask: Ask, tmp_path: Path, name: str) -> None:
    write, says = (HEADERS | MODELS)[name]
    write(tmp_path / "bad.gguf")
    outcome = ask(*CHAT, "-m", tmp_path / "bad.gguf")
    refused(outcome, says)
    assert "bad.gguf" in outcome["err"]


@pytest.mark.parametrize("name", HEADS)
def test_a_bad_head_is_refused(ask: Ask, model: Path, tmp_path: Path, name: str) -> None:
    write, says = HEADS[name]
    fitted().save(tmp_path / "head")
    write(tmp_path / "head")
    outcome = ask(*CHAT, "-m", model, "-md", tmp_path / "head")
    refused(outcome, says)
    assert str(tmp_path / "head") in outcome["err"]
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_bad_template_makes_no_prompt(ask: Ask, tmp_path: Path, name: str) -> None:
    template, says = TEMPLATES[name]
    templated(template)(tmp_path / "model.gguf")
    refused(ask(*CHAT, "-m", tmp_path / "model.gguf"), says)
    assert not Path("ran").exists()


def test_the_same_head_and_template_without_damage_are_taken(
    ask: Ask, model: Path, tmp_path: Path
) -> None:
    fitted().save(tmp_path / "head")
    assert ask(*CHAT, "-m", model, "-md", tmp_path / "head")["code"] == 0
    templated("{{ messages[0].content }}")(tmp_path / "model.gguf")
    assert ask(*CHAT, "-m", tmp_path / "model.gguf")["code"] == 0


def test_lines_of_a_batch_fail_one_by_one(ask: Ask, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good = [b'{"id": "%s", "prompt": "Hi"}' % name for name in (b"first", b"last")]
    source.write_bytes(b"\n".join([good[0], *(line for line, _ in LINES), good[1]]) + b"\n")
    outcome = ask("batch", source, "-o", out, *QUICK)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    # UTF-16 has line ends of two bytes, so that one of its lines is two of ours.
    n_lines = source.read_bytes().count(b"\n")
    assert outcome["code"] == 2 and f"{n_lines - 2} of {n_lines} lines failed" in outcome["err"]
    assert outcome["seconds"] < 4 * SECONDS and outcome["mib"] < MIB
    assert [r["id"] for r in records if "error" not in r] == ["first", "last"]
    errors = [record["error"] for record in records if "error" in record]
    for _, says in LINES:
        found = next((error for error in errors if re.search(says, error)), None)
        assert found is not None, (says, errors)
        assert len(found) < 400
        errors.remove(found)


@pytest.mark.parametrize("name", INPUTS)
def test_a_bad_file_of_prompts_is_refused(ask: Ask, tmp_path: Path, name: str) -> None:
    write, says = INPUTS[name]
    write(tmp_path / "in")
    refused(ask("batch", tmp_path / "in", "-o", tmp_path / "out", *QUICK), says)


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_is_not_ours_is_left_as_it_is(ask: Ask, tmp_path: Path, name: str) -> None:
    write, says = OUTPUTS[name]
    out, source = tmp_path / "out", tmp_path / "in"
    source.write_text("Hi\n")
    write(out)
    before = out.read_bytes() if out.is_file() else None
    refused(ask("batch", source, "-o", out, *QUICK), says)
    assert before is None or out.read_bytes() == before


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_is_none_is_refused(ask: Ask, tmp_path: Path, name: str) -> None:
    write, says = MANIFESTS[name]
    (tmp_path / "in").write_text("Hi\n")
    write(tmp_path / "out.manifest.json")
    refused(ask("batch", tmp_path / "in", "-o", tmp_path / "out", *QUICK), says)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_bad_grammar_or_schema_is_refused(ask: Ask, tmp_path: Path, name: str) -> None:
    option, write, says = OPTIONS[name]
    (tmp_path / "in").write_text("Hi\n")
    write(tmp_path / "given")
    given = (option, tmp_path / "given")
    refused(ask("batch", tmp_path / "in", "-o", tmp_path / "out", *given, *QUICK), says)


@pytest.mark.parametrize("name", TRACES)
def test_a_bad_trace_is_refused(ask: Ask, tmp_path: Path, name: str) -> None:
    write, says = TRACES[name]
    path = tmp_path / f"trace.jsonl{'.gz' if name.endswith('.gz') else ''}"
    write(path)
    refused(ask("bench", "--replay", path, "--modes", "off", "--cost-profile", "gpu"), says)


@pytest.mark.parametrize("name", PROFILES)
def test_a_bad_cost_profile_is_refused(ask: Ask, tmp_path: Path, name: str) -> None:
    write, says = PROFILES[name]
    trace(1)(tmp_path / "trace.jsonl")
    write(tmp_path / "profile.json")
    given = ("--cost-profile", tmp_path / "profile.json")
    refused(ask("bench", "--replay", tmp_path / "trace.jsonl", "--modes", "off", *given), says)


@pytest.mark.parametrize("name", PROMPTS)
def test_bad_prompts_of_the_bench_are_refused(ask: Ask, tmp_path: Path, name: str) -> None:
    write, says = PROMPTS[name]
    write(tmp_path / "prompts")
    refused(ask("bench", "--prompts", tmp_path / "prompts"), says)


@pytest.mark.parametrize("name", SETTINGS)
def test_bad_settings_are_refused(ask: Ask, name: str) -> None:
    write, says = SETTINGS[name]
    write(ask.settings)
    try:
        refused(ask(*CHAT), says)
    finally:
        ask.settings.rmdir() if ask.settings.is_dir() else ask.settings.unlink()


def test_a_pipe_is_not_waited_for_to_be_hashed(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("Hi\n")
    os.mkfifo(tmp_path / "pipe")
    batch = ("batch", tmp_path / "in", "-o", tmp_path / "out")
    refused(ask(*batch, "-m", tmp_path / "pipe"), "is not an ordinary file")


def test_there_are_enough_of_them() -> None:
    tables = (HEADERS, MODELS, HEADS, TEMPLATES, LINES, INPUTS, OUTPUTS, MANIFESTS, OPTIONS)
    assert sum(map(len, (*tables, TRACES, PROFILES, PROMPTS, SETTINGS))) > 200
