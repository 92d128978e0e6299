"""Decoding with drafts that are looked up in the text, with a head and without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from recording import exact_engine, record
from tinymodel import write_recurrent

from specfit.backend import Engine, LoadOptions, Sampling, Spec
from specfit.backend.together import together
from specfit.planner import HEAD, LOOKUP, NgramIndex

GREEDY = Sampling(temp=0.0)
SAMPLED = Sampling(temp=0.7, top_k=0, top_p=1.0, min_p=0.05, seed=11)
MODES = ["chain:3", "eagle3:31", "count", "specfit", "specfit:ratio"]
LINE = "The quick brown fox jumps over the lazy dog near the old river bank."
REPEATS = [{"role": "user", "content": f"Repeat this line five times, word for word: {LINE}"}]
PROMPTS = [
    f"{LINE} {LINE} {LINE}",
    "one two three four one two three four one two three",
    "Tell me a short story about a lost glove.",
    "name: fox, age: 3; name: dog, age: 5; name: hen, age: 2; name:",
]


@pytest.fixture(scope="module")
def exact(exact_pair: tuple[Path, Path]) -> Iterator[Engine]:
    """A generated model in which no expert can flip, without a head."""
    with exact_engine(exact_pair, ctx=512, lines=3, drafters=("ngram",)) as engine:
        yield engine


@pytest.fixture(scope="module", params=[("ngram",), ("eagle3", "ngram")], ids="+".join)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The bundled model on a machine whose rows are cheap."""
    options = LoadOptions(ctx=512, threads=1, cost_profile="gpu", drafters=request.param)
    with Engine.load(options) as engine:
        yield engine


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("mode", MODES)
def test_text_is_equal_where_nothing_can_flip(exact: Engine, mode: str, sampling: Sampling) -> None:
    assert exact.drafters == ("ngram",)
    accepted = 0
    for prompt in PROMPTS:
        off = record(exact, prompt, "off", sampling, 48)
        run = record(exact, prompt, mode, sampling, 48)
        assert run.tokens == off.tokens
        accepted += sum(len(step.path) - 1 for step in run.steps)
    assert accepted > 8, "the test means nothing if no draft is accepted"


def test_lines_look_up_their_own_texts(exact: Engine) -> None:
    def answers(mode: str) -> list[list[int]]:
        spec = Spec.parse(mode)
        asked = [
            exact.generate(
                [{"role": "user", "content": prompt}], sampling=GREEDY, max_tokens=32, spec=spec
            )
            for prompt in PROMPTS
        ]
        exact.forget()
        done = list(together(exact, asked, exact.policy(spec)))
        accepted.append(sum(one.report.completion_tokens - len(one.cycles) - 1 for one in done))
        return [one.tokens for one in asked]

    accepted: list[int] = []
    assert answers("specfit") == answers("off")
    assert accepted[0] > 8
    assert accepted[1] == 0


@pytest.mark.parametrize("mode", ["specfit", "specfit:ratio"])
def test_a_text_that_repeats_itself_is_drafted_and_accepted(engine: Engine, mode: str) -> None:
    lengths = []
    for _ in range(3):
        generation = engine.generate(REPEATS, sampling=GREEDY, spec=Spec.parse(mode))
        assert LINE in "".join(generation)
        lengths.append(generation.report.means.mean_acceptance_length)
    assert lengths[-1] > 2


def test_the_trees_tell_who_named_their_tokens(engine: Engine) -> None:
    generation = engine.generate(REPEATS, sampling=GREEDY, spec=Spec.parse("specfit"))
    line, drafters = engine.lines[0], set()
    generation.begin(line)
    while not generation.ended:
        cycle = engine.cycle([generation.turn(line)], engine.policy(Spec.parse("specfit")))
        generation.advance(cycle.report, cycle.tokens[0])
        if cycle.drafted is not None:
            tree = cycle.drafted.tree
            assert (tree.source[1:] > 0).all()
            drafters |= set(tree.source[1:].tolist())
    expected = {1 << LOOKUP}
    if "eagle3" in engine.drafters:
        expected |= {1 << HEAD, 1 << HEAD | 1 << LOOKUP}
    assert drafters <= expected
    assert any(source & 1 << LOOKUP for source in drafters)


def test_the_index_is_that_of_the_text_whatever_was_cut(engine: Engine) -> None:
    spec = Spec.parse("specfit")

    def ask(messages: Sequence[dict[str, str]]) -> str:
        return "".join(engine.generate(messages, sampling=GREEDY, max_tokens=24, spec=spec))

    first = ask(REPEATS)
    turns = [*REPEATS, {"role": "assistant", "content": first}]
    for content in ("Again.", "And in other words?"):
        ask([*turns, {"role": "user", "content": content}])
        line, afresh = engine.lines[0], NgramIndex()
        afresh.extend(line.tokens)
        index = line.looked_up()
        assert len(index) == len(line.tokens)
        for n in range(len(line.tokens)):
            end = line.tokens[n : n + 2]
            assert index.following(end) == afresh.following(end)


def test_a_cycle_in_which_nothing_is_found_is_plain_decoding() -> None:
    """No tree is made or decoded, and nothing planned: the lookup, asked once, is all there is."""
    options = LoadOptions(ctx=512, threads=1, cost_profile="gpu", drafters=("ngram",))
    with Engine.load(options) as engine:
        (line,) = engine.lines
        assert line.lookup is not None
        asked: list[object] = []
        line.lookup.following = lambda path=(): asked.append(path) or []  # type: ignore
        policy = engine.policy(Spec.parse("specfit"))
        for part, what in ((engine.context, "decode_tree"), (policy, "choose"), (policy, "begin")):
            setattr(part, what, None)  # not to be called
        generation = engine.generate(REPEATS, sampling=GREEDY, max_tokens=40)
        assert "".join(generation)
        assert generation.report.drafted == 0
        assert len(asked) == len(generation.cycles) == generation.report.cycles


def test_a_model_of_one_state_says_once_that_nothing_is_drafted(tmp_path: Path) -> None:
    write_recurrent(tmp_path / "mamba.gguf")
    options = LoadOptions(model=tmp_path / "mamba.gguf", ctx=256, threads=1)
    with Engine.load(options) as engine:
        (notice,) = engine.notices
        assert "decoding without drafts: its memory is one state" in notice
        assert not engine.drafts
        generation = engine.generate(REPEATS, sampling=GREEDY, max_tokens=8)
        assert "".join(generation) is not None
        assert generation.report.drafted == 0


def test_without_any_drafter_nothing_is_measured_and_nothing_drafted() -> None:
    options = LoadOptions(ctx=256, threads=1, drafters=())
    with Engine.load(options) as engine:
        assert not engine.drafts
        generation = engine.generate(REPEATS, sampling=GREEDY, max_tokens=8)
        assert "".join(generation)
        assert generation.report.drafted == 0
        assert generation.cycles[0].predicted_cycle_ms == 0
    with Engine.load(replace(options, drafters=("ngram",))) as engine:
        assert engine.notices == ()
        generation = engine.generate(REPEATS, sampling=GREEDY, max_tokens=8)
        assert "".join(generation)
        assert np.mean([cycle.predicted_cycle_ms for cycle in generation.cycles]) > 0
