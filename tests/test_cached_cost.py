"""What cycles cost with a cache of experts, and plans and replays by it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searchcases import Problem, brute_force, small_problem
from tracecases import EXPERTS, LAYERS, USED, made_up_trace, write_trace

from specfit.app import bench
from specfit.app.bench_residency import cached_machine, parse_shares, rule_of
from specfit.app.entry import AppError
from specfit.planner import CycleCost
from specfit.planner.caching import hits_of_rule, uses_of_chains
from specfit.planner.experts import pack_flags
from specfit.planner.lab import Lab
from specfit.planner.replay import ReplayedCycle

RATES = [None, 0.0, 0.05, 0.3]


def with_cache(rng: np.random.Generator, problem: Problem) -> tuple[Problem, Problem]:
    """The problem with a cache of some of its experts; and what it comes to without one: missing
    experts only, and for every node its uses of them."""
    assert problem.uses is not None
    resident = rng.random(problem.uses.shape[1:]) < rng.random()
    share = float(rng.choice([0.0, 0.5, 1.0]))
    cached = replace(
        problem, cost=replace(problem.cost, resident=pack_flags(resident), use_share=share)
    )
    missing = problem.uses & ~resident
    alone = share * (missing.sum(axis=2) @ problem.cost.layer_weights)
    if problem.unforeseen is not None:
        alone = alone + problem.unforeseen
    return cached, replace(problem, uses=missing, unforeseen=alone)


def cases(seed: int, n: int, lines: int = 1) -> list[tuple[Problem, Problem]]:
    rng = np.random.default_rng(seed)
    problems = [small_problem(rng, lines) for _ in range(n)]
    return [with_cache(rng, problem) for problem in problems if problem.uses is not None]


@pytest.mark.parametrize("lines", [1, 3])
def test_plans_with_a_cache_equal_brute_force(lines: int) -> None:
    for number, (cached, plain) in enumerate(cases(lines, 300, lines)):
        rate = RATES[number % len(RATES)]
        try:
            plan = cached.solve(rate)
        except ValueError:  # of no time is no ratio
            assert rate is None
            continue
        best, rows = brute_force(plain, rate, len(plain))
        if rate is None and not best > 0:
            continue
        assert plan.proven
        assert plain.worth(plan.keep, rate) == pytest.approx(best, abs=1e-9)
        assert plan.ms == pytest.approx(plain.ms(plan.keep), abs=1e-9)
        if lines == 1 and rate is not None:
            assert plan.keep.sum() == rows


def test_what_is_paid_for_is_missing_experts_once_and_every_use_of_them() -> None:
    for cached, plain in cases(5, 50):
        sets, cost = cached.experts, cached.cost
        assert sets is not None
        assert plain.uses is not None
        union = float(plain.uses.any(axis=0).sum(axis=1) @ cost.layer_weights)
        uses = float(plain.uses.sum(axis=2).sum(axis=0) @ cost.layer_weights)
        assert cost.weighted_union(sets) == pytest.approx(union + cost.use_share * uses)


@given(st.integers(0, 10_000), st.floats(0.0, 0.5), st.floats(0.01, 0.3))
@settings(max_examples=100, deadline=None)
def test_hits_beside_misses_cost_a_plan_no_more_than_is_said(
    seed: int, hit_ms: float, rate: float
) -> None:
    """Where a layer takes the longer of its hits and its misses, by all subsets of small trees."""
    rng = np.random.default_rng(seed)
    problem = small_problem(rng)
    if problem.uses is None or len(problem) > 9:
        return
    cached, plain = with_cache(rng, replace(problem, unforeseen=None))
    assert cached.uses is not None
    assert plain.uses is not None
    all_uses, missing, cost = cached.uses, plain.uses, cached.cost

    def longer_ms(keep: np.ndarray) -> tuple[float, float]:
        """T by the longer of the two, and how much of it the planner does not see."""
        union, misses = all_uses[keep].any(axis=0), missing[keep].any(axis=0)
        hits = hit_ms * cost.layer_weights * (union & ~misses).sum(axis=1)
        uses = cost.use_share * missing[keep].sum(axis=(0, 2))
        paid = cost.expert_ms[keep.sum()] * cost.layer_weights * (misses.sum(axis=1) + uses)
        unseen = float(np.maximum(hits - paid, 0.0).sum())
        return plain.ms(keep) + unseen, unseen

    n = len(problem)
    best = -np.inf
    for bits in range(1 << (n - 1)):
        keep = np.append(True, (bits >> np.arange(n - 1)) & 1 > 0)
        if problem.is_closed(keep):
            best = max(best, problem.committed(keep) - rate * longer_ms(keep)[0])
    plan = cached.solve(rate)
    ms, unseen = longer_ms(plan.keep)
    lost = best - (plan.committed - rate * ms)
    assert -1e-9 <= lost <= rate * unseen + 1e-9
    assert plan.ms <= ms + 1e-9


def test_the_measured_machine_is_given_within_five_percent() -> None:
    """All hits, 77 % and none, at 1, 2, 4 and 8 rows; half of them within 8 %."""
    cost = cached_machine(np.ones(48), 64)
    union = {1: 8, 2: 12, 4: 18, 8: 26}
    measured = {
        **{1.0: (5.5, 5.7, 7.4, 10.8), 0.77: (11.4, 13.6, 20.9, 35.3)},
        **{0.0: (28.5, 40.9, 67.9, 119.8), 0.52: (16.9, 25.1, 39.4, 66.9)},
    }
    for hits, times in measured.items():
        for rows, ms in zip(union, times, strict=True):
            paid = (1 - hits) * 48 * (union[rows] + 8 * rows)
            assert cost.verify_ms(rows, paid) == pytest.approx(
                ms, rel=0.08 if hits == 0.52 else 0.05
            )


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab(made_up_trace(200))


def machine() -> CycleCost:
    return cached_machine(np.ones(LAYERS), 64)


def speed(cycles: list[ReplayedCycle]) -> float:
    return sum(c.committed for c in cycles) / sum(c.ms for c in cycles)


class TestReplays:
    @pytest.mark.parametrize(
        "mode", ["off", "chain:3", "specfit", "specfit:ratio", "count", "oracle"]
    )
    def test_every_mode_commits_the_text_and_a_larger_cache_is_faster(
        self, lab: Lab, mode: str
    ) -> None:
        found = []
        for share in (0.0, 0.3, 0.6, 1.0):
            cycles = lab.take(mode, machine(), cache=lab.cache(rule_of(share, machine(), EXPERTS)))
            assert sum(c.committed for c in cycles) == 200
            assert all(c.used == c.rows * LAYERS * USED for c in cycles)
            found.append(cycles)
        assert [speed(cycles) for cycles in found] == sorted(speed(cycles) for cycles in found)
        assert not any(c.hits or c.uploads for c in found[0])
        late = found[-1][100:]
        assert all(c.hits == c.used and c.union == 0 for c in late)

    def test_plain_decoding_hits_what_the_policy_does(self, lab: Lab) -> None:
        rule = rule_of(0.4, machine(), EXPERTS)
        cache = lab.cache(rule)
        cycles = lab.take("off", machine(), cache=cache)
        hits = hits_of_rule(uses_of_chains(lab.texts, 0, EXPERTS), rule, cache.begun)
        assert sum(c.hits for c in cycles) == pytest.approx(
            hits.pairs * sum(c.used for c in cycles)
        )
        assert sum(c.uploads for c in cycles) == hits.uploads.sum()
        first = machine().rows_ms[1] + machine().expert_ms[1] * cycles[0].union
        assert cycles[0].ms == pytest.approx(first + rule.upload_ms * cycles[0].uploads)

    def test_what_is_to_be_paid_for_is_predicted(self, lab: Lab) -> None:
        cache = lab.cache(rule_of(0.5, machine(), EXPERTS))
        for mode in ("chain:2", "specfit"):
            late = lab.take(mode, machine(), cache=cache)[20:]
            predicted = sum(c.predicted_union for c in late)
            assert predicted == pytest.approx(sum(c.union for c in late), rel=0.1)

    def test_plans_prefer_drafts_whose_experts_are_cached(self) -> None:
        more = []  # of the uses in drafted cycles
        for seed in range(4):  # one trace by itself can go either way
            lab, shares = Lab(made_up_trace(400, seed=seed, sureness=3.0)), {}
            cache = lab.cache(rule_of(0.5, machine(), EXPERTS))
            for mode in ("count", "specfit"):
                cycles = [c for c in lab.take(mode, machine(), cache=cache) if c.rows > 1]
                assert len(cycles) > 100
                shares[mode] = sum(c.hits for c in cycles) / sum(c.used for c in cycles)
            more.append(shares["specfit"] - shares["count"])
        assert np.mean(more) > 0.006


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "made-up.jsonl"
    trace = made_up_trace(10, texts=2)
    write_trace(path, trace)
    return path


class TestCommand:
    def test_prints_hits_by_policy_and_the_modes(self, command, recorded, tmp_path) -> None:
        out = tmp_path / "result.json"
        given = ("--residency", "0.4,0.77", "--modes", "off,chain:1,specfit,static,oracle")
        outcome = command(bench.main, "--replay", recorded, *given, "--ablate", "--json", out)
        assert (outcome.code, outcome.err) == (0, "")
        assert max(map(len, outcome.out.splitlines()[1:])) <= 100
        result = json.loads(out.read_text())
        assert [p["profile"] for p in result["profiles"]] == ["cached 40%", "cached 77%"]
        for profile in result["profiles"]:
            for mode in profile["modes"]:
                assert 0 < mode["hits"] < 1
                assert mode["loads"] >= 0
        rates = {(h["policy"], h["share"], h["drafts"], h["even"]): h for h in result["hits"]}
        for share in (0.4, 0.77):
            best = rates["Belady", share, 0, False]
            for policy in ("LRU", "LFU", "ours"):
                assert 0 < rates[policy, share, 0, False]["unique"] <= best["unique"]

    def test_profiles_know_no_hits(self, command, recorded, tmp_path) -> None:
        out = tmp_path / "result.json"
        given = ("--modes", "off", "--cost-profile", "gpu", "--json", out)
        assert command(bench.main, "--replay", recorded, *given).code == 0
        result = json.loads(out.read_text())
        assert "hits" not in result
        assert "hits" not in result["profiles"][0]["modes"][0]

    @pytest.mark.parametrize(
        ("given", "reason"),
        [
            (["--residency", "much"], "shares of all experts"),
            (["--residency", "0.4,1.2"], "shares of all experts"),
            (["--residency", "0.4", "--cost-profile", "gpu"], "leave --cost-profile out"),
        ],
    )
    def test_bad_input_is_one_sentence_and_code_2(self, command, recorded, given, reason) -> None:
        outcome = command(bench.main, "--replay", recorded, *given)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert reason in outcome.err

    def test_it_needs_a_replay(self, command) -> None:
        outcome = command(bench.main, "--residency", "0.4")
        assert outcome.code == 2
        assert "--residency needs --replay" in outcome.err


def test_shares_are_numbers_from_0_to_1() -> None:
    assert parse_shares("0,0.5,1") == (0.0, 0.5, 1.0)
    for wrong in ("", "a", "nan", "0.4,0.4", "-1"):
        with pytest.raises(AppError):
            parse_shares(wrong)
