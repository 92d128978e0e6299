"""specfit-bench: what it compares, what it reports, and what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from specfit.app import bench
from specfit.app.bench_result import Run, summarise
from specfit.app.bench_runs import rotation
from specfit.backend import CycleMeans, Report

LOAD = ("-c", "1024", "-t", "1")
MEANS = {
    *("mean_acceptance_length", "rows_per_cycle", "union_per_layer"),
    *("draft_ms", "plan_ms", "verify_ms", "observe_ms"),
    *("predicted_cycle_ms", "measured_cycle_ms", "predicted_committed", "measured_committed"),
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
        (["--repeat", "0"], "--repeat"),
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


def test_modes_run_side_by_side_and_take_turns_at_being_first():
    runs = list(rotation(prompts=3, modes=4, repeat=4))
    assert len(set(runs)) == len(runs) == 3 * 4 * 4
    groups = [runs[start : start + 4] for start in range(0, len(runs), 4)]
    for group in groups:
        assert len({(repeat, prompt) for repeat, prompt, _ in group}) == 1
        assert {mode for _, _, mode in group} == {0, 1, 2, 3}
    assert set(Counter(group[0][2] for group in groups).values()) == {3}


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
