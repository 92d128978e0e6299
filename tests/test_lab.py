"""The lab: replays of made-up traces, costs that drift under them, and what is reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tracecases import LAYERS, made_up_trace, repeating, write_trace

from specfit.app import bench
from specfit.app.bench_audit import Predictions, audit, fit_of_verify_ms
from specfit.app.bench_plot import BINS, binned
from specfit.app.bench_replay import MODES
from specfit.backend import CycleReport
from specfit.backend.profiles import shipped_profiles
from specfit.planner import CycleCost, DraftTree
from specfit.planner.experts import sizes
from specfit.planner.lab import NOISE, NOISY, PARTS, Believing, Lab
from specfit.planner.replay import ReplayedCycle
from specfit.planner.spells import SPELL
from specfit.planner.trace import Trace

CHANGE = 80  # the cycle in which costs change


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab(made_up_trace(450))


def machine(
    *, row_ms: float = 1.0, expert_ms: float = 0.1, draft_ms: float = 0.3, fixed_ms: float = 20.0
) -> CycleCost:
    rows_ms = fixed_ms + row_ms * np.arange(65)
    return CycleCost(rows_ms, np.full(65, expert_ms), np.ones(LAYERS), np.array([draft_ms]))


def drifting(lab: Lab, before: CycleCost, after: CycleCost, mode: str) -> list[ReplayedCycle]:
    return lab.take(mode, before, lambda cycle: before if cycle < CHANGE else after)


def rows(cycles: list[ReplayedCycle]) -> float:
    return float(np.mean([cycle.rows for cycle in cycles]))


def drafted(cycles: list[ReplayedCycle]) -> float:
    return float(np.mean([cycle.levels > 0 for cycle in cycles]))


def committed(cycles: list[ReplayedCycle]) -> int:
    return sum(cycle.committed for cycle in cycles)


def speed(cycles: list[ReplayedCycle]) -> float:
    return committed(cycles) / sum(cycle.ms for cycle in cycles)


def rest_of(cycles: list[ReplayedCycle], *, behind: int) -> list[ReplayedCycle]:
    """The cycles that begin behind so many tokens."""
    begins = np.cumsum([0, *(cycle.committed for cycle in cycles)])
    return [cycle for cycle, at in zip(cycles, begins, strict=False) if at >= behind]


def foreseen(cycles: list[ReplayedCycle]) -> float:
    return sum(c.predicted_ms for c in cycles) / sum(c.ms for c in cycles)


class TestDrift:
    @pytest.mark.parametrize("mode", ["specfit", "specfit:ratio", "count", "chain:2"])
    def test_costs_that_double_are_predicted_within_20_cycles(self, lab: Lab, mode: str) -> None:
        after = machine(row_ms=2.0, expert_ms=0.2, draft_ms=0.6, fixed_ms=40.0)
        cycles = drifting(lab, machine(), after, mode)
        assert foreseen(cycles[:CHANGE]) == pytest.approx(1, abs=0.02)
        assert foreseen(cycles[CHANGE : CHANGE + 3]) < 0.75
        assert foreseen(cycles[CHANGE + 20 : CHANGE + 70]) == pytest.approx(1, abs=0.03)

    @pytest.mark.parametrize("times", [2, 5])
    def test_plans_fit_dearer_rows_and_experts_within_50_cycles(self, lab: Lab, times: int) -> None:
        """Then they are as good as those of a planner that knew, on the same rest of the text."""
        after = machine(row_ms=1.0 * times, expert_ms=0.1 * times)
        cycles = drifting(lab, machine(), after, "specfit")
        late = cycles[CHANGE + 50 :]
        knew = rest_of(lab.take("specfit", after), behind=committed(cycles[: CHANGE + 50]))
        assert rows(cycles[:CHANGE]) > 1.2 * rows(late)
        assert speed(late) > 0.95 * speed(knew)

    def test_drafting_ends_within_50_cycles_of_its_price_doubling_beyond_its_worth(
        self, lab: Lab
    ) -> None:
        before, after = machine(draft_ms=7.0), machine(draft_ms=14.0)
        cycles = drifting(lab, before, after, "specfit")
        assert drafted(cycles[:CHANGE]) > 0.5
        assert drafted(cycles[CHANGE + 50 :]) < 0.15

    def test_drafting_begins_again_when_it_gets_cheap(self, lab: Lab) -> None:
        cycles = drifting(lab, machine(draft_ms=12.0), machine(), "specfit")
        assert drafted(cycles[:CHANGE]) < 0.3
        assert drafted(cycles[-50:]) > 0.8

    def test_plain_cycles_that_were_measured_too_dear_are_found_out(self, lab: Lab) -> None:
        """Where every cycle drafts, only a spell of plain ones tells."""
        believed = machine()
        plain_ms = believed.rows_ms.copy()
        plain_ms[1] *= 0.6
        real = replace(believed, rows_ms=plain_ms)
        plain = speed(lab.take("off", real))
        cycles = lab.take("specfit", believed, lambda _: real)
        assert drafted(cycles[:100]) == 1 and speed(cycles[:100]) < 0.9 * plain
        assert drafted(cycles[150:]) < 0.4 and speed(cycles[150:]) > 0.92 * plain

    def test_spells_of_plain_cycles_take_little_time_where_drafts_pay(self, lab: Lab) -> None:
        cycles = lab.take("specfit", machine())
        plain = [cycle for cycle in cycles if not cycle.drafted]
        assert SPELL <= len(plain) < 0.05 * len(cycles)


class TestModes:
    def test_the_oracle_is_ahead_of_every_mode_and_the_best_fixed_tree_of_chains(
        self, lab: Lab
    ) -> None:
        cost = machine(row_ms=2.0)

        oracle = speed(lab.take("oracle", cost))
        static = speed(lab.take_fixed(lab.static_shape(cost), cost))
        for mode in ("off", "chain:1", "chain:3", "specfit", "count"):
            assert oracle > speed(lab.take(mode, cost))
        for mode in ("off", "chain:1", "chain:2", "chain:3"):
            assert static > 0.99 * speed(lab.take(mode, cost))

    def test_every_mode_commits_the_whole_text(self, lab: Lab) -> None:
        for mode in ("off", "chain:3", "eagle3:16", "specfit", "oracle"):
            assert committed(lab.take(mode, machine())) == 450

    @pytest.mark.parametrize("mode", ["off", "chain:2", "eagle3:8", "count", "specfit"])
    def test_several_lines_commit_all_their_texts(self, mode: str) -> None:
        several = Lab(made_up_trace(60, texts=5))
        cycles = several.take(mode, machine(), lines=3)
        assert committed(cycles) == 300
        assert all(cycle.rows >= 3 for cycle in cycles[:15])
        if mode != "off":
            assert max(cycle.rows for cycle in cycles) > 3

    def test_lines_and_drafts_together_beat_either(self) -> None:
        several = Lab(made_up_trace(120, texts=8))
        cost = machine(row_ms=0.3)
        both = speed(several.take("specfit", cost, lines=4))
        assert both > 1.02 * speed(several.take("off", cost, lines=4))
        assert both > 1.02 * speed(several.take("specfit", cost))

    def test_lines_without_drafts_are_kept_where_rows_are_dear(self) -> None:
        several = Lab(made_up_trace(120, texts=8))
        cost = machine(row_ms=15.0, expert_ms=0.5)
        plain = speed(several.take("off", cost, lines=4))
        assert speed(several.take("specfit", cost, lines=4)) > 0.98 * plain

    def test_drafts_do_not_know_where_a_text_ends(self) -> None:
        trace = repeating()
        short = replace(trace.texts[0], steps=trace.texts[0].steps[:50])
        ends = Lab(replace(trace, texts=(short, trace.texts[0])))
        cycles = ends.take("chain:16", machine(), drafters=("ngram",))
        committed_by = np.cumsum([cycle.committed for cycle in cycles])
        last = cycles[np.flatnonzero(committed_by == len(short.steps))[0]]
        begins, limit = len(short.steps) - last.committed, len(trace.texts[0].steps)
        assert last.rows == 1 + limit - begins

    def test_a_dense_model_is_replayed_too(self) -> None:
        trace = made_up_trace(40)
        steps = [
            replace(step, experts=np.zeros((len(step.tree), 0, 0), np.uint64))
            for step in trace.texts[0].steps
        ]
        text = replace(trace.texts[0], steps=tuple(steps))
        dense = Lab(Trace(LAYERS, 0, 0, {}, (text,)))
        cost = replace(machine(), layer_weights=np.zeros(0))
        for mode in ("off", "chain:2", "specfit", "oracle"):
            cycles = dense.take(mode, cost)
            assert {c.union for c in cycles} == {0.0}
        assert rows(cycles) > 1


class TestParts:
    def test_without_the_rules_every_cycle_drafts_where_nothing_pays(self, lab: Lab) -> None:
        cost = machine(draft_ms=100.0)
        assert drafted(lab.take("specfit", cost)) < 0.1
        assert drafted(lab.take_without("rules", cost)) == 1

    def test_without_calibration_the_head_is_believed_for_ever(self) -> None:
        head = Believing()
        tree = DraftTree(np.array([-1, 0, 1]), np.array([5, 6, 7]), np.array([1.0, 0.9, 0.5]))
        for _ in range(100):
            head.learn(tree, [0])
        assert head.chances(tree).tolist() == [1.0, 0.9, 0.45]

    def test_without_forecast_and_objective_it_is_count_and_the_ratio(self, lab: Lab) -> None:
        assert lab.take_without("forecast", machine()) == lab.take("count", machine())
        assert lab.take_without("objective", machine()) == lab.take("specfit:ratio", machine())

    def test_parts_are_taken_with_the_drafters_of_the_whole(self) -> None:
        repeats, cost, both = Lab(repeating()), machine(), ("eagle3", "ngram")
        ratio = repeats.take("specfit:ratio", cost, drafters=both)
        assert repeats.take_without("objective", cost, drafters=both) == ratio
        assert ratio != repeats.take("specfit:ratio", cost)

    def test_without_the_rules_whatever_was_found_is_planned_with(self) -> None:
        repeats, lookups = Lab(repeating()), ("ngram",)
        dear = machine(row_ms=20.0, expert_ms=0.0, fixed_ms=0.0)
        ruled = repeats.take("specfit", dear, drafters=lookups)
        unruled = repeats.take_without("rules", dear, drafters=lookups)
        assert committed(ruled) == committed(unruled) == len(ruled) == len(unruled)
        assert sum(c.ms for c in unruled) > sum(c.ms for c in ruled)

    def test_noise_replaces_its_share_of_experts_and_is_the_same_as_a_tree_grows(
        self, lab: Lab
    ) -> None:
        step = lab.texts[0].steps[3]
        noisy, clean = (lab.beliefs(part).forecast for part in (NOISY, ""))
        assert noisy is not None
        assert clean is not None
        for forecast in (noisy, clean):
            forecast.learn(step.tree, None, step.experts)
        grown = noisy.of(step.tree).sets
        true = clean.of(step.tree).sets
        assert (sizes(grown) == sizes(true)).all()
        kept = sizes(grown & true).sum() / sizes(true).sum()
        assert kept == pytest.approx(1 - NOISE, abs=0.05)
        keep = step.tree.depths <= 1
        assert (noisy.of(step.tree.subtree(keep)).sets == grown[keep]).all()


def cycle_report(**changes: float) -> CycleReport:
    usual: dict[str, float] = {
        **{"context": 100, "rows": 2, "accepted": 0, "committed": 1, "union_per_layer": 9.0},
        **{"union_observed": True, "draft_ms": 1.0, "plan_ms": 0.0, "verify_ms": 4.0},
        **{"observe_ms": 0.0, "predicted_cycle_ms": 5.0, "measured_cycle_ms": 5.0},
        **{"predicted_committed": 1.0, "predicted_union": 9.0},
    }
    return CycleReport(**(usual | changes))  # type: ignore[arg-type]


class TestAudit:
    def test_by_hand(self) -> None:
        pairs = np.array([[10.0, 8.0], [12.0, 12.0], [14.0, 16.0]])
        found = audit(Predictions(pairs, pairs, np.zeros((0, 2))))
        assert (found.cycles, found.union) == (3, None)
        assert found.cycle_ms is not None
        assert found.one_cycle_ms is not None
        assert found.cycle_ms.value == 0
        assert found.cycle_ms.error == pytest.approx(2 / 12 / 3**0.5)
        assert found.one_cycle_ms.value == pytest.approx((0.25 + 0 + 0.125) / 3)

    def test_standard_errors_are_those_of_repeated_samples(self) -> None:
        rng = np.random.default_rng(0)
        biases, errors = [], []
        for _ in range(300):
            measured = rng.gamma(20, 0.5, 100)
            pairs = np.column_stack([1.1 * measured * rng.lognormal(0, 0.1, 100), measured])
            bias = audit(Predictions(pairs, pairs, pairs)).cycle_ms
            assert bias is not None
            biases.append(bias.value)
            errors.append(bias.error)
        assert np.mean(biases) == pytest.approx(0.105, abs=0.005)
        assert np.mean(errors) == pytest.approx(np.std(biases), rel=0.15)

    def test_the_fit_of_verify_times_tells_rows_and_union_from_noise(self) -> None:
        rng = np.random.default_rng(1)

        def cycles(noise: float) -> list[CycleReport]:
            made = []
            for rows_ in rng.choice([2, 4, 8], 200).tolist():
                union = rows_ * 6 + rng.normal()
                ms = {2: 3.0, 4: 5.0, 8: 30.0}[rows_] + 0.2 * union + noise * rng.normal()
                made.append(cycle_report(rows=rows_, union_per_layer=union, verify_ms=ms))
            return made

        exact, noisy = fit_of_verify_ms(cycles(0.0)), fit_of_verify_ms(cycles(10.0))
        assert exact == pytest.approx(1)
        assert noisy is not None
        assert 0.4 < noisy < 0.8
        assert fit_of_verify_ms(cycles(0.0)[:3]) is None


def test_bins_hold_equally_many_cycles_in_the_order_of_predictions() -> None:
    rng = np.random.default_rng(2)
    pairs = rng.normal(size=(1000, 2))
    means, errors = binned(pairs)
    assert len(means) == BINS
    assert (np.diff(means[:, 0]) > 0).all()
    assert means.mean(axis=0) == pytest.approx(pairs.mean(axis=0))
    assert errors.mean() == pytest.approx(0.1, rel=0.1)
    assert len(binned(pairs[:45])[0]) == 2
    assert len(binned(pairs[:5])[0]) == 1


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "made-up.jsonl.gz"
    trace = made_up_trace(10, texts=2)
    write_trace(path, trace)
    return path


class TestReplayCommand:
    def test_all_modes_under_all_profiles_with_every_part_off(
        self, command, recorded, tmp_path
    ) -> None:
        out, plot = tmp_path / "result.json", tmp_path / "plot.png"
        given = ("--replay", recorded, "--json", out, "--plot", plot, "--ablate")
        outcome = command(bench.main, *given)
        assert (outcome.code, outcome.err) == (0, "")
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert max(map(len, outcome.out.splitlines()[1:])) <= 100
        result = json.loads(out.read_text())
        assert (result["steps"], result["texts"], result["baseline"]) == (20, 2, "off")
        assert [p["profile"] for p in result["profiles"]] == shipped_profiles()
        for profile in result["profiles"]:
            assert tuple(mode["mode"] for mode in profile["modes"]) == MODES
            off = profile["modes"][0]
            for mode in profile["modes"]:
                assert mode["tokens"] == 20
                assert mode["ratio"] == pytest.approx(
                    mode["tokens_per_second"] / off["tokens_per_second"]
                )
                assert ("shape" in mode) == (mode["mode"] == "static")
            assert off["predicted_cycle_ms"] is None
        for profile in result["ablation"]:
            assert tuple(part["part"] for part in profile["without"]) == PARTS
        before = out.read_text()
        assert command(bench.main, *given).out == outcome.out
        assert out.read_text() == before

    def test_one_profile_and_chosen_modes(self, command, recorded, tmp_path) -> None:
        out = tmp_path / "result.json"
        outcome = command(
            *(bench.main, "--replay", recorded, "--modes", "chain:2,oracle", "--json", out),
            *("--cost-profile", "gpu"),
        )
        assert outcome.code == 0
        assert [line.split()[0] for line in outcome.out.splitlines()[-2:]] == ["chain:2", "oracle"]
        result = json.loads(out.read_text())
        assert result["baseline"] == "chain:2"
        (profile,) = result["profiles"]
        assert profile["profile"] == "gpu"
        assert profile["modes"][0]["ratio"] == 1
        assert "ablation" not in result

    def test_several_answers_at_a_time(self, command, recorded) -> None:
        modes = "off,off@2,specfit@2"
        outcome = command(bench.main, "--replay", recorded, "--modes", modes)
        assert outcome.code == 0
        names = [line.split()[0] for line in outcome.out.splitlines()[-3:]]
        assert names == modes.split(",")

    def test_drafts_by_all_drafters_unless_told_otherwise(self, command, tmp_path) -> None:
        trace, out = tmp_path / "repeats.jsonl", tmp_path / "result.json"
        write_trace(trace, repeating())
        given = ("--replay", trace, "--cost-profile", "gpu", "--json", out)
        found = {}
        for drafters in ("eagle3,ngram", "eagle3", "ngram"):
            outcome = command(bench.main, *given, "--drafter", drafters)
            assert (outcome.code, outcome.err) == (0, "")
            assert f"| drafts by {drafters.replace(',', ' and ')} |" in outcome.out
            found[drafters] = json.loads(out.read_text())
            assert found[drafters]["drafters"] == drafters.split(",")
        assert command(bench.main, *given).code == 0
        assert json.loads(out.read_text()) == found["eagle3,ngram"]
        by = {
            drafters: {mode["mode"]: mode for mode in result["profiles"][0]["modes"]}
            for drafters, result in found.items()
        }
        assert set(by["eagle3"]) - set(by["ngram"]) == {"oracle", "static"}
        assert by["eagle3"]["chain:2"] == by["eagle3,ngram"]["chain:2"] != by["ngram"]["chain:2"]
        assert len({str(modes["specfit"]) for modes in by.values()}) == 3
        looked = by["ngram"]["specfit"]
        assert (looked["drafted"] > 0, looked["levels_per_cycle"]) == (True, 0)
        assert looked["predicted_committed"] > 1

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["--modes", "off,magic"], "a replay also has oracle"),
            (["--modes", "off,specfit@0"], "N from 1 to 32"),
            (["--modes", "off,specfit@33"], "N from 1 to 32"),
            (["--modes", "off,specfit@two"], "N from 1 to 32"),
            (["--modes", "off,oracle@2"], "oracle and static know one"),
            (["--prompts", "x.jsonl"], "--prompts does not go with --replay"),
            (["--trace", "x"], "--trace does not go with --replay"),
            (["--temp", "0"], "--temp does not go with --replay"),
            (["-n", "5"], "--predict does not go with --replay"),
            (["--cost-profile", "abacus"], "abacus"),
            (["--drafter", "magic"], "'magic' is no drafter"),
            (["--drafter", ","], "--drafter names none"),
            (["--drafter", "ngram", "--modes", "off,oracle"], "oracle is made of what the head"),
            (["--drafter", "ngram", "--modes", "off,static"], "static is made of what the head"),
            (["--json", "/nowhere/result.json"], "/nowhere/result.json"),
            (["--plot", "/nowhere/result.png"], "/nowhere/result.png"),
            (["--plot", "result.txt"], "must end in"),
        ],
    )
    def test_bad_input_is_one_sentence_and_code_2(
        self, command, recorded, arguments, reason
    ) -> None:
        refused(command(bench.main, "--replay", recorded, *arguments), reason)

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ("", "is not a trace"),
            ('{"id": 1, "prompt": "x"}\n', "is not a trace"),
            ("GARBAGE\n", "line 1 is not JSON"),
            ("{HEADER}\n", "holds no recorded step"),
            ("{HEADER}\n{STEP}\n", "line 2 is damaged"),
        ],
    )
    def test_what_is_no_trace_is_refused(self, command, tmp_path, content, reason) -> None:
        header = '{"specfit_trace": 1, "layers": 1, "experts": 8, "used": 2, "about": {}}'
        path = tmp_path / "trace.jsonl"
        path.write_text(content.replace("{HEADER}", header).replace("{STEP}", '{"next": 1}'))
        refused(command(bench.main, "--replay", path), reason)

    def test_no_input_is_overwritten(self, command, recorded, tmp_path) -> None:
        before = recorded.read_bytes()
        other_name = tmp_path / "link.jsonl"
        other_name.symlink_to(recorded)
        for output in (recorded, other_name):
            refused(command(bench.main, "--replay", recorded, "--json", output), "named twice")
        both = tmp_path / "new.svg"
        refused(
            command(bench.main, "--replay", recorded, "--json", both, "--plot", both), "named twice"
        )
        refused(command(bench.main, "--prompts", recorded, "--trace", recorded), "named twice")
        assert recorded.read_bytes() == before

    def test_a_missing_trace_is_refused(self, command, tmp_path) -> None:
        refused(command(bench.main, "--replay", tmp_path / "none.jsonl"), "none.jsonl")

    def test_without_matplotlib_a_plot_is_refused_before_any_work(
        self, command, recorded, monkeypatch
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
        refused(command(bench.main, "--replay", recorded, "--plot", "x.png"), "matplotlib")


def refused(outcome, reason: str) -> None:
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("specfit-bench: ")
    assert reason in outcome.err
