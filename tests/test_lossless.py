"""Speculation changes no text but where the target's own rounding does.

Logits of the same token differ in the last bits between batch widths, and small MoE models route in
near-ties, where that flips an expert and moves the logits a lot. So losslessness is strict on a
generated model whose experts are all used, where nothing can flip; on the bundled model every
difference is explained by its cause, and what is not explained fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from recording import (
    Run,
    exact_engine,
    falling_profile,
    flips,
    plain_rows,
    record,
    replayed_steps,
)

from specfit.backend import Engine, LoadOptions, Sampling
from specfit.models import bundled_head

MODES = ["chain:3", "eagle3:31", "specfit"]
GREEDY = Sampling(temp=0.0)
SAMPLED = Sampling(temp=0.7, top_k=0, top_p=1.0, min_p=0.05, seed=11)

PROMPTS = [
    "What do bees do in winter?",
    "Write two sentences about a lighthouse keeper who cannot sleep.",
    "How do I keep bread fresh for longer?",
    "Explain to a child what a shadow is.",
    "Mia has 7 apples and buys 5 more. How many apples does she have now?",
    "Give me a name for a small brown dog.",
    "Why do people put salt on icy roads?",
    "Tell me a short story about a lost glove.",
    "A train leaves with 20 people and 6 get off. How many are left?",
    "What is the difference between a lake and a sea?",
    "Summarize: The old bridge was closed on Monday because two of its beams had rusted. "
    "The town will build a new one next year. Until then a ferry takes people across.",
    "How does a bicycle stay upright?",
    "Write a friendly note to a neighbour who watered my plants.",
    "What should I pack for a weekend in the mountains?",
    "Describe the smell of rain.",
    "Tom reads 4 pages a day. How many pages does he read in 6 days?",
    "Why do cats purr?",
    "Explain what a library is for.",
    "What makes a good friend?",
    "Write a line about the colour green.",
]


@pytest.fixture(scope="module")
def exact(exact_pair: tuple[Path, Path]) -> Iterator[Engine]:
    with exact_engine(exact_pair) as engine:
        yield engine


@pytest.fixture(scope="module")
def rounding(bundled_f16: Path) -> Iterator[Engine]:
    """The bundled model, in which rounding flips experts."""
    options = LoadOptions(
        model=bundled_f16, head=bundled_head(), cost_profile="streamed", threads=1
    )
    with Engine.load(options) as engine:
        yield engine


# What is recorded once for several tests, plain decoding before all.
recorded = functools.cache(record)


@functools.cache
def rows_of_off(
    engine: Engine, prompt: str, sampling: Sampling, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and experts that gave each token of plain decoding but the first."""
    off = recorded(engine, prompt, "off", sampling, n)
    return plain_rows(engine, off.prompt, off.tokens[:-1])


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("mode", MODES)
def test_text_is_equal_where_nothing_can_flip(exact: Engine, mode: str, sampling: Sampling) -> None:
    accepted = 0
    for prompt in PROMPTS[:6]:
        off = recorded(exact, prompt, "off", sampling, 48)
        run = record(exact, prompt, mode, sampling, 48)
        assert run.tokens == off.tokens
        plain, _ = rows_of_off(exact, prompt, sampling, 48)
        assert np.abs(run.logits - plain).max() < 1e-3
        accepted += sum(len(step.path) - 1 for step in run.steps)
    assert accepted > 20, "the test means nothing if no draft is accepted"


def test_padded_decodes_change_no_text(exact_pair: tuple[Path, Path], tmp_path: Path) -> None:
    profile = falling_profile(tmp_path / "falling.json")
    padded = accepted = 0
    with exact_engine(exact_pair, cost_profile=profile) as engine:
        for prompt in PROMPTS[:6]:
            off = record(engine, prompt, "off", SAMPLED, 48)
            run = record(engine, prompt, "specfit", SAMPLED, 48)
            assert run.tokens == off.tokens
            plain, _ = plain_rows(engine, off.prompt, off.tokens[:-1])
            assert np.abs(run.logits - plain).max() < 1e-3
            assert all(step.rows in (1, 2) or step.rows >= 32 for step in run.steps)
            padded += sum(step.rows > len(step.tree) for step in run.steps)
            accepted += sum(len(step.path) - 1 for step in run.steps)
    assert padded > 10 and accepted > 10


# Largest change of a logit by re-batching alone, no expert flipped: see LOG.md.
NOISE = 0.1


def unexplained(
    off: Run, run: Run, plain_rows: Callable[[], tuple[np.ndarray, np.ndarray]], sampling: Sampling
) -> str | None:
    """Why the two texts differ, if the target's rounding is not the reason.

    plain_rows: those of `off`, which are those of both up to the difference.
    """
    first = next(
        (i for i, (a, b) in enumerate(zip(off.tokens, run.tokens, strict=False)) if a != b), None
    )
    if first is None:
        return None if len(off.tokens) == len(run.tokens) else "one text is longer"
    if first == 0:
        return "the first token comes from the prompt alone"
    plain, plain_experts = plain_rows()
    if flips(run.experts[:first], plain_experts[:first]).any():
        return None
    row = first - 1
    change = float(np.abs(run.logits[row] - plain[row]).max())
    if change > NOISE:
        return f"a logit moved by {change:.3f} without an expert flip"
    if sampling.temp == 0:
        second, best = np.sort(plain[row])[-2:]
        if best - second > 2 * change:
            return f"a margin of {best - second:.3f} at a change of {change:.3f}"
        return None
    moved = np.abs(softmax(run.logits[row]) - softmax(plain[row])).max()
    return f"a probability moved by {moved:.3f}" if moved > NOISE / 4 else None


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits - np.logaddexp.reduce(logits))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("mode", MODES)
def test_every_difference_on_the_bundled_model_has_a_cause(
    rounding: Engine, mode: str, sampling: Sampling
) -> None:
    same, accepted = 0, 0
    prompts = PROMPTS if sampling is GREEDY else PROMPTS[::2]
    for prompt in prompts:
        off = recorded(rounding, prompt, "off", sampling, 32)
        run = recorded(rounding, prompt, mode, sampling, 32)
        plain = functools.partial(rows_of_off, rounding, prompt, sampling, 32)
        assert unexplained(off, run, plain, sampling) is None, prompt
        same += run.tokens == off.tokens
        accepted += sum(len(step.path) - 1 for step in run.steps)
    assert same >= 0.6 * len(prompts)
    assert accepted > 5 * len(prompts)


@pytest.mark.parametrize("mode", MODES)
def test_a_committed_path_replayed_in_as_many_rows_has_its_logits(
    rounding: Engine, mode: str
) -> None:
    flipped = rows = 0
    for prompt in PROMPTS[:8]:
        run = recorded(rounding, prompt, mode, GREEDY, 32)
        tainted = False  # once an expert flipped, the KV cache behind it differs
        for step, (logits, experts) in zip(run.steps, replayed_steps(rounding, run), strict=True):
            flipped_here = flips(step.experts, experts)
            tainted = tainted or bool(flipped_here.any())
            flipped += int(flipped_here.sum())
            rows += len(logits)
            if not tainted:
                assert np.abs(step.logits - logits).max() < NOISE
    assert flipped < 0.1 * rows
