"""The engine of `specfit-batch --deterministic`: plans do not depend on what ran before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specfit.backend import Engine, LoadOptions, Sampling, Spec, SpecfitError, loading, priors
from specfit.backend.steady import SteadyEngine, fixed
from specfit.planner import CycleCost

OPTIONS = LoadOptions(ctx=512, threads=1, cost_profile="cache-77")
PROMPTS = ["Why is the sky blue?", "Tell me about rivers.", "Count to ten, slowly."]

Cycles = list[tuple[int, int, float]]


def cycles(engine: Engine, prompt: str, mode: str) -> tuple[str, Cycles]:
    """The answer, and what every cycle planned and expected."""
    engine.forget()
    generation = engine.generate(
        [{"role": "user", "content": prompt}],
        sampling=Sampling(temp=0.7, seed=3),
        max_tokens=40,
        spec=Spec.parse(mode),
    )
    text = "".join(generation)
    return text, [(c.rows, c.committed, c.predicted_committed) for c in generation.cycles]


@pytest.mark.parametrize("mode", ["specfit", "chain:3"])
def test_every_answer_is_planned_alike_in_any_order_and_process(mode: str) -> None:
    with SteadyEngine.load(OPTIONS) as engine:
        first = {prompt: cycles(engine, prompt, mode) for prompt in PROMPTS}
        again = {prompt: cycles(engine, prompt, mode) for prompt in reversed(PROMPTS)}
    assert again == first
    assert any(rows > 1 for _, of_cycles in first.values() for rows, _, _ in of_cycles)
    with SteadyEngine.load(OPTIONS) as engine:
        assert {prompt: cycles(engine, prompt, mode) for prompt in PROMPTS} == first


def test_what_another_run_learns_or_measures_changes_no_plan(monkeypatch) -> None:
    def planned(engine: Engine) -> list[float]:
        """What is predicted of cycles by this machine's own costs."""
        predicted: list[float] = []
        for prompt in PROMPTS:
            engine.forget()
            messages = [{"role": "user", "content": prompt}]
            generation = engine.generate(messages, sampling=Sampling(temp=0), max_tokens=20)
            list(generation)
            predicted += [cycle.predicted_cycle_ms for cycle in generation.cycles]
        return predicted

    with SteadyEngine.load(OPTIONS) as engine:
        first = planned(engine)
    with Engine.load(OPTIONS) as engine:
        planned(engine)  # and keeps what it learned
    measured = priors.cost_from_points

    def slower(*points: Any, **rest: Any) -> CycleCost:
        cost = measured(*points, **rest)
        return replace(cost, level_ms=5 * cost.level_ms)

    monkeypatch.setattr(priors, "cost_from_points", slower)
    with SteadyEngine.load(OPTIONS) as engine:
        assert planned(engine) == first


def test_where_layers_would_lie_elsewhere_it_is_not_run() -> None:
    with SteadyEngine.load(OPTIONS):
        pass
    plan = loading.plan_load(fixed(OPTIONS))
    elsewhere = replace(plan, placement=replace(plan.placement, n_cpu_moe=3))
    with pytest.raises(SpecfitError, match="would lie elsewhere"):
        SteadyEngine.load(replace(OPTIONS, plan=elsewhere))


def test_a_damaged_state_is_read_anew(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with SteadyEngine.load(OPTIONS):
        pass
    (kept,) = (tmp_path / "specfit" / "steady").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    with SteadyEngine.load(OPTIONS) as engine:
        assert cycles(engine, PROMPTS[0], "specfit")[0]
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    assert len(kept.read_bytes()) > len(whole) // 2


def test_where_nothing_can_be_kept_the_state_holds_for_the_run(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    with SteadyEngine.load(OPTIONS) as engine:
        assert cycles(engine, PROMPTS[0], "specfit") == cycles(engine, PROMPTS[0], "specfit")
