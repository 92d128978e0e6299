"""specfit-report: what it measures, keeps, claims and refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tracecases import made_up_trace

from specfit.app import report
from specfit.app.entry import AppError
from specfit.app.interrupts import Interrupts
from specfit.app.options import ModelChoice
from specfit.app.prompts import Prompt
from specfit.app.report_measure import (
    MOST_TOKENS,
    TARGET_ERROR,
    Budget,
    chosen_tokens,
    next_round,
    unfinished,
)
from specfit.app.report_page import page
from specfit.app.report_plain import PlainLoop, check_llama_bench, llama_bench
from specfit.app.report_plan import (
    OFF,
    PLAIN,
    SPECFIT,
    Asked,
    Placement,
    default_placements,
    parse_placement,
    parse_placements,
)
from specfit.app.report_replay import replay_all, trace_files
from specfit.app.report_stats import doubted, predicted, ratio, speed
from specfit.app.report_store import Results, Round, Store, Timed, record_of, timed_of
from specfit.app.report_visit import _Answers, _check_room, profile_of
from specfit.app.report_words import verdicts
from specfit.backend import CycleMeans, CycleReport, Report
from specfit.backend.calibration import Measured
from specfit.backend.profiles import load_profile
from specfit.backend.trace_file import TraceWriter
from specfit.planner import CostPoint

REPORT = (sys.executable, "-c", "from specfit.app.report import main; main()")
BUNDLED = ModelChoice(None, None, None, False, None, None, None, None)
MESSAGES = ({"role": "user", "content": "Why is the sky blue?"},)


def run(mode: str, tokens: int, seconds: float, cycles: list[CycleReport] | None = None) -> Timed:
    means = CycleMeans(1.0, 1.0, measured_cycle_ms=5, verify_ms=4, plan_ms=1, measured_committed=1)
    made = Report("text", "stop", 9, tokens + 1, 1.0, seconds, tokens, 0, 0, means)
    return Timed(mode, made, cycles or [], seconds)


def rounds_of(kind: str, **seconds: list[float]) -> list[Round]:
    """Rounds of 10 decoded tokens; seconds: of each mode, by round."""
    return [
        Round(
            "here",
            kind,
            f"{kind}-{i}",
            {m: run(m, 10, s) for m, s in zip(seconds, all_, strict=True)},
        )
        for i, all_ in enumerate(zip(*seconds.values(), strict=True))
    ]


def cycle(predicted_ms: float, ms: float, committed: int, seen: bool = True) -> CycleReport:
    return CycleReport(
        context=50, rows=3, accepted=committed - 1, committed=committed, union_per_layer=12.0,
        union_observed=seen, predicted_union=11.0, draft_ms=1, plan_ms=1, verify_ms=ms - 2,
        observe_ms=0, predicted_cycle_ms=predicted_ms, measured_cycle_ms=ms,
        predicted_committed=1.5,
    )  # fmt: skip


# --- what is asked for


def test_a_placement_has_variables_options_and_tokens():
    placement = parse_placement("fast=A=1 B='x y' -t 3 --n-cpu-moe 4 -c 512 -n 40", BUNDLED)
    assert placement.name == "fast"
    assert placement.environment == {"A": "1", "B": "x y"}
    assert (placement.choice.threads, placement.choice.n_cpu_moe) == (3, 4)
    assert (placement.choice.ctx_size, placement.tokens) == (512, 40)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing", "NAME=…"),
        ("../up=-t 1", "NAME=…"),
        ("a=-t none", "--placement a: "),
        ("a=--magic", "--magic"),
        ("a=-m other.gguf", "the same everywhere"),
        ("a='unclosed", "--placement a: "),
        ("a=--cpu-moe --n-cpu-moe 2", "contradict"),
        ("a=-n 1", "-n"),
    ],
)
def test_an_unsound_placement_is_refused_in_a_sentence(text, reason):
    with pytest.raises(AppError) as refused:
        parse_placement(text, BUNDLED)
    assert reason in str(refused.value)


def test_a_gpu_build_has_five_placements_unless_told_otherwise():
    placed = parse_placements(default_placements(True, 16, 48), BUNDLED)
    assert [(p.choice.threads, p.choice.n_cpu_moe) for p in placed] == [
        *((16, None), (8, None), (16, 24), (16, None), (16, 0)),
    ]
    assert [p.name for p in placed if p.environment] == ["streamed"]
    assert [p.name for p in parse_placements(default_placements(False, 2, 48), BUNDLED)] == ["cpu"]


def test_tokens_are_chosen_so_that_a_round_takes_its_time():
    assert chosen_tokens({"a": 0.1, "b": 0.1}) == 72
    assert chosen_tokens({"a": 5.0}) == 16
    assert chosen_tokens({"a": 0.0001}) == MOST_TOKENS


# --- rounds


ASKED = [Asked("chat", str(i), Prompt(i, i, MESSAGES)) for i in range(40)]


def played(seconds: dict[str, np.ndarray]) -> list[Round]:
    """What a cell has when it is played to its end; seconds: of each mode, by prompt."""
    rounds: list[Round] = []
    while (following := next_round(ASKED, rounds, list(seconds))) is not None:
        index, modes = following
        runs = {mode: run(mode, 10, seconds[mode][index]) for mode in modes}
        rounds.append(Round("here", "chat", ASKED[index].key, runs))
    return rounds


def test_a_cell_is_played_until_every_ratio_is_known_and_known_modes_sit_out():
    rng = np.random.default_rng(0)
    seconds = {
        OFF: 1 + 0.002 * rng.normal(size=40),
        "chain:1": 1 + 0.1 * rng.normal(size=40),
        "eagle3:60": 20 * (1 + 0.05 * rng.normal(size=40)),
        SPECFIT: 1 + 0.02 * rng.normal(size=40),
    }
    rounds = played(seconds)
    turns = {mode: sum(mode in r.runs for r in rounds) for mode in seconds}
    assert turns["eagle3:60"] <= 3 < turns["chain:1"] < 40
    assert turns[OFF] == turns[SPECFIT] == len(rounds)
    assert len({r.prompt for r in rounds}) == len(rounds)
    for mode in seconds:
        found = ratio(rounds, mode, OFF)
        assert found is not None
        assert found.error <= TARGET_ERROR
    firsts = [next(iter(r.runs)) for r in rounds[:4]]
    assert len(set(firsts)) > 2


def test_a_cell_ends_with_its_prompts_and_a_new_mode_gets_them_all():
    rng = np.random.default_rng(1)
    seconds = {OFF: np.ones(40), SPECFIT: rng.uniform(0.2, 3, 40)}
    rounds = played(seconds)
    assert len(rounds) == 40
    assert unfinished(rounds, [OFF, SPECFIT, "count"]) == [SPECFIT, "count"]
    following = next_round(ASKED, rounds, [OFF, SPECFIT, "count"])
    assert following is not None
    assert (following[0], set(following[1])) == (0, {OFF, SPECFIT, "count"})


def test_nothing_begins_that_would_not_end_in_time():
    budget = Budget(100.0, clock=lambda: 50.0)
    assert budget.has(40)
    assert not budget.has(45)
    assert Budget(None).has(1e9)


# --- figures


def test_ratios_are_of_sums_and_kinds_weigh_alike():
    """By hand: 10 tokens in 1 and 3 s of chat, in 4 s of math; off takes 2 s each time."""
    rounds = [
        *rounds_of("chat", off=[2, 2], specfit=[1, 3]),
        *rounds_of("math", off=[2], specfit=[4]),
    ]
    chat, both = rounds[:2], ratio(rounds, SPECFIT, OFF)
    found = ratio(chat, SPECFIT, OFF)
    assert found is not None
    assert found.value == pytest.approx(1.0)
    assert speed(chat, SPECFIT) == pytest.approx(20 / 4)
    assert both is not None
    assert both.value == pytest.approx((0.2 + 0.2) / (0.2 + 0.4))
    assert both.error == np.inf  # a single round of math tells nothing of its scatter
    assert ratio(rounds, "chain:1", OFF) is None


def test_standard_errors_are_the_scatter_of_repeated_measurements():
    rng = np.random.default_rng(2)
    found = []
    for _ in range(300):
        rounds = []
        for kind, n in (("chat", 12), ("math", 8)):
            hard = rng.uniform(0.5, 2, n)  # of the prompt: the same for both modes
            fast = hard * rng.lognormal(-0.3, 0.2, n)
            rounds += rounds_of(kind, off=hard.tolist(), specfit=fast.tolist())
        one = ratio(rounds, SPECFIT, OFF)
        assert one is not None
        found.append((one.value, one.error))
    values, errors = np.array(found).T
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(values.std(), rel=0.15)


def test_an_error_of_few_rounds_is_doubted_as_student_has_it():
    for n, t in ((3, 4.30), (4, 3.18), (6, 2.57), (20, 2.09)):
        assert 1.96 * doubted(1, n) == pytest.approx(t, rel=0.15)
    assert doubted(1, 1) == np.inf


def test_predictions_of_slow_and_fast_placements_weigh_alike():
    fast = [run("chain:2", 10, 1, [cycle(1.1, 1.0, 2), cycle(1.1, 1.0, 1)]) for _ in range(3)]
    slow = [run("chain:2", 10, 1, [cycle(90.0, 100.0, 2)] * 2) for _ in range(3)]
    found = predicted([fast, slow])
    assert found.cycles == 12
    assert found.cycle_ms is not None and found.committed is not None and found.union is not None
    assert found.cycle_ms.value == pytest.approx(0.0)
    assert found.committed.value == pytest.approx(1.5 / 1.75 - 1)
    assert found.union.value == pytest.approx(-1 / 12)
    assert predicted([[run("chain:2", 10, 1)]]).cycle_ms is None


# --- words


@pytest.mark.parametrize(
    ("specfit", "claim"),
    [
        ([0.80, 0.81, 0.79, 0.80, 0.82, 0.80], "wins: 1.2"),
        ([1.20, 1.21, 1.19, 1.20, 1.22, 1.20], "loses: 0.83"),
        ([0.80, 1.10, 0.85, 1.15, 0.90, 1.05], "no difference"),
        ([0.80, 0.85], "no difference"),  # of two prompts nothing is known
        ([0.80], "too few"),
    ],
)
def test_no_more_is_claimed_than_was_measured(specfit, claim):
    n = len(specfit)
    rounds = rounds_of("chat", off=[1.0] * n, **{"chain:1": [1.5] * n, "specfit": specfit})
    (sentence,) = verdicts("here", rounds)
    assert claim in sentence
    assert "`off`" in sentence
    assert ("A cycle of `specfit` gives 1.00 tokens" in sentence) == ("loses" in claim)


def results_of(rounds: list[Round]) -> Results:
    visit = {
        **{"placement": "here", "tokens": 16, "began": "2026-11-29T00:00:00", "machine": "a box"},
        "settings": {"model": ["m.gguf", 10**9], "environment": {"A": "1"}},
        **{"description": "M, on the CPU, 1 thread", "command": "specfit-report FOLDER"},
    }
    bench = {"placement": "here", "tokens_per_second": 9.0, "error": 0.1, "command": "llama-bench"}
    return Results([visit], rounds, [bench], [])


def test_the_page_says_what_was_measured_and_by_how_much_specfit_differs():
    rounds = rounds_of(
        "chat", **{OFF: [1.0] * 9, PLAIN: [0.9] * 9, "chain:1": [2.0] * 9, SPECFIT: [0.8] * 9}
    )
    text = page(results_of(rounds), {}, "routing: as published", None)
    assert "routing: as published" in text
    assert "`m.gguf` (M), 1.00 GB, on a box" in text
    assert "| `here` | A=1 on the CPU, 1 thread | 16 | 9 chat |" in text
    (compared,) = (line for line in text.splitlines() if line.startswith("| `here` | all"))
    cells = [cell.strip() for cell in compared.split("|")[3:-1]]
    assert cells == [
        *("`off`: 1.25 ± 0", "`chain:1`: 2.5 ± 0", "–", "–"),
        *("1.25 ± 0", "1.13 ± 0", "1.39 ± 0.015"),
    ]
    assert "| `specfit` | 12.5 | 1.25 ± 0 | 1.00 | 9 |" in text
    assert "specfit` wins" in text
    assert "Best chain: `chain:1`" in text


# --- the folder


def record(mode: str, prompt: str = "p", visit: int = 0, of: int = 2) -> dict[str, object]:
    where = {"placement": "here", "visit": visit, "kind": "chat", "prompt": prompt, "of": of}
    return {**record_of(run(mode, 10, 1.0, [cycle(5, 6, 2)])), **where, "id": 1}


def test_a_run_survives_the_file_it_is_kept_in():
    before = run("chain:2", 10, 1.25, [cycle(5, 6, 2), cycle(7, 8.5, 1, seen=False)])
    assert timed_of(json.loads(json.dumps(record_of(before)))) == before


def test_only_whole_rounds_count_and_a_torn_line_is_dropped(tmp_path):
    with Store(tmp_path) as store:
        for one in (record("off", "a"), record("specfit", "a"), record("off", "b")):
            store.add(one)
    whole = store.path.read_bytes()
    store.path.write_bytes(whole + json.dumps(record("specfit", "b")).encode()[:-9])
    with Store(tmp_path) as store:
        assert [r.prompt for r in store.results.rounds] == ["a"]
        assert store.path.read_bytes() == whole
        for mode in ("specfit", "off"):
            store.add(record(mode, "b", visit=1))
        assert [list(r.runs) for r in store.results.rounds] == [
            ["off", "specfit"],
            ["specfit", "off"],
        ]
    with Store(tmp_path) as store:
        assert [r.prompt for r in store.results.rounds] == ["a", "b"]


def test_a_folder_is_of_one_process_and_holds_nothing_else(tmp_path):
    with Store(tmp_path), pytest.raises(AppError, match="in use"):
        Store(tmp_path)
    (tmp_path / "results.jsonl").write_text('{"record": "visit"}\nnonsense\n')
    with pytest.raises(AppError, match="line 2"):
        Store(tmp_path)


# --- the engine


def test_the_bare_loop_says_what_plain_decoding_says(bundled_engine):
    with Interrupts() as interrupts:
        answers = _Answers(bundled_engine, interrupts)
        try:
            plain, off = (answers.timed(Prompt(1, 1, MESSAGES), m, 24) for m in (PLAIN, OFF))
        finally:
            answers.close()
    assert plain.report.text == off.report.text
    assert plain.report.completion_tokens == off.report.completion_tokens == 24
    assert plain.report.prompt_tokens == off.report.prompt_tokens
    assert plain.decoded == 23
    assert plain.report.tokens_per_second > 0


def test_the_bare_loop_stops_when_asked(bundled_engine):
    loop = PlainLoop(bundled_engine.model.handle, 512, 1)
    tokens, made = loop.answer(bundled_engine.prompt_tokens(list(MESSAGES)), 24, lambda: False)
    loop.close()
    assert (len(tokens), made.completion_tokens, made.cycles) == (1, 1, 0)


def test_an_answer_ends_with_a_whole_cycle(bundled_engine):
    with Interrupts() as interrupts:
        answers = _Answers(bundled_engine, interrupts)
        found = [answers.timed(Prompt(1, 1, MESSAGES), "eagle3:16:3:4", n) for n in range(8, 14)]
        answers.close()
    for n, one in enumerate(found, 8):
        assert one.report.completion_tokens >= n
        assert one.decoded == sum(c.committed for c in one.cycles)
    assert any(one.report.completion_tokens > n for n, one in enumerate(found, 8))


def test_a_prompt_that_does_not_fit_is_named_by_its_kind(bundled_engine):
    with pytest.raises(AppError, match="chat, line 3: prompt and answer need"):
        _check_room(bundled_engine, [Prompt(3, "chat", MESSAGES)], 1020)
    _check_room(bundled_engine, [Prompt(3, "chat", MESSAGES)], 900)


def test_a_calibration_is_kept_as_a_profile_that_plans_can_be_made_by(bundled_engine, tmp_path):
    points = [CostPoint(1, 8, 20.0), CostPoint(2, 8, 25.0), CostPoint(2, 12, 30.0)]
    path = tmp_path / "measured.json"
    path.write_text(
        json.dumps(profile_of(Measured(points, [1.0, 2.0], 0.5, [], 0.1), bundled_engine))
    )
    cost = load_profile(str(path), np.ones(10), 8)
    assert cost.verify_ms(2, 120.0) == pytest.approx(30.0)
    assert cost.verify_ms(2, 80.0) == pytest.approx(25.0)
    assert cost.draft_ms([0]) == pytest.approx(1.0)


# --- replays


def test_replays_are_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr("specfit.app.report_replay.MODES", ("off", "chain:1"))
    trace = made_up_trace(6, 2)
    path = tmp_path / "made.jsonl.gz"
    with TraceWriter(path, trace) as writer:
        for text in trace.texts:
            writer.add(text)
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
        return llama_bench(
            path, Path("/some/where/m.gguf"), placement, threads=3, gpu_layers=99, n_cpu_moe=7,
            tokens=20, depth=50, interrupts=interrupts,
        )  # fmt: skip


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
    path.write_text('{"id": 1, "prompt": "Why is the sky blue?"}\n{"id": 2, "prompt": "Hello"}\n')
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
    page_path.write_text("mine")
    filled = [one.format(prompts=prompts, page=page_path) for one in arguments]
    outcome = command(report.main, tmp_path / "kept", "-o", page_path, *filled)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("specfit-report: ")
    assert reason in outcome.err
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
    """kill -9 in the second round, then Ctrl-C in the next; then to the end, beside a placement
    that fails; then the page alone, and another placement of the same name."""
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
    wait_for_runs(process, results, 5)
    process.kill()
    process.communicate()
    kept = results.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    runs = kept.count(b'"record": "run"')
    assert runs >= 5
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
    assert asked == {(id_, mode) for id_ in (1, 2) for mode in (OFF, PLAIN, "chain:2", SPECFIT)}
    written = page_path.read_text()
    assert "| `cpu` | on the CPU, context 1024, 1 thread, EAGLE-3 head | 48 | 2 chat |" in written
    assert page_path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path) not in written
    profile = folder / "profiles" / "cpu.json"
    assert load_profile(str(profile), np.ones(10), 64).verify_ms(1, 80.0) > 0

    size = results.stat().st_size
    outcome = command(report.main, folder, "-o", page_path)
    assert (outcome.code, results.stat().st_size) == (0, size)
    assert page_path.read_text() == written

    arguments[4] = "cpu=-t 1 -c 512 -n 48"
    outcome = command(report.main, *arguments)
    assert outcome.code == 2
    assert "another options" in outcome.err
    assert results.stat().st_size == size
