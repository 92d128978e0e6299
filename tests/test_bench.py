"""specfit-bench: what it compares, what it reports, and what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from specfit.app import bench
from specfit.app.bench_result import Run, summarise
from specfit.app.bench_runs import schedule
from specfit.app.bench_trace import record_prompts
from specfit.app.entry import AppError
from specfit.app.interrupts import Interrupts
from specfit.app.prompts import Prompt
from specfit.app.turns import order_of_round
from specfit.backend import CycleMeans, Report, Sampling
from specfit.backend.trace_file import read_trace
from specfit.backend.tracing import record

LOAD = ("-c", "1024", "-t", "1")
MEANS = {
    *("mean_acceptance_length", "rows_per_cycle", "union_per_layer"),
    *("draft_ms", "plan_ms", "verify_ms", "observe_ms", "union_observed"),
    *("predicted_cycle_ms", "measured_cycle_ms", "predicted_committed", "measured_committed"),
    *("predicted_union", "hits", "misses", "uploaded", "padding"),
}
KEYS = MEANS | {
    *("mode", "tokens", "seconds", "tokens_per_second", "cycles", "ttft_ms", "same_text", "ratio")
}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": 1, "prompt": "Why is the sky blue?"}\n{"id": 2, "prompt": "Hello"}\n')
    return path


def test_every_mode_is_run_and_reported(command, prompts, tmp_path):
    out = tmp_path / "result.json"
    out.write_text("an older result")
    modes = ["off", "chain:3", "eagle3:16:3:4", "specfit"]
    outcome = command(
        *(bench.main, "--prompts", prompts, "--modes", ",".join(modes), "-n", 24, "--repeat", 2),
        *("--temp", 0, "--json", out, *LOAD),
    )
    assert (outcome.code, outcome.err) == (0, "")
    about, *table = outcome.out.splitlines()
    assert "temperature 0, seed 1" in about
    assert "prompts.jsonl" in about
    assert [row.split()[0] for row in table[-4:]] == modes

    result = json.loads(out.read_text())
    assert [mode["mode"] for mode in result["modes"]] == modes
    assert result["baseline"] == "off"
    assert (result["prompts"], result["repeat"], result["predict"]) == (2, 2, 24)
    for mode in result["modes"]:
        assert set(mode) == KEYS
        assert all(isinstance(value, int | float) for key, value in mode.items() if key != "mode")
        assert mode["cycles"] > 0
        assert mode["tokens_per_second"] > 0
        assert mode["measured_committed"] == mode["mean_acceptance_length"]
        assert 0 <= mode["same_text"] <= 1
    off, chain, eagle, _ = result["modes"]
    assert off["tokens"] == off["cycles"] + 4  # the first token of each run comes with the prompt
    assert (off["ratio"], off["same_text"]) == (1, 1)
    assert (off["mean_acceptance_length"], off["rows_per_cycle"], off["draft_ms"]) == (1, 1, 0)
    assert 1 < chain["mean_acceptance_length"] <= chain["rows_per_cycle"] <= 4
    assert chain["rows_per_cycle"] < eagle["rows_per_cycle"] <= 16


def test_several_answers_at_a_time_are_compared_by_what_all_prompts_take(
    command, prompts, tmp_path
):
    out = tmp_path / "result.json"
    modes = ["off", "off@2", "specfit@2"]
    outcome = command(
        *(bench.main, "--prompts", prompts, "--modes", ",".join(modes), "-n", 12, "--temp", 0),
        *("--repeat", 2, "--json", out, *LOAD),
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert [row.split()[0] for row in outcome.out.splitlines()[-3:]] == modes
    single, lines, _ = json.loads(out.read_text())["modes"]
    assert (single["ratio"], single["decoding_ratio"], single["same_text"]) == (1, 1, 1)
    assert (single["lines"], single["tokens"]) == (1, lines["tokens"])
    assert 1 < lines["lines"] <= 2
    assert lines["lines"] == lines["rows_per_cycle"]
    assert 0 < lines["tokens_per_second"] < lines["decoding_tokens_per_second"]


def test_auto_takes_the_lines_that_the_engine_chose(command, prompts):
    outcome = command(
        *(bench.main, "--prompts", prompts, "--modes", "off,off@auto", "-n", 8, *LOAD)
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[-1].startswith("off@auto")


def test_without_off_the_first_mode_is_what_others_are_compared_with(command, prompts, tmp_path):
    out = tmp_path / "result.json"
    outcome = command(
        *(bench.main, "--prompts", prompts, "--modes", "chain:2,chain:3", "-n", 8),
        *("--json", out, *LOAD),
    )
    assert outcome.code == 0
    result = json.loads(out.read_text())
    assert result["baseline"] == "chain:2"
    assert result["modes"][0]["ratio"] == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--modes", "off,magic"], "magic"),
        (["--modes", "off,,specfit"], "empty mode"),
        (["--modes", ""], "empty mode"),
        (["--modes", "off,specfit@0"], "N from 1 to 63"),
        (["--modes", "off,specfit@many"], "MODE@auto"),
        (["--modes", "off@2,specfit@auto"], "compare it with one line"),
        (["--modes", "off@2", "--audit"], "--audit and --plot"),
        (["--repeat", "0"], "--repeat"),
        (["--ablate"], "--ablate needs --replay"),
        (["--trace", "t.jsonl", "--modes", "off"], "--modes does not go with --trace"),
        (["--trace", "t.jsonl", "--json", "r.json"], "--json does not go with --trace"),
        (["--trace", "/nowhere/t.jsonl"], "/nowhere/t.jsonl"),
        (["--plot", "r.txt"], "must end in"),
        (["--json", "/nowhere/result.json"], "/nowhere/result.json"),
        (["--modes", "off", "-n", "2000", *LOAD], "line 1: prompt and answer need"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(command, prompts, arguments, reason):
    outcome = command(bench.main, "--prompts", prompts, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("specfit-bench: ")
    assert reason in outcome.err


def test_without_prompts_or_a_trace_there_is_nothing_to_do(command):
    outcome = command(bench.main)
    assert (outcome.code, outcome.out) == (2, "")
    assert "--prompts" in outcome.err


def test_predictions_are_audited_and_drawn(command, prompts, tmp_path):
    out, plot = tmp_path / "result.json", tmp_path / "plot.png"
    outcome = command(
        *(bench.main, "--prompts", prompts, "--modes", "off,chain:2,eagle3:8:2:3", "-n", 24),
        *("--temp", 0, "--audit", "--json", out, "--plot", plot, *LOAD),
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert [row.split()[0] for row in outcome.out.splitlines()[-3:]] == [
        *("chain:2", "eagle3:8:2:3", "forced"),
    ]
    result = json.loads(out.read_text())
    chain, eagle, forced = result["audit"]
    assert forced["cycles_of"] == "forced"
    assert forced["cycles"] == chain["cycles"] + eagle["cycles"]
    for one in (chain, eagle, forced):
        for quantity in ("cycle_ms", "one_cycle_ms", "committed"):
            assert one[quantity]["error"] > 0
        assert abs(one["committed"]["value"]) < 1


def test_a_recorded_trace_can_be_replayed(command, prompts, tmp_path):
    path = tmp_path / "trace.jsonl"
    asked = ("--prompts", prompts, "--trace", path, "-n", 6, "--temp", 0.7, *LOAD)
    outcome = command(bench.main, *asked)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"{path}: 12 tokens of 2 answers\n"
    trace = read_trace(path)
    assert [text.name for text in trace.texts] == ["1", "2"]
    assert trace.about["sampling"]["temp"] == 0.7
    for text in trace.texts:
        for step, following in zip(text.steps, text.steps[1:], strict=False):
            assert len(step.tree) > 40
            assert following.tree.tokens[0] == step.next
    replayed = command(bench.main, "--replay", path, "--modes", "off,chain:2,specfit")
    assert (replayed.code, replayed.err) == (0, "")
    kept, again = path.read_bytes(), command(bench.main, *asked)
    assert (again.code, path.read_bytes()) == (2, kept)
    assert "is there already" in again.err


def test_an_interrupted_recording_is_a_shorter_trace(bundled_engine, tmp_path, monkeypatch):
    """Ctrl-C in the second answer, after its third token."""
    path, interrupts, asked = tmp_path / "trace.jsonl", Interrupts(), []

    def interrupted_record(*arguments):
        *rest, goes_on = arguments

        def counted():
            asked.append(None)
            interrupts.pending = len(asked) > 4 + 3
            return goes_on()

        return record(*rest, counted)

    monkeypatch.setattr("specfit.backend.tracing.record", interrupted_record)
    messages = ({"role": "user", "content": "Hello"},)
    prompts = [Prompt(number, number, messages) for number in (1, 2, 3)]
    with pytest.raises(KeyboardInterrupt):
        record_prompts(bundled_engine, prompts, Sampling(temp=0), 4, path, interrupts)
    assert [len(text.steps) for text in read_trace(path).texts] == [4, 3]


def test_a_model_without_a_head_is_not_traced_and_the_old_file_stays(
    bundled_engine, tmp_path, monkeypatch
):
    path = tmp_path / "trace.jsonl"
    path.write_text("an older trace")
    monkeypatch.setattr(bundled_engine.lines[0], "drafter", None)
    with pytest.raises(AppError, match="draft head"):
        record_prompts(bundled_engine, [], Sampling(temp=0), 4, path, Interrupts())
    assert path.read_text() == "an older trace"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"id": 1, "prompt": "x"}\nbroken\n', "line 2: not JSON"),
        ("\n", "holds no prompts"),
    ],
)
def test_unsound_prompts_are_refused(command, tmp_path, content, reason):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    outcome = command(bench.main, "--prompts", path, "-m", "/nowhere.gguf")
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert str(path) in outcome.err
    assert reason in outcome.err


def test_modes_run_side_by_side():
    runs = list(schedule(prompts=3, modes=4, repeat=4))
    assert len(set(runs)) == len(runs) == 3 * 4 * 4
    groups = [runs[start : start + 4] for start in range(0, len(runs), 4)]
    for group in groups:
        assert len({(repeat, prompt) for repeat, prompt, _ in group}) == 1
        assert {mode for _, _, mode in group} == {0, 1, 2, 3}


@pytest.mark.parametrize("modes", range(1, 12))
def test_each_mode_is_first_and_follows_each_other_one_equally_often(modes):
    rounds = modes if modes % 2 == 0 else 2 * modes
    orders = [order_of_round(modes, round_) for round_ in range(rounds)]
    assert all(sorted(order) == list(range(modes)) for order in orders)
    assert set(Counter(order[0] for order in orders).values()) == {rounds // modes}
    pairs = Counter(pair for order in orders for pair in pairwise(order))
    assert len(pairs) == modes * (modes - 1)
    assert len(set(pairs.values())) <= 1


def report(text: str, tokens: int, seconds: float, cycles: int, rows: float) -> Report:
    return Report(
        text=text,
        finish_reason="length",
        prompt_tokens=5,
        completion_tokens=tokens,
        ttft_ms=10,
        seconds=seconds,
        cycles=cycles,
        drafted=0,
        accepted=0,
        means=CycleMeans(rows_per_cycle=rows),
    )


def test_ratios_are_paired_and_means_weigh_every_cycle_alike():
    """By hand: a mode twice, thrice and once as fast as off on three prompts."""
    runs = []
    for prompt, (off_s, mode_s) in enumerate([(1.0, 0.5), (3.0, 1.0), (0.25, 0.25)]):
        runs.append(Run(0, prompt, 0, report("same", 11, off_s, 10, 1)))
        runs.append(Run(1, prompt, 0, report("same" if prompt else "new", 11, mode_s, 5, 4)))
    runs[-1] = Run(1, 2, 0, report("same", 11, 0.25, 10, 1))
    off, mode = summarise(["off", "chain:3"], runs)
    assert (off.ratio, off.same_text) == (1, 1)
    assert mode.ratio == 2
    assert mode.same_text == pytest.approx(2 / 3)
    assert (mode.tokens, mode.cycles, mode.ttft_ms) == (33, 20, 10)
    assert mode.seconds == pytest.approx(1.75)
    assert mode.tokens_per_second == pytest.approx(30 / 1.75)
    assert mode.means.rows_per_cycle == pytest.approx((5 * 4 + 5 * 4 + 10 * 1) / 20)


def test_answers_of_one_token_have_no_speed():
    runs = [Run(mode, 0, 0, report("x", 1, 0, 0, 0)) for mode in (0, 1)]
    _, mode = summarise(["off", "specfit"], runs)
    assert (mode.tokens_per_second, mode.ratio, mode.cycles) == (0, None, 0)
