"""specfit-report at work: the engine, replays, llama-bench, and the command with its bad inputs."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest
from reportcases import BUNDLED, MESSAGES, REPORT
from tracecases import made_up_trace, write_trace

from specfit.app import report, report_round
from specfit.app.entry import AppError
from specfit.app.interrupts import Interrupts
from specfit.app.prompts import Prompt
from specfit.app.report_context import CTX_STEP, LEAST_CTX, MOST_CTX, context_for
from specfit.app.report_measure import (
    Budget,
)
from specfit.app.report_page import page
from specfit.app.report_plain import PlainLoop, check_llama_bench, llama_bench
from specfit.app.report_plan import (
    BEGINS,
    OFF,
    PLAIN,
    SPECFIT,
    Placement,
    digest,
)
from specfit.app.report_programs import Placed
from specfit.app.report_replay import replay_all, trace_files
from specfit.app.report_round import Rounds
from specfit.app.report_store import RESULTS, Store
from specfit.app.report_visit import _check_room, profile_of
from specfit.backend import Engine, LoadOptions, Sampling, Spec
from specfit.backend.calibration import Measured
from specfit.backend.drafter import Drafter
from specfit.backend.profiles import load_profile
from specfit.backend.runtime import Runtime
from specfit.models import bundled_head
from specfit.planner import Before, CostPoint, DraftTree

# --- the engine

PROMPT = Prompt(1, 1, MESSAGES)
BREAD = "How do I bake bread at home? Explain every step. "

MODES = (OFF, PLAIN, "chain:2", "eagle3:60", "eagle3:64:8:16", "count", SPECFIT)


@pytest.fixture(scope="module")
def engine():
    """The bundled pair, with a line for the prompt and one for every mode."""
    with Engine.load(LoadOptions(ctx=1024, threads=1, lines=len(MODES))) as loaded:
        yield loaded


@pytest.fixture
def rounds(engine):
    with Interrupts() as interrupts:
        made = Rounds(engine, MODES, interrupts)
        yield made
        made.close()


def by_mode(found):
    return {one.mode: one for one in found}


def test_the_bare_loop_says_what_plain_decoding_says(rounds):
    plain, off = rounds.play(PROMPT, [PLAIN, OFF], 24)
    assert plain.report.text == off.report.text
    assert plain.report.completion_tokens == off.report.completion_tokens == 24
    assert plain.report.prompt_tokens == off.report.prompt_tokens
    assert plain.decoded == 23
    assert plain.report.tokens_per_second > 0


def test_the_bare_loop_keeps_keys_and_values_as_the_engine_does():
    wide = LoadOptions(ctx=512, threads=1, drafting=False, runtime=Runtime("f32", "f32"))
    with Engine.load(wide) as engine:
        engine.context.decode_prompt([1, 2, 3], line=0)
        loop = PlainLoop(engine.model, 512, 1)
        loop.begin([1, 2, 3])
        sizes = [
            llama.llama_state_seq_get_size(handle, 0)
            for handle in (engine.context.handle, loop._context)
        ]
        loop.close()
    assert sizes[0] == sizes[1]


def test_an_answer_given_in_turns_is_the_one_given_alone(rounds, bundled_engine, monkeypatch):
    """However short the turns are; and an answer ends with a whole cycle."""
    alone = {}
    for mode in MODES:
        if mode != PLAIN:
            bundled_engine.forget()
            generation = bundled_engine.generate(
                list(MESSAGES), sampling=Sampling(temp=0), spec=Spec.parse(mode), max_tokens=64
            )
            for _ in generation:
                pass
            alone[mode] = generation.tokens
    for seconds in (0.0, 0.4):
        monkeypatch.setattr(report_round, "SEGMENT_S", seconds)
        found = by_mode(rounds.play(PROMPT, MODES, 24))
        for mode, one in found.items():
            n = one.report.completion_tokens
            assert 24 <= n < 64
            assert one.decoded == n - 1
            assert one.report.text == digest(alone.get(mode, alone[OFF])[:24])
        for mode in ("chain:2", "eagle3:60"):
            assert found[mode].decoded == sum(cycle.committed for cycle in found[mode].cycles)


def test_a_mode_is_charged_for_its_own_cycles_and_all_time_is_shared_out(rounds):
    begun = time.perf_counter()
    found = by_mode(rounds.play(PROMPT, MODES, 24))
    whole_s = time.perf_counter() - begun
    for one in found.values():
        means, report = one.report.means, one.report
        cycles_s = means.measured_cycle_ms * report.cycles / 1e3
        assert cycles_s <= report.seconds + 1e-6
        assert report.seconds < one.took_s
        assert report.ttft_ms > 0
    assert 0.5 * whole_s < sum(one.took_s for one in found.values()) <= whole_s
    assert sum(one.report.seconds for one in found.values()) < whole_s


def test_modes_take_turns_and_each_catches_up_on_the_prompt_itself(rounds, engine, monkeypatch):
    spent: list[str] = []
    caught_up: list[int] = []
    segment, commit = Rounds._segment, Drafter.catch_up

    def noted(self, one, limit, *, settling):
        spent.append(one.mode)
        segment(self, one, limit, settling=settling)

    def caught(self, text):
        caught_up.append(self._n_pending)
        commit(self, text)

    monkeypatch.setattr(Rounds, "_segment", noted)
    monkeypatch.setattr(Drafter, "catch_up", caught)
    monkeypatch.setattr(report_round, "SEGMENT_S", math.inf)
    long = Prompt(2, 2, ({"role": "user", "content": BREAD * 60},))
    off, *_ = rounds.play(long, [OFF, "chain:2", "eagle3:60"], 32)
    assert len(engine.lines[0].tokens) > 600
    assert len([n for n in caught_up if n >= len(engine.lines[0].tokens)]) == 2
    assert spent[:3] != spent[3:6]
    assert set(spent[:3]) == set(spent[3:6]) == {OFF, "chain:2", "eagle3:60"}
    # How far the answer goes is a matter of the processor's rounding.
    decoded, part = off.report.completion_tokens - 1, 32 // report_round.TURNS
    assert decoded > part
    assert spent.count(OFF) == -(-decoded // part)


def test_a_segment_goes_on_as_behind_a_cycle_of_its_own_mode(rounds, engine, monkeypatch):
    seen: dict[int, list[tuple[int, Before]]] = {}
    step = report_round._OfEngine.step

    def noted(self):
        own = self.cycles[-1].rows if self.cycles else 1
        seen.setdefault(self._line.number, []).append((own, engine._ledger.before))
        step(self)

    monkeypatch.setattr(report_round, "SEGMENT_S", 0.0)
    monkeypatch.setattr(report_round._OfEngine, "step", noted)
    rounds.play(PROMPT, [OFF, "chain:2", "eagle3:60"], 32)
    assert len(seen) == 3
    for steps in seen.values():
        assert all(before == Before(own) for own, before in steps[1:])


def test_a_tree_has_its_sequences_beside_waiting_lines(engine):
    """63 leaves of one line: 64 sequences for all lines would be too few."""
    engine.forget()
    engine.context.decode_prompt([1, 2, 3], line=2)
    leaves = np.arange(63, dtype=np.int32)
    tree = DraftTree.of_roots([7]).grown(np.zeros(63, np.intp), leaves, np.full(63, 1 / 64), None)
    engine.context.decode_tree(tree, [2])
    engine.context.commit([[0, 63]])
    assert engine.context.n_past[2] == 5
    engine.forget()


def test_large_trees_leave_sequences_to_each_other():
    """Of the head's, which are fewer than these trees have paths together."""
    modes = [OFF, "eagle3:60", "eagle3:31", "eagle3:64:6:12", "eagle3:64:8:16"]
    with (
        Engine.load(LoadOptions(ctx=1024, threads=1, lines=6)) as engine,
        Interrupts() as interrupts,
    ):
        rounds = Rounds(engine, modes, interrupts)
        found = rounds.play(PROMPT, modes, 8)
        rounds.close()
    assert [one.mode for one in found] == modes


def test_a_round_ends_when_asked(engine):
    with Interrupts() as interrupts:
        rounds = Rounds(engine, MODES, interrupts)
        interrupts.pending = True
        with pytest.raises(KeyboardInterrupt):
            rounds.play(PROMPT, [OFF, PLAIN], 24)
        rounds.close()


def test_a_context_holds_the_longest_prompt_and_no_more_than_it_may(engine):
    words = Prompt(3, 3, ({"role": "user", "content": "Why is the sky blue? " * 200},))
    needed = engine.count_tokens(words.messages) + 40
    assert needed <= context_for(None, [PROMPT, words], 40) <= needed + 2 * CTX_STEP
    assert context_for(None, [PROMPT], 40) == LEAST_CTX
    nearly = Prompt(4, 4, ({"role": "user", "content": "Why is the sky blue? " * 270},))
    assert context_for(None, [nearly], 40) == MOST_CTX


def test_a_prompt_that_cannot_fit_is_named_before_anything_is_loaded():
    too_long = Prompt(4, "chat", ({"role": "user", "content": "Why is the sky blue? " * 2000},))
    with pytest.raises(AppError, match=r"chat, line 4: .* at most 2048 here"):
        context_for(None, [PROMPT, too_long], 40)


def test_a_prompt_that_does_not_fit_is_named_by_its_kind(bundled_engine):
    with pytest.raises(AppError, match="chat, line 3: prompt and answer need"):
        _check_room(bundled_engine, [Prompt(3, "chat", MESSAGES)], 1020)
    _check_room(bundled_engine, [Prompt(3, "chat", MESSAGES)], 900)


def test_a_calibration_is_kept_as_a_profile_that_plans_can_be_made_by(bundled_engine, tmp_path):
    points = [CostPoint(1, 8, 20.0), CostPoint(2, 8, 25.0), CostPoint(2, 12, 30.0)]
    path = tmp_path / "measured.json"
    path.write_text(
        json.dumps(
            profile_of(
                Measured(points, [1.0, 2.0], 0.5, 0.7, [], 0.1, 0.2, 0.01, 0.3), bundled_engine
            )
        )
    )
    cost = load_profile(str(path), np.ones(10), 8)
    assert cost.verify_ms(2, 120.0) == pytest.approx(30.0)
    assert cost.verify_ms(2, 80.0) == pytest.approx(25.0)
    assert cost.draft_ms([(0,)]) == pytest.approx(1.0)
    assert (cost.switch_ms, cost.settle_ms) == (0.5, 0.7)


# --- replays


def test_replays_are_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr("specfit.app.report_replay.MODES", ("off", "chain:1"))
    trace = made_up_trace(6, 2)
    path = tmp_path / "made.jsonl.gz"
    write_trace(path, trace)
    files = trace_files([path])
    with Store(tmp_path / "kept") as store:
        profile = store.profile_path("here")
        profile.parent.mkdir()
        profile.write_text(
            '{"draft_level_ms": 1, "points": [{"rows": 1, "union": 4, "ms": 20}, '
            '{"rows": 2, "union": 6, "ms": 22}]}'
        )
        for _ in range(2):
            replay_all(files, store, ["here", "elsewhere"], "command", Budget(None))
        (one,) = store.results.replays
        assert (one["trace"], one["profile"], one["steps"]) == ("made", "here", 12)
        assert [mode["mode"] for mode in one["modes"]] == ["off", "chain:1"]
        text = page(store.results, {}, "", None)
    assert "| `chain:1` |" in text
    assert "/s |" in text


# --- llama-bench


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def benched(path: Path) -> object:
    placement = Placement("here", "", {"A": "1"}, BUNDLED, None)
    with Interrupts() as interrupts:
        placed = Placed(Path("/some/where/m.gguf"), placement, 3, 99, n_cpu_moe=7)
        return llama_bench(path, placed, tokens=20, depth=50, interrupts=interrupts)


def test_llama_bench_is_asked_for_the_same_placement(tmp_path):
    seen = tmp_path / "seen"
    path = script(
        tmp_path / "bench",
        f'echo "$A $@" > {seen}; echo \'[{{"samples_ts": [9, 11, 10]}}]\'; echo "-p, --n-prompt"',
    )
    check_llama_bench(path)
    path = script(path, f'echo "$A $@" > {seen}; echo \'[{{"samples_ts": [9, 11, 10]}}]\'')
    found = benched(path)
    assert found.tokens_per_second == pytest.approx(10)
    assert found.error == pytest.approx(1 / 3**0.5)
    options = "-p 0 -n 20 -d 50 -t 3 -ngl 99 -ncmoe 7 -r 3"
    assert seen.read_text().split() == f"1 -m /some/where/m.gguf {options} -o json".split()
    assert found.command == f"A=1 llama-bench -m m.gguf {options}"


def test_a_llama_bench_that_fails_says_why(tmp_path):
    path = script(tmp_path / "bench", "echo out of memory >&2; exit 1")
    with pytest.raises(AppError, match="out of memory"):
        benched(path)
    with pytest.raises(AppError, match="no llama-bench that runs here: out of memory"):
        check_llama_bench(path)
    with pytest.raises(AppError, match="cannot be run"):
        check_llama_bench(tmp_path / "missing")


# --- the command


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"id": 1, "prompt": "Why is the sky blue?"}\n{"id": 2, "prompt": "Hello"}\n'
        '{"id": 3, "prompt": "What is bread?"}\n'
    )
    return path


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--prompts", "{prompts}"], "NAME=…"),
        (["--prompts", "a=/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--prompts", "a={prompts}", "--prompts", "a={prompts}"], "twice"),
        (["--prompts", "a={prompts}", "--modes", "specfit"], "lacks off"),
        (["--prompts", "a={prompts}", "--modes", "off,magic"], "magic"),
        (["--prompts", "a={prompts}", "--placement", "x=--magic"], "--magic"),
        (
            ["--prompts", "a={prompts}", "-m", "/no.gguf", "-md", "h", "--placement", "x="],
            "/no.gguf",
        ),
        (["--prompts", "a={prompts}", "-n", "1"], "-n"),
        (["--llama-bench", "/nowhere/llama-bench"], "/nowhere/llama-bench"),
        (["--llama-server", "/nowhere/llama-server"], "/nowhere/llama-server"),
        (["--trace", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--about", "/nowhere.txt"], "/nowhere.txt"),
        (["-o", "page.txt"], ".md"),
        (["--about", "{page}", "-o", "{page}"], "overwritten"),
        (["--prompts", "a={prompts}", "-m", "x.gguf"], "needs -md"),
        ([], "no results"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(command, prompts, tmp_path, arguments, reason):
    page_path = tmp_path / "page.md"
    page_path.write_text(BEGINS)
    filled = [one.format(prompts=prompts, page=page_path) for one in arguments]
    outcome = command(report.main, tmp_path / "kept", "-o", page_path, *filled)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("specfit-report: ")
    assert reason in outcome.err
    assert not (tmp_path / "kept").exists()


def test_a_page_is_not_written_over_anything_else_nor_of_nothing(command, prompts, tmp_path):
    path, folder = tmp_path / "page.md", tmp_path / "kept"
    path.write_text("mine")
    foreign = command(report.main, folder, "-o", path, "--prompts", f"a={prompts}")
    assert (foreign.code, path.read_text()) == (2, "mine")
    assert "holds something else already" in foreign.err
    path.write_text(BEGINS + " older")
    folder.mkdir()
    (folder / RESULTS).touch()
    torn = command(report.main, folder, "-o", path)
    assert (torn.code, path.read_text()) == (2, BEGINS + " older")
    assert "no whole round" in torn.err


def test_a_head_that_llama_server_cannot_compute_is_refused_before_anything_is_measured(
    command, prompts, tmp_path
):
    head = shutil.copytree(bundled_head(), tmp_path / "head")
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps(config | {"norm_output": True}))
    outcome = command(
        *(report.main, tmp_path / "kept", "-o", tmp_path / "page.md", "-md", head),
        *("--prompts", f"a={prompts}", "--llama-server"),
        script(tmp_path / "llama-server", "echo draft-eagle3"),
    )
    assert outcome.code == 2
    assert outcome.err == (
        f"specfit-report: The draft head {head} hands on normalised states, which llama.cpp "
        "cannot compute; leave --llama-server out\n"
    )
    assert not (tmp_path / "kept").exists()


def started(arguments: list[object]) -> subprocess.Popen[str]:
    command_line = [*REPORT, *map(str, arguments)]
    return subprocess.Popen(command_line, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for_runs(process: subprocess.Popen[str], results: Path, n: int) -> None:
    deadline = time.monotonic() + 60
    while not results.exists() or results.read_bytes().count(b'"record": "run"') < n:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)


def test_a_report_goes_on_where_it_was_killed_and_where_it_was_interrupted(
    command, prompts, tmp_path, bundled_engine
):
    """kill -9 behind the first round, then Ctrl-C in the third; then to the end, beside a
    placement that fails; then the page alone, and another placement of the same name."""
    folder, page_path = tmp_path / "kept", tmp_path / "page.md"
    results = folder / "results.jsonl"
    # The costs that this session has measured already.
    known = Path(os.environ["XDG_CACHE_HOME"]) / "specfit"
    shutil.copytree(known, folder / "cache" / "cpu" / "specfit")
    arguments = [
        *(folder, "--prompts", f"chat={prompts}", "--placement", "cpu=-t 1 -c 1024 -n 48"),
        *("--modes", "off,chain:2,specfit", "-o", page_path),
    ]
    process = started(arguments)
    wait_for_runs(process, results, 4)
    process.kill()
    process.communicate()
    kept = results.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    runs = kept.count(b'"record": "run"')
    assert 4 <= runs < 12
    assert not page_path.exists()

    process = started(arguments)
    wait_for_runs(process, results, runs + 1)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "| `cpu` |" in page_path.read_text()

    outcome = command(report.main, *arguments, "--placement", "broken=-c 1000000")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1].startswith("specfit-report: broken was not measured: -c ")
    assert results.read_bytes().startswith(kept)
    lines = [json.loads(line) for line in results.read_bytes().splitlines()]
    asked = {(line["id"], line["mode"]) for line in lines if line["record"] == "run"}
    assert asked >= {(id_, mode) for id_ in (1, 2) for mode in (OFF, PLAIN, "chain:2", SPECFIT)}
    assert (3, OFF) in asked
    written = page_path.read_text()
    cpu = "on the CPU, 4 lines, context 1024, 1 thread, EAGLE-3 head, n-grams"
    assert f"| `cpu` | {cpu} | 48 | 3 chat |" in written
    assert page_path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path) not in written
    profile = folder / "profiles" / "cpu.json"
    assert load_profile(str(profile), np.ones(10), 64).verify_ms(1, 80.0) > 0

    size = results.stat().st_size
    outcome = command(report.main, folder, "-o", page_path)
    assert (outcome.code, results.stat().st_size) == (0, size)
    assert page_path.read_text() == written

    results.write_text(results.read_text().replace('"segment_s"', '"earlier"'))
    outcome = command(report.main, folder, "-o", page_path)
    assert outcome.code == 2
    assert "name another folder" in outcome.err
    results.write_text(results.read_text().replace('"earlier"', '"segment_s"'))

    arguments[4] = "cpu=-t 1 -c 512 -n 48"
    outcome = command(report.main, *arguments)
    assert outcome.code == 2
    assert "another ctx_size (1024, now 512)" in outcome.err
    assert results.stat().st_size == size
