"""Several answers at once: each is what it would be alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from recording import exact_engine

from specfit.backend import Engine, Generation, Sampling, Spec
from specfit.backend.together import together

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
