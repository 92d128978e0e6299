"""The engine as its users see it: where answers end, what is reused, what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording import exact_engine
from tinymodel import write_dense

from specfit.backend import (
    Engine,
    LoadOptions,
    Sampling,
    Spec,
    SpecfitError,
    calibration,
    kept_costs,
)
from specfit.backend.calibration import Measured
from specfit.backend.head import Head
from specfit.backend.profiles import load_profile, shipped_profiles
from specfit.planner import PROMPT

GREEDY = Sampling(temp=0.0)
MODES = ["off", "chain:3", "eagle3:31", "specfit"]
QUESTION = [{"role": "user", "content": "Tell me a short story about a fox."}]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    options = LoadOptions(ctx=320, threads=1, cost_profile="streamed")
    with Engine.load(options) as engine:
        yield engine


def answer(engine: Engine, mode: str, **options: object):
    options.setdefault("max_tokens", 40)
    generation = engine.generate(
        QUESTION,
        sampling=GREEDY,
        spec=Spec.parse(mode),
        **options,  # type: ignore[arg-type]
    )
    pieces = list(generation)
    assert "".join(pieces) == generation.report.text
    return generation


@pytest.mark.parametrize("mode", MODES)
def test_the_token_limit_is_met_exactly(engine: Engine, mode: str) -> None:
    for limit in (1, 2, 7):
        report = answer(engine, mode, max_tokens=limit).report
        assert (report.completion_tokens, report.finish_reason) == (limit, "length")


@pytest.mark.parametrize("mode", MODES)
def test_a_stop_string_ends_the_answer_before_itself(engine: Engine, mode: str) -> None:
    whole = answer(engine, mode).report.text
    stop = whole[25:31]
    report = answer(engine, mode, stop=[stop]).report
    assert report.finish_reason == "stop"
    assert report.text == whole[: whole.index(stop)]


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_ends_where_the_context_does(engine: Engine, mode: str) -> None:
    engine.model.ends, ends = (lambda _token: False), engine.model.ends  # type: ignore[method-assign]
    try:
        report = answer(engine, mode, max_tokens=None).report
    finally:
        engine.model.ends = ends  # type: ignore[method-assign]
    assert report.finish_reason == "length"
    assert report.prompt_tokens + report.completion_tokens == engine.ctx


@pytest.mark.parametrize("mode", MODES)
def test_the_next_turn_reuses_the_last_and_says_the_same(engine: Engine, mode: str) -> None:
    first = answer(engine, mode).report
    turns = [
        *QUESTION,
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "Go on."},
    ]

    def second() -> str:
        generation = engine.generate(turns, sampling=GREEDY, max_tokens=24, spec=Spec.parse(mode))
        return "".join(generation)

    processed = []
    decode_prompt = engine.context.decode_prompt

    def counting(tokens, goes_on, line):  # type: ignore[no-untyped-def]
        processed.append(len(tokens))
        return decode_prompt(tokens, goes_on, line)

    engine.context.decode_prompt = counting  # type: ignore[method-assign]
    try:
        reused = second()
        engine.forget()
        afresh = second()
    finally:
        del engine.context.decode_prompt
    assert processed[0] < processed[1] / 2
    # Their caches were filled in batches of other widths, so late near-ties may part them.
    assert reused[:8] == afresh[:8]


@pytest.mark.parametrize("ctx", [1, 2, 9, 17])
def test_a_context_of_a_few_tokens_is_measured_too(
    ctx: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    refused = pytest.raises(SpecfitError, match=f"the context holds {ctx}")
    with Engine.load(LoadOptions(ctx=ctx, threads=1)) as small, refused:
        small.prompt_tokens(QUESTION)


def test_a_closed_model_counts_no_tokens() -> None:
    with Engine.load(LoadOptions(ctx=64, threads=1, drafting=False)) as loaded:
        assert loaded.count_tokens(QUESTION) > 5
    with pytest.raises(SpecfitError, match="not loaded any more"):
        loaded.count_tokens(QUESTION)


def test_stop_ends_after_the_present_cycle_and_keeps_the_text(engine: Engine) -> None:
    generation = engine.generate(QUESTION, sampling=GREEDY, max_tokens=200)
    pieces = []
    for piece in generation:
        pieces.append(piece)
        if len(pieces) == 3:
            generation.stop()
    assert generation.report.finish_reason == "stopped"
    assert generation.report.text == "".join(pieces)


def test_a_stopped_prompt_is_picked_up_again(engine: Engine) -> None:
    engine.forget()
    expected = answer(engine, "specfit").report.text
    engine.forget()
    generation = engine.generate(QUESTION, sampling=GREEDY, max_tokens=5)
    generation.stop()
    assert list(generation) == []
    assert generation.report.finish_reason == "stopped"
    assert answer(engine, "specfit").report.text == expected


def test_an_interrupt_in_the_middle_of_a_cycle_leaves_the_engine_usable(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.forget()
    expected = answer(engine, "chain:3").report.text
    calls = []

    def interrupted(*_arguments: object) -> None:
        calls.append(1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.context, "commit", interrupted)  # the tree is decoded, not committed
        with pytest.raises(KeyboardInterrupt):
            answer(engine, "chain:3")
    assert calls
    assert answer(engine, "chain:3").report.text == expected


def test_modes_can_take_turns_in_one_conversation(exact_pair: tuple[Path, Path]) -> None:
    with exact_engine(exact_pair, ctx=320) as engine:
        texts = [answer(engine, mode, max_tokens=12).report.text for mode in (*MODES, *MODES)]
    assert len(set(texts)) == 1


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(engine: Engine) -> None:
    long = [{"role": "user", "content": "word " * 500}]
    said = r"the prompt has \d+ tokens and the context holds 320; shorten it, or make room with -c "
    with pytest.raises(SpecfitError, match=said) as refused:
        engine.generate(long)
    proposed = int(str(refused.value).split()[-1])
    assert engine.count_tokens(long) < proposed <= engine.model.info.context_length


def test_no_context_is_proposed_that_the_model_was_not_made_for(engine: Engine) -> None:
    trained = engine.model.info.context_length
    for text, has in (("word " * 2 * trained, "tokens"), ("word " * 10**6, "characters")):
        said = rf"{has}.* holds 320.*; shorten it: the model was made for {trained}$"
        with pytest.raises(SpecfitError, match=said):
            engine.generate([{"role": "user", "content": text}])


def test_a_dense_model_runs_and_says_why_it_does_not_draft(tmp_path: Path) -> None:
    write_dense(tmp_path / "dense.gguf", seed=0)
    options = LoadOptions(model=tmp_path / "dense.gguf", threads=1, drafters=("eagle3",))
    with Engine.load(options) as engine:
        assert engine.notices == ("decoding without drafts: no draft head was given (-md)",)
        report = answer(engine, "specfit", max_tokens=8).report
    assert report.completion_tokens == report.means.rows_per_cycle * 7 + 1


def test_more_context_than_the_model_was_made_for_is_refused() -> None:
    with pytest.raises(SpecfitError, match="made for 2048 tokens"):
        Engine.load(LoadOptions(ctx=100_000))


def head_of(engine: Engine) -> Head:
    drafter = engine.lines[0].drafter
    assert drafter is not None
    return drafter.head


@pytest.fixture(scope="module")
def measured(engine: Engine) -> Measured:
    """The measurement that `engine` was loaded with."""
    engine.forget()
    assert engine.drafts
    return kept_costs.calibrated(engine.context, head_of(engine))


class TestCosts:
    @pytest.fixture
    def cache(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """Where measurements are kept: a place of the test's own."""
        monkeypatch.setattr(
            "specfit.backend.cache.platformdirs.user_cache_path", lambda _name: tmp_path
        )
        return tmp_path

    def test_a_measurement_has_all_that_a_cycle_is_made_of(self, measured: Measured) -> None:
        one = next(point for point in measured.points if point.rows == 1)
        assert one.union == 8
        for rows in calibration.ROW_COUNTS[1:]:
            narrow, wide = (point for point in measured.points if point.rows == rows)
            assert 8 <= narrow.union < wide.union < min(8 * rows, 128)
            assert min(one.ms, narrow.ms, wide.ms) > 0
        assert len(measured.level_ms) == 1 + 8
        assert 0 < min(measured.level_ms) <= max(measured.level_ms) < 100 * min(measured.level_ms)
        assert measured.union_by_rows(64)[[1, 64]] == pytest.approx([8, measured.points[-1].union])

    def test_a_longer_text_makes_a_cycle_dearer(
        self, bundled_engine: Engine, engine: Engine, measured: Measured
    ) -> None:
        assert measured.context_ms == []  # a context of 320 tokens shows no difference
        assert measured.context_by_rows(64) is None
        bundled_engine.forget()
        context = bundled_engine.context
        slopes = calibration._context_ms(
            context, calibration._prefill_s(context, [7] * calibration.PREFIX), lambda: False
        )
        assert context.n_past[0] == calibration.PREFIX
        bundled_engine.forget()
        assert len(slopes) == len(calibration.CONTEXT_ROWS)
        assert min(slopes) >= 0
        table = replace(measured, context_ms=slopes).context_by_rows(64)
        assert table is not None
        assert table[list(calibration.CONTEXT_ROWS)] == pytest.approx(slopes)

    def test_measuring_leaves_context_and_head_empty_even_when_cancelled(
        self, engine: Engine
    ) -> None:
        engine.forget()
        assert engine.drafts
        told: list[float] = []

        def progress(fraction: float) -> bool:
            told.append(fraction)
            return len(told) < 2

        with pytest.raises(SpecfitError, match="cancelled"):
            calibration.measure(engine.context, head_of(engine), progress)
        assert told == sorted(told)
        assert len(told) == 2
        assert 0 < told[0] <= told[-1] < 1
        assert engine.context.n_past[0] == head_of(engine).n_pairs == 0

    def test_what_the_first_two_of_equal_cycles_take_more_is_told_from_noise(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rng, before = np.random.default_rng(0), 1

        def visit(_cycles: object, shape: tuple[int, bool]) -> list[float]:
            nonlocal before
            assert shape[0] != before  # they take turns
            before = shape[0]
            steady = 20.0 * shape[0]
            times = steady * (1 + 0.05 * rng.standard_exponential(5))
            return (times + np.array([4.0, 7.0, 0.0, 0.0, 0.0])).tolist()

        monkeypatch.setattr(calibration.Cycles, "visit", visit)
        cycles = calibration.Cycles.behind(engine.context)
        switch_ms, settle_ms = calibration._switching_ms(
            cycles, (2, False), lambda: False, lambda _fraction: None
        )
        assert switch_ms == pytest.approx(4.0, abs=1.0)
        assert settle_ms == pytest.approx(7.0, abs=1.0)

    def test_a_single_draft_is_measured_as_it_will_be_decoded(self) -> None:
        steady = {(2, True): [1.0], (32, True): [4.0], (1, False): [2.0], (2, False): [5.0]}
        assert calibration._single_draft(steady, padded=True) == (32, True)
        assert calibration._single_draft(steady, padded=False) == (2, False)
        assert calibration._single_draft({**steady, (2, False): [3.0]}, padded=True) == (2, False)

    def test_a_policy_is_told_whose_decode_came_before(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[int] = []
        policy = engine.policy(Spec.parse("off"))
        monkeypatch.setattr(policy, "behind", lambda before: told.append(before.rows))
        for _ in range(2):
            answer(engine, "off", max_tokens=4)
        assert told == [PROMPT, 1, 1] * 2

    @pytest.mark.parametrize(
        ("rows", "factor", "again"),
        [(1, 1e6, True), (1, 2.0, True), (4, 2.0, True), (4, 0.5, False), (4, 0.2, True)],
    )
    def test_a_measurement_is_taken_again_where_it_was_too_slow_or_is_far_off(
        self,
        engine: Engine,
        measured: Measured,
        monkeypatch: pytest.MonkeyPatch,
        cache: Path,
        rows: int,
        factor: float,
        again: bool,
    ) -> None:
        taken = []

        def measure(*_arguments: object) -> Measured:
            taken.append(1)
            wrong = {rows: factor} if len(taken) == 1 else {}
            points = [replace(p, ms=p.ms * wrong.get(p.rows, 1.0)) for p in measured.points]
            return replace(measured, points=points)

        slowest = {point.rows: point.ms for point in sorted(measured.points, key=lambda p: p.ms)}
        factors = [1.0, 100.0, 100.0] * 9  # weights are read from the disk first

        def visit(_cycles: object, shape: tuple[int, bool]) -> list[float]:
            return [slowest[shape[0]] * factors.pop()] * 5

        monkeypatch.setattr(calibration.Cycles, "visit", visit)
        engine.forget()
        monkeypatch.setattr(kept_costs, "measure", measure)
        kept = [kept_costs.calibrated(engine.context, None) for _ in range(3)]
        assert len(taken) == 1 + again
        assert kept[1] == kept[2]
        assert (kept[2] == measured) == again
        assert engine.context.n_past[0] == 0

    def test_a_measurement_beside_another_program_comes_to_an_end(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine.forget()
        monkeypatch.setattr(calibration, "ENOUGH_S", 0.0)
        measured = calibration.measure(engine.context, head_of(engine))
        assert [(p.rows, p.union > 8) for p in measured.points] == [
            (1, False),
            (2, True),
            (4, True),
        ]
        assert min(measured.level_ms) > 0

    @pytest.mark.parametrize(
        "damage",
        [
            lambda _stored: "",
            lambda _stored: "[]",
            lambda _stored: "{}",
            lambda _stored: "[" * 100_000,
            lambda stored: json.dumps(stored)[:-20],
            lambda stored: json.dumps({**stored, "points": []}),
            lambda stored: json.dumps({**stored, "points": stored["points"][:5]}),
            lambda stored: json.dumps({**stored, "points": [{"rows": 1, "union": 8, "ms": 0}]}),
            lambda stored: json.dumps({**stored, "level_ms": []}),
            lambda stored: json.dumps({**stored, "level_ms": ["much"]}),
            lambda stored: json.dumps({**stored, "level_ms": [float("nan")]}),
            lambda stored: json.dumps({**stored, "context_ms": [0.1]}),
            lambda stored: json.dumps({**stored, "switch_ms": -1}),
            lambda stored: json.dumps({**stored, "more": 1}),
        ],
    )
    def test_a_damaged_measurement_is_taken_again(
        self,
        engine: Engine,
        measured: Measured,
        monkeypatch: pytest.MonkeyPatch,
        cache: Path,
        damage: Callable[[Any], str],
    ) -> None:
        engine.forget()
        monkeypatch.setattr(kept_costs, "_still_true", lambda *_arguments: True)
        monkeypatch.setattr(kept_costs, "measure", lambda *_arguments: measured)
        kept_costs.calibrated(engine.context, None)
        (file,) = cache.glob("costs/*.json")
        file.write_text(damage(json.loads(file.read_text())))
        again = replace(measured, switch_ms=measured.switch_ms + 1)
        monkeypatch.setattr(kept_costs, "measure", lambda *_arguments: again)
        assert kept_costs.calibrated(engine.context, None) == again

    @pytest.mark.parametrize("name", shipped_profiles())
    def test_every_shipped_profile_gives_its_own_points(self, name: str, engine: Engine) -> None:
        weights = engine.policy(Spec.parse("off")).beliefs.layer_weights
        cost = load_profile(name, weights, 64)
        file = Path(calibration.__file__).with_name("profiles") / f"{name}.json"
        for point in json.loads(file.read_text())["points"]:
            ms = cost.verify_ms(point["rows"], point["union"] * weights.sum())
            assert ms == pytest.approx(point["ms"], rel=0.15)

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "[]",
            "{}",
            '{"points": []}',
            '{"points": [{"rows": "x"}]}',
            "\x00",
            "[" * 100_000,
            '{"draft_level_ms": NaN, "points": [{"rows": 1, "union": 8, "ms": 5}]}',
            '{"draft_level_ms": -1, "points": [{"rows": 1, "union": 8, "ms": 5}]}',
            '{"draft_level_ms": 1, "points": [{"rows": 1, "union": 8, "ms": 1e400}]}',
            '{"draft_level_ms": 1, "points": [{"rows": 1e400, "union": 8, "ms": 1}]}',
            '{"draft_level_ms": 1, "points": [{"rows": 1, "union": 8, "ms": 1}], '
            '"expert_price": {"profile": "bad.json", "share": 1}}',
        ],
    )
    def test_what_is_no_profile_is_refused(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(SpecfitError, match="is not a cost profile"):
            load_profile(str(tmp_path / "bad.json"), np.ones(1), 64)

    def test_an_unknown_profile_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(SpecfitError, match="cpu-experts"):
            load_profile("nonsense", np.ones(1), 64)


THINKING_TEMPLATE = (
    b"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    b"{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n"
    b"{% elif enable_thinking is defined %}<think>\n{% endif %}"
)


@pytest.mark.parametrize(("thinking", "opens"), [(None, False), (False, False), (True, True)])
def test_the_chat_template_is_told_whether_to_think(
    bundled_engine: Engine, monkeypatch: pytest.MonkeyPatch, thinking: bool | None, opens: bool
) -> None:
    monkeypatch.setattr(bundled_engine.model, "_template", THINKING_TEMPLATE)
    messages = [{"role": "user", "content": "What is tea?"}]
    generation = bundled_engine.generate(messages, max_tokens=1, thinking=thinking)
    assert generation.opens_thinking is opens
    prompt = bundled_engine.prompt_tokens(messages)
    assert (bundled_engine.prompt(messages, thinking).tokens == prompt) is (thinking is None)


def test_numpy_computes_with_one_thread_beside_llama_cpp():
    # Where the environment does not say so: tests are run with OMP_NUM_THREADS=1.
    script = """
from threadpoolctl import threadpool_info
from specfit.backend import Engine, LoadOptions
Engine.load(LoadOptions(ctx=320, threads=1, drafting=False)).close()
print([pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"])
"""
    said = {name: value for name, value in os.environ.items() if "_NUM_THREADS" not in name}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=said)
    assert re.search(r"^\[1(, 1)*\]$", done.stdout, re.MULTILINE), done.stdout + done.stderr
