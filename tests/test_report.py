"""specfit-report: what it measures, keeps, claims and refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from reportcases import BUNDLED, MESSAGES, cycle, rounds_of, run

from specfit.app.entry import AppError
from specfit.app.prompts import Prompt
from specfit.app.report_beside import unserved
from specfit.app.report_measure import (
    MOST_TOKENS,
    TARGET_ERROR,
    Budget,
    chosen_tokens,
    next_round,
    unfinished,
    visit_s,
)
from specfit.app.report_page import page
from specfit.app.report_plan import (
    OFF,
    PLAIN,
    SPECFIT,
    Asked,
    Plan,
    default_placements,
    parse_placement,
    parse_placements,
)
from specfit.app.report_stats import doubted, predicted, ratio, speed
from specfit.app.report_store import Results, Round, Store, record_of, timed_of
from specfit.app.report_words import verdicts

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
        ("a=-hfd owner/repo", "the same everywhere"),
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
    assert chosen_tokens({"a": 0.2, "b": 0.2}) == 96
    assert chosen_tokens({"a": 5.0}) == 32
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
        "chat",
        **{OFF: [1.0] * 9, PLAIN: [0.9] * 9, "chain:1": [2.0] * 9, SPECFIT: [0.8] * 9},
        **{"llama-server:0": [0.9] * 9, "llama-server:2": [0.7] * 9},
    )
    text = page(results_of(rounds), {}, "routing: as published", None)
    assert "routing: as published" in text
    assert "`m.gguf` (M), 1.00 GB, on a box" in text
    assert "| `here` | A=1 on the CPU, 1 thread | 16 | 9 chat |" in text
    (compared,) = (line for line in text.splitlines() if line.startswith("| `here` | all"))
    cells = [cell.strip() for cell in compared.split("|")[3:-1]]
    assert cells == [
        *("`off`: 1.25 ± 0", "`chain:1`: 2.5 ± 0", "`llama-server:2`: 0.875 ± 0", "–", "–"),
        *("1.25 ± 0", "1.13 ± 0", "1.39 ± 0.015"),
    ]
    assert "| `specfit` | 12.5 | 1.25 ± 0 | 1.00 | 9 |" in text
    assert "specfit` wins" in text  # of those that took turns with it
    assert "| `llama-server:2` | 14.29 | 1.43 ± 0 | 1.00 | 9 |" in text
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


def test_a_visit_is_expected_to_take_what_its_own_modes_take():
    took = {"load_s": 3.0, "warm_s": 2.0, "tokens": 20, "token_s": {OFF: 0.1, "eagle3:60": 9.0}}
    results, plan = Results(visits=[{"placement": "here", **took}]), Plan((), {}, (OFF, SPECFIT))
    assert visit_s(plan, results, "here") == 7.0  # by the warm-up
    modes = {PLAIN: 1.0, OFF: 1.0, SPECFIT: 2.0, "llama-server:4": 90.0, "eagle3:60": 50.0}
    runs = {mode: run(mode, 10, seconds) for mode, seconds in modes.items()}
    results.rounds.append(Round("here", "chat", "a", runs))
    assert visit_s(plan, results, "here") == 9.0


def test_llama_server_is_asked_a_prompt_once_however_many_rounds_and_kinds_it_is_in():
    both = {kind: [Asked(kind, key, ASKED[0].prompt) for key in "ab"] for kind in ("chat", "math")}
    plan, results = Plan((), both, (OFF,)), Results()
    for kind, prompt in [("chat", "a"), ("chat", "b"), ("chat", "a"), ("math", "a")]:
        results.rounds.append(Round("here", kind, prompt, {OFF: run(OFF, 10, 1.0)}))

    def waiting() -> list[tuple[str, str]]:
        return [(one.kind, one.key) for one, _ in unserved(plan, results, "here", 1)]

    expected = [("chat", "a"), ("chat", "b"), ("math", "a")]
    while expected:
        assert waiting() == expected
        kind, prompt = expected.pop(0)
        answer = {**record_of(run("llama-server:1", 10, 1.0)), "record": "server"}
        results.add({**answer, "placement": "here", "kind": kind, "prompt": prompt}, {})
    assert waiting() == []


def test_an_answer_of_llama_server_joins_the_round_of_its_prompt(tmp_path):
    served = {**record("llama-server:1", "b"), "record": "server", "command": "llama-server"}
    with Store(tmp_path) as store:
        for prompt in ("a", "b"):
            for mode in ("off", "specfit"):
                store.add(record(mode, prompt))
        store.add(served)
    with Store(tmp_path) as store:
        first, second = store.results.rounds
        assert list(first.runs) == ["off", "specfit"]
        assert list(second.runs) == ["off", "specfit", "llama-server:1"]
        assert len(store.results.servers) == 1
    store.path.write_text(json.dumps(served) + "\n")
    with pytest.raises(AppError, match="line 1"):
        Store(tmp_path)


def test_a_folder_is_of_one_process_and_holds_nothing_else(tmp_path):
    with Store(tmp_path), pytest.raises(AppError, match="in use"):
        Store(tmp_path)
    (tmp_path / "results.jsonl").write_text('{"record": "visit"}\nnonsense\n')
    with pytest.raises(AppError, match="line 2"):
        Store(tmp_path)
