"""Several answers at once: each is what it would be alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np
import pytest
from recording import exact_engine, falling_profile

from specfit.backend import Engine, Generation, LoadOptions, Sampling, Spec, loading
from specfit.backend.errors import SpecfitError
from specfit.backend.profiles import load_profile
from specfit.backend.together import together
from specfit.planner import DraftTree, best_lines, pack, union_per_layer

PROMPTS = [
    "Why is the sky blue?",
    "Tell me about rivers.",
    "Count to ten, slowly.",
    "Name a bird.",
    "What is a shadow? Answer in one sentence, and then in two.",
    "Why do cats purr?",
    "Say nothing.",
]
MODES = ["off", "chain:2", "eagle3:24", "count", "specfit"]


@pytest.fixture(scope="module")
def exact(exact_pair: tuple[Path, Path]) -> Iterator[Engine]:
    with exact_engine(exact_pair, ctx=256, lines=3) as engine:
        yield engine


def generations(engine: Engine, mode: str, temp: float, limit: int = 24) -> Iterator[Generation]:
    for number, prompt in enumerate(PROMPTS):
        yield engine.generate(
            [{"role": "user", "content": prompt}],
            sampling=Sampling(temp=temp, seed=number),
            max_tokens=limit + number,  # so that they do not end together
            spec=Spec.parse(mode),
        )


@pytest.mark.parametrize("temp", [0.0, 0.8])
@pytest.mark.parametrize("mode", MODES)
def test_answers_are_those_that_are_given_alone(exact: Engine, mode: str, temp: float) -> None:
    alone = []
    for generation in generations(exact, "off", temp):
        exact.forget()
        alone.append((list(generation), generation.tokens)[1])
    exact.forget()
    asked = list(generations(exact, mode, temp))
    finished = list(together(exact, asked, exact.policy(Spec.parse(mode))))
    assert [one.tokens for one in asked] == alone
    assert set(map(id, finished)) == set(map(id, asked))
    widest = max(cycle.rows for one in asked for cycle in one.cycles)
    assert widest == 3 if mode == "off" else widest > 4
    for one in asked:
        assert one.report.text == "".join(exact.model.piece(t).decode() for t in one.tokens)


def test_padding_leaves_the_answers_of_all_lines_alone(
    exact_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    profile = falling_profile(tmp_path / "falling.json")
    with exact_engine(exact_pair, ctx=256, lines=5, cost_profile=profile) as engine:
        runs = {}
        for mode in ("off", "specfit"):
            runs[mode] = list(generations(engine, mode, 0.8))
            for _ in together(engine, runs[mode], engine.policy(Spec.parse(mode))):
                pass
        cycles = {mode: [c for one in run for c in one.cycles] for mode, run in runs.items()}
    assert [one.tokens for one in runs["specfit"]] == [one.tokens for one in runs["off"]]
    for of_mode in cycles.values():
        assert all(cycle.decoded in (1, 2) or cycle.decoded >= 32 for cycle in of_mode)
        assert any(cycle.decoded >= 32 for cycle in of_mode)
    assert all(cycle.padding for cycle in cycles["off"] if cycle.lines > 2)


@pytest.mark.parametrize("mode", ["off", "specfit"])
def test_lines_without_drafts_are_padded_only_where_there_are_sequences_for_it(
    exact_pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(loading, "lines_that_pay", lambda *_: 5)
    profile = falling_profile(tmp_path / "falling.json")
    options = {"ctx": 256, "cost_profile": profile, "drafters": ()}
    texts = []
    for lines in (5, None):
        with exact_engine(exact_pair, lines=lines, **options) as engine:
            run = list(generations(engine, mode, 0.8, limit=8))
            for _ in together(engine, run, engine.policy(Spec.parse(mode))):
                pass
        several = [cycle for one in run for cycle in one.cycles if cycle.lines > 2]
        assert several
        assert all((cycle.padding > 0) == (lines is None) for cycle in several)
        texts.append([one.tokens for one in run])
    assert texts[0] == texts[1]


def test_padding_uses_the_experts_of_the_root() -> None:
    with Engine.load(LoadOptions(ctx=512, threads=1)) as engine:
        context, observer = engine.context, engine.context.observer
        assert observer is not None
        context.decode_prompt(engine.prompt_tokens([{"role": "user", "content": PROMPTS[0]}]))
        observer.arm()
        context.decode_tree(DraftTree.of_root(700), padding=31)
        ids = observer.selections(32)
        observer.disarm()
        assert ids is not None
        n_experts = engine.model.info.n_experts
        assert union_per_layer(pack(ids, n_experts)).mean() < ids.shape[2] + 0.2
        context.commit([[0]])
        ends = [llama.llama_memory_seq_pos_max(context._memory, seq) for seq in range(33)]
        assert ends[0] == context.n_past[0] - 1
        assert max(ends[1:]) < context.n_past[0] - 1


@pytest.mark.parametrize(
    ("lines", "mode"), [(8, "eagle3"), (8, "specfit"), (1, "eagle3:60:7:100"), (1, "chain:63")]
)
def test_trees_of_any_number_of_lines_fit_into_the_rows(
    exact_pair: tuple[Path, Path], lines: int, mode: str
) -> None:
    with exact_engine(exact_pair, ctx=256, lines=lines) as engine:
        asked = list(generations(engine, mode, 0.0, limit=12))
        for _ in together(engine, asked, engine.policy(Spec.parse(mode))):
            pass
        plain = list(generations(engine, "off", 0.0, limit=12))
        for _ in together(engine, plain, engine.policy(Spec.parse("off"))):
            pass
    assert [one.tokens for one in asked] == [one.tokens for one in plain]
    assert max(cycle.rows for one in asked for cycle in one.cycles) > lines


def test_more_lines_than_a_decode_has_rows_are_refused() -> None:
    with pytest.raises(SpecfitError, match="64 lines at once are too many: 63 at most"):
        Engine.load(LoadOptions(lines=64))


def test_a_line_that_is_free_goes_on_with_the_prompt_it_knows(exact: Engine) -> None:
    exact.forget()
    policy = exact.policy(Spec.parse("off"))
    first = list(generations(exact, "off", 0.0))[:3]
    list(together(exact, first, policy))
    followed = first[1]
    turns = [
        {"role": "user", "content": PROMPTS[1]},
        {"role": "assistant", "content": followed.report.text},
        {"role": "user", "content": "Go on."},
    ]
    second = exact.generate(turns, sampling=Sampling(temp=0.0), max_tokens=1)
    list(together(exact, [second], policy))
    (line,) = [one for one in exact.lines if one.tokens == second.prompt_tokens]
    assert line.number == 1


@pytest.mark.parametrize("mode", ["off", "chain:2"])
def test_what_prompts_have_in_common_is_processed_once(
    exact: Engine, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    system = {"role": "system", "content": "You are a lighthouse keeper who counts ships. " * 4}

    def asked() -> list[Generation]:
        return [
            exact.generate(
                [system, {"role": "user", "content": prompt}],
                sampling=Sampling(temp=0.0),
                max_tokens=20,
                spec=Spec.parse(mode),
            )
            for prompt in PROMPTS
        ]

    alone = []
    for generation in asked():
        exact.forget()
        list(generation)
        alone.append(generation.tokens)
    processed, decode_prompt = [], exact.context.decode_prompt

    def counting(tokens: list[int], goes_on: Callable[[], bool], line: int) -> None:
        processed.append(len(tokens))
        decode_prompt(tokens, goes_on, line)

    exact.forget()
    monkeypatch.setattr(exact.context, "decode_prompt", counting)
    several = asked()
    list(together(exact, several, exact.policy(Spec.parse(mode))))
    assert [one.tokens for one in several] == alone
    whole = [len(one.prompt_tokens) for one in several]
    assert processed[0] == whole[0]
    assert max(processed[1:]) < 0.6 * min(whole)


def test_a_stopped_answer_leaves_the_others_alone(exact: Engine) -> None:
    asked = list(generations(exact, "chain:2", 0.0))[:3]
    exact.forget()
    asked[1].stop()
    finished = list(together(exact, asked, exact.policy(Spec.parse("chain:2"))))
    assert finished[0] is asked[1]
    assert asked[1].report.finish_reason == "stopped"
    assert all(len(one.tokens) > 10 for one in (asked[0], asked[2]))


def test_nothing_to_answer_is_no_error(exact: Engine) -> None:
    assert list(together(exact, [], exact.policy(Spec.parse("off")))) == []


@pytest.mark.parametrize(("profile", "least", "most"), [("cpu-experts", 8, 31), ("gpu", 16, 32)])
def test_as_many_lines_as_pay(profile: str, least: int, most: int) -> None:
    cost = load_profile(profile, np.ones(48), 64)
    unions = 48 * np.interp(np.arange(65), [1, 2, 4, 8, 16, 31, 64], [8, 12, 18, 26, 34, 45, 65])
    assert least <= best_lines(cost, unions, 32) <= most
    assert best_lines(cost, unions, 3) == 3
    assert best_lines(cost, unions, 0) == 1


def test_an_engine_finds_out_how_many_lines_it_takes() -> None:
    with Engine.load(LoadOptions(ctx=256, threads=1, lines=None)) as engine:
        assert 1 <= len(engine.lines) <= 32
        assert (f"{len(engine.lines)} lines" in engine.description) == (len(engine.lines) > 1)
        asked = list(generations(engine, "specfit", 0.7, limit=6))
        finished = list(together(engine, asked, engine.policy(Spec.parse("specfit"))))
        assert len(finished) == len(PROMPTS)
        assert all(one.report.text for one in finished)
