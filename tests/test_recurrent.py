"""Models that keep one state of a text, which cannot be cut: it is begun anew where others cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tinymodel import write_recurrent

from specfit.backend import Engine, Generation, LoadOptions, Sampling, Spec
from specfit.backend.together import together

GREEDY = Sampling(temp=0.0)
ROAD = "Please tell me of the long and winding road that leads to the"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recurrent") / "mamba.gguf"
    write_recurrent(path)
    return path


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    with Engine.load(LoadOptions(model=model, ctx=512, threads=1, lines=2)) as engine:
        yield engine


def asked(engine: Engine, *contents: str) -> Generation:
    """Questions and answers by turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    return engine.generate(messages, sampling=GREEDY, max_tokens=10, spec=Spec.parse("off"))


def answered(engine: Engine, *contents: str) -> list[int]:
    generation = asked(engine, *contents)
    for _ in generation:
        pass
    return generation.tokens


def test_an_answer_can_be_given_anew_and_a_question_asked_otherwise(engine: Engine) -> None:
    for question in (f"{ROAD} door", f"{ROAD} door", f"{ROAD} window"):
        again = answered(engine, question)
        engine.forget()
        assert again == answered(engine, question)
    assert answered(engine, f"{ROAD} door") != again


def test_a_conversation_goes_on(engine: Engine) -> None:
    engine.forget()
    answered(engine, f"{ROAD} door")
    second = answered(engine, f"{ROAD} door", "It is green.", "And then?")
    engine.forget()
    assert second == answered(engine, f"{ROAD} door", "It is green.", "And then?")


def test_a_text_that_only_grew_is_not_processed_again(engine: Engine) -> None:
    engine.forget()
    line, prompt = engine.lines[0], list(range(40, 100))
    assert line.prefill(prompt[:50], False, lambda: True)
    assert line.prefill(prompt, False, lambda: True)
    assert (line.reused, line.tokens) == (50, prompt)
    assert line.prefill(prompt[:50], False, lambda: True)
    assert (line.reused, line.tokens) == (0, prompt[:50])


def test_lines_that_begin_alike_share_no_state(engine: Engine) -> None:
    places = ("door", "window", "garden", "sea")
    alone = {place: answered(engine, f"{ROAD} {place}") for place in places}
    engine.forget()
    generations = {asked(engine, f"{ROAD} {place}"): place for place in places}
    done = {
        generations[one]: one.tokens
        for one in together(engine, generations, engine.policy(Spec.parse("off")))
    }
    assert done == alone
    assert len({tuple(tokens) for tokens in alone.values()}) == len(places)


def test_left_open_how_many_lines_it_has_one_and_its_state_is_no_prompt_cache(
    model: Path, tmp_path: Path
) -> None:
    options = LoadOptions(
        model=model, ctx=512, threads=1, lines=None, prompt_cache=tmp_path / "cache"
    )
    with Engine.load(options) as engine:
        assert len(engine.lines) == 1
        assert answered(engine, f"{ROAD} door")
    assert "was not written: this model keeps no state of every token" in engine.not_kept
    assert not (tmp_path / "cache").exists()
