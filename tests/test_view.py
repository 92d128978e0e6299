"""What is seen of a cycle: the tree, the planner's reason in words, and the drafted text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import get_args

import numpy as np
import pytest
from costcases import foreseen_union
from searchcases import small_problem
from tracecases import LAYERS, made_up_trace

from specfit.app.why import why, whys
from specfit.backend import Engine, LoadOptions, Sampling, Spec
from specfit.backend.devices import gpu_memory
from specfit.backend.text import TextStream
from specfit.backend.view import CycleView
from specfit.planner import CycleCost, LiveCost, Reason, Step
from specfit.planner.forecast import ExpertForecast
from specfit.planner.lab import MAX_ROWS, Lab
from specfit.planner.planned import Planned
from specfit.planner.policies import Outcome
from specfit.planner.reason import End, Kind, best_left_out
from specfit.planner.replay import replay

QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]


class TestTheBestNodeLeftOut:
    @pytest.mark.parametrize("seed", range(80))
    def test_has_the_price_and_tokens_that_the_whole_plans_differ_by(self, seed: int) -> None:
        problem = small_problem(np.random.default_rng(seed))
        rate = 1 / 20
        plan = problem.solve(rate)
        forecast = None
        if problem.experts is not None:
            beyond = problem.unforeseen
            forecast = ExpertForecast(
                problem.experts, np.zeros(len(problem)) if beyond is None else beyond
            )
        step = best_left_out(
            plan.keep, problem.parents, problem.chances, forecast, problem.cost, 1 / rate
        )
        others = []
        for node in np.flatnonzero(~plan.keep):
            keep = plan.keep.copy()
            keep[node] = True
            if problem.is_closed(keep) and keep.sum() <= problem.cost.max_rows:
                ms = problem.ms(keep) - problem.ms(plan.keep)
                tokens = problem.committed(keep) - problem.committed(plan.keep)
                others.append((tokens - rate * ms, ms, tokens))
        if step is None:
            assert not others
            return
        gain = max(others)[0]
        assert step.tokens - rate * step.ms == pytest.approx(gain)
        assert any(
            step.ms == pytest.approx(ms) and step.tokens == pytest.approx(tokens)
            for _, ms, tokens in others
        )
        if plan.proven:
            assert gain <= 1e-9


def machine(row_ms: float, *, fixed_ms: float = 20.0, expert_ms: float = 0.1) -> CycleCost:
    rows_ms = fixed_ms + row_ms * np.arange(MAX_ROWS + 1)
    return CycleCost(rows_ms, np.full(MAX_ROWS + 1, expert_ms), np.ones(LAYERS), np.array([0.3]))


MACHINES = (
    machine(0.2),
    machine(2.0),
    machine(9.0),
    machine(20.0, fixed_ms=0.0),
    machine(20.0, fixed_ms=0.0, expert_ms=0.0),
)


class Explaining(Planned):
    """Keeps the reason of every cycle, and checks it against the plan and its tables."""

    def begin(self, context: int, roots: Sequence[int], waiting: int = 0) -> bool:
        self.context, self.root = context, roots[0]
        self.goes = super().begin(context, roots, waiting)
        return self.goes

    def learn(self, outcome: Outcome) -> None:
        reason = self.reason(begun=True)
        self.check_planned(reason, outcome.choice.committed)
        self.reasons.append(reason)
        super().learn(outcome)

    def learn_plain(self, context: int, paid_union: float | None = None) -> None:
        reason = self.reason(begun=True)
        if reason.kind == "hopeless":
            self.check_hopeless(reason)
        else:
            self.check_unpromising(reason)
        self.reasons.append(reason)
        super().learn_plain(context, paid_union)

    @property
    def reasons(self) -> list[Reason]:
        return self.__dict__.setdefault("_reasons", [])

    def total_ms(self, keep: np.ndarray) -> float:
        """The time of a plan by the tables that this cycle was planned with."""
        assert self._newest is not None
        drafts, rows = self._newest[0], int(keep.sum())
        # A level that was asked for and had no likely child came after the plan.
        spent = self._weigh.spent_ms(self._levels_drafted[: max(1, int(drafts.tree.depths[-1]))])
        if drafts.forecast is None:
            return spent + drafts.by_rows.verify_ms(rows, 0.0)
        union = foreseen_union(drafts.forecast, keep, self.beliefs.layer_weights)
        return spent + drafts.by_experts.verify_ms(rows, union)

    def check_planned(self, reason: Reason, committed: float) -> None:
        assert self._newest is not None
        drafts, plan = self._newest
        assert reason.drafts == plan.keep.sum() - 1
        if drafts.forecast is None or plan.keep.sum() > 1:
            assert self.total_ms(plan.keep) == pytest.approx(plan.ms)
        expected = plan.ms / committed if self.ratio else 1 / self.rule.rate
        assert reason.token_ms == pytest.approx(expected)
        gains = [-np.inf]
        for node in np.flatnonzero(~plan.keep & plan.keep[drafts.tree.parents]):
            more = plan.keep.copy()
            more[node] = True
            ms = self.total_ms(more) - self.total_ms(plan.keep)
            gains.append(drafts.chances[node] * reason.token_ms - ms)
        if reason.step is None:
            assert len(gains) == 1 or reason.end == "rows"
        else:
            gain = reason.step.tokens * reason.token_ms - reason.step.ms
            assert gain == pytest.approx(max(gains))
            assert gain <= 1e-6 or not plan.proven
        assert (reason.level is not None) == (reason.end == "level")

    def check_unpromising(self, reason: Reason) -> None:
        plain = self.live.verify_ms(1, self._weigh.root_union, self.context)
        with_one = self.live.verify_ms(2, self._weigh.root_union, self.context)
        with_one += self._weigh.spent_ms([(0,)])
        assert reason.step is not None
        assert reason.step.ms == pytest.approx(with_one - plain)
        assert reason.step.tokens == pytest.approx(self.beliefs.outlook.behind(self.root))
        assert reason.step.pays(reason.token_ms) == (self._hopes[0][0] > 0)

    def check_hopeless(self, reason: Reason) -> None:
        cost = self.live.now
        plain = cost.verify_ms(1, self._weigh.root_union)
        assert reason.token_ms == pytest.approx(plain)
        assert reason.step is not None
        for n in range(1, 17):
            level_ms = float(cost.level_ms[0]) + self._foresight.planning_ms[False]
            ms = n * level_ms + cost.verify_ms(1 + n, self._weigh.root_union) - plain
            assert ms / n >= plain
            assert reason.step.ms / reason.step.drafts <= ms / n + 1e-9


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab(made_up_trace(70))


class TestReasons:
    @pytest.mark.parametrize("ratio", [False, True])
    @pytest.mark.parametrize("by_count", [False, True])
    def test_are_the_numbers_of_the_plans_that_were_made(
        self, lab: Lab, ratio: bool, by_count: bool
    ) -> None:
        kinds: Counter[str] = Counter()
        for cost in MACHINES:
            live = LiveCost(cost, follows=False)
            policy = Explaining(lab.beliefs(), live, MAX_ROWS, by_count=by_count, ratio=ratio)
            cycles = replay(lab.texts, policy, live, lambda _, cost=cost: cost)  # type: ignore[misc]
            assert len(policy.reasons) == len(cycles)
            kinds.update(reason.kind for reason in policy.reasons)
            for reason, cycle in zip(policy.reasons, cycles, strict=True):
                assert reason.drafts == cycle.rows - 1
                sentences = whys(reason, "specfit", reason.drafts)
                assert all(sentences)
                assert all("e+" not in sentence for sentence in sentences)
        assert set(kinds) == {"planned", "unpromising", "hopeless"}


class TestWords:
    def planned(self, drafts: int, step: Step | None = None, **more: object) -> str:
        reason = Reason("planned", drafts, 22.0, step, **more)  # type: ignore[arg-type]
        return why(reason, "specfit", drafts)

    def test_say_what_the_next_draft_would_cost(self) -> None:
        third = "a third would cost 9 ms for 0.2 tokens"
        assert self.planned(2, Step(9.0, 0.2)) == f"2 drafts: {third}"
        assert self.planned(2, Step(9.0, 0.2), trial=True) == f"2 test drafts: {third}"
        assert self.planned(1, Step(9.0, 0.2)).startswith("1 draft: a second would")
        assert self.planned(7, Step(140.2, 0.02)).startswith(
            "7 drafts: an eighth would cost 140 ms"
        )
        assert self.planned(30, Step(9.0, 0.2)).startswith("30 drafts: one more would")
        assert self.planned(2, Step(9.0, 0.0)).endswith("9 ms for next to nothing")

    def test_say_why_nothing_is_drafted(self) -> None:
        no_draft = "no draft: one would cost 12 ms for 0.4 tokens, worth 8.8 ms"
        assert self.planned(0, Step(12.0, 0.4)) == no_draft
        assert why(Reason("unpromising", 0, 22.0, Step(12.0, 0.4)), "specfit", 0) == no_draft
        hopeless = Reason("hopeless", 0, 4.9, Step(15.3, 3.0, 3))
        assert why(hopeless, "specfit", 0) == (
            "no draft: even if all 3 were right, 15 ms instead of 15 ms"
        )
        assert "no draft head" in why(Reason("headless"), "specfit", 0)

    def test_say_what_another_level_would_bring(self) -> None:
        longer = "longer ones would cost 1.4 ms for 0.02 tokens"
        assert self.planned(3, level=Step(1.4, 0.02)) == f"3 drafts: {longer}"
        both = whys(Reason("planned", 3, 22.0, Step(9.0, 0.2), Step(1.4, 0.02)), "specfit", 3)
        assert both[1:] == ("a token takes 22 ms", longer)

    def test_do_not_call_a_step_too_dear_that_would_pay(self) -> None:
        assert "cost" not in self.planned(2, Step(1.0, 0.9))
        disappointed = Reason("unpromising", 0, 22.0, Step(9.0, 0.6))
        assert why(disappointed, "specfit", 0) == (
            "no draft: one should give 0.6 tokens for 9 ms, but gave less"
        )

    def test_name_the_mode_that_leaves_no_choice(self) -> None:
        assert why(Reason("mode"), "chain:3", 3) == "3 drafts: chain:3 is set, whatever it costs"
        assert why(Reason("mode"), "off", 0) == "no draft: drafting is switched off"

    def test_fit_80_columns_whatever_the_numbers_are(self) -> None:
        steps = [None, *(Step(ms, tokens, 16) for ms in (0.001, 1.44, 140) for tokens in (0, 0.02))]
        ends = get_args(End)
        kinds = [kind for kind in get_args(Kind) if kind != "hopeless"]
        said = {
            why(Reason(kind, drafts, token_ms, step, level, end, trial), "eagle3:31:7:10", drafts)
            for kind, drafts, token_ms, step, level, end, trial in product(
                kinds, (0, 1, 28), (0.94, 140.0), steps, steps, ends, (False, True)
            )
        }
        said |= {
            why(Reason("hopeless", 0, 0.94, step), "specfit", 0)
            for step in steps
            if step is not None
        }
        assert len(said) > 50
        assert max(map(len, said)) <= 78
        assert not [sentence for sentence in said if "e-" in sentence or "e+" in sentence]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    options = LoadOptions(ctx=320, threads=1, cost_profile="cpu-experts")
    with Engine.load(options) as engine:
        yield engine


def watched(engine: Engine, mode: str, *, n: int = 40, stop: tuple[str, ...] = ()):
    generation = engine.generate(
        QUESTION, sampling=Sampling(temp=0.0), max_tokens=n, spec=Spec.parse(mode), stop=stop
    )
    views: list[CycleView] = []
    generation.watch = views.append
    assert "".join(generation) == generation.report.text
    return generation, views


class TestViews:
    @pytest.mark.parametrize("mode", ["specfit", "chain:3", "eagle3:31"])
    def test_show_of_every_cycle_what_its_report_counts(self, engine: Engine, mode: str) -> None:
        generation, views = watched(engine, mode)
        assert [view.report for view in views] == generation.cycles
        drafted = [view for view in views if len(view)]
        assert drafted
        for view in drafted:
            assert view.kept.sum() == view.report.rows
            assert view.accepted.sum() == view.report.accepted + 1
            assert not (view.accepted & ~view.kept).any()
            assert view.chances[view.kept].sum() == pytest.approx(view.report.predicted_committed)
            assert (view.chances <= view.chances[view.parents] + 1e-9)[1:].all()
        observed = [view for view in drafted if view.report.union_observed]
        assert observed
        for view in observed:
            assert view.layers is not None
            assert np.nansum(view.new_experts) == pytest.approx(view.layers.mean())
            assert view.new_experts[0] == engine.model.info.n_experts_used

    def test_spell_the_answer_when_their_accepted_nodes_are_read_in_order(
        self, engine: Engine
    ) -> None:
        generation, views = watched(engine, "eagle3:16:3:4")
        spelled = "".join(
            "".join(text for text, hit in zip(v.texts[1:], v.accepted[1:], strict=True) if hit)
            + v.sampled
            for v in views
        )
        assert generation.report.text.endswith(re.sub(r"<\|?\w+\|?>$", "", spelled))

    def test_of_plain_cycles_have_no_nodes_but_a_reason(self, engine: Engine) -> None:
        _, views = watched(engine, "off", n=5)
        assert [len(view) for view in views] == [0] * 4
        assert {view.reason.kind for view in views} == {"mode"}

    def test_tell_why_a_text_begun_without_hope_drafts_nothing(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        policy = engine.policy(Spec.parse("specfit:ratio"))
        dear = LiveCost(machine(20.0, fixed_ms=0.0, expert_ms=0.0), follows=False)
        monkeypatch.setattr(policy.rule, "_live", dear)  # type: ignore[attr-defined]
        _, views = watched(engine, "specfit:ratio", n=4)
        assert {view.reason.kind for view in views} == {"hopeless"}
        assert "even if" in why(views[0].reason, "specfit:ratio", 0)

    def test_cost_nothing_when_nobody_watches(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unexpected(*_arguments: object, **_options: object) -> None:
            raise AssertionError("a view was made")

        monkeypatch.setattr("specfit.backend.generation.view_of", unexpected)
        generation = engine.generate(QUESTION, max_tokens=6, spec=Spec.parse("chain:3"))
        assert "".join(generation)


class TestDraftedText:
    @pytest.mark.parametrize("mode", ["chain:3", "eagle3:31"])
    def test_is_what_the_accepted_nodes_say(self, engine: Engine, mode: str) -> None:
        generation, views = watched(engine, mode)
        text = generation.report.text
        spelled = [
            "".join(t for t, hit in zip(v.texts[1:], v.accepted[1:], strict=True) if hit)
            for v in views
            if v.report.accepted
        ]
        assert [text[a:b] for a, b in generation.drafted_spans] == spelled
        assert 0 < sum(b - a for a, b in generation.drafted_spans) < len(text)

    def test_never_reaches_past_a_stop_string(self, engine: Engine) -> None:
        whole, _ = watched(engine, "eagle3:31")
        begin, _ = next((a, b) for a, b in whole.drafted_spans if b - a > 4)
        stop = whole.report.text[begin + 2 : begin + 4]
        cut, _ = watched(engine, "eagle3:31", stop=(stop,))
        text = cut.report.text
        assert text == whole.report.text[: whole.report.text.index(stop)]
        assert all(0 <= a < b <= len(text) for a, b in cut.drafted_spans)

    def test_is_counted_in_characters_however_bytes_and_stop_strings_come(self) -> None:
        stream = TextStream(stop=["xyz"])
        counts = []
        for piece in (b"a", "é".encode()[:1], "é".encode()[1:], b"x", b"y", b"!", b"xyz"):
            stream.feed(piece)
            counts.append(stream.n_chars)
        assert counts == [1, 1, 2, 3, 4, 5, 5]


def test_the_memory_of_gpus_is_told_where_there_are_any() -> None:
    for device in gpu_memory():
        assert 0 <= device.used <= device.total
