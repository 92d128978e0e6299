"""From the prompt to the first drafts: what the head is given, when, and how much is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from randomhead import VOCAB, Checkpoint, make_checkpoint

from specfit.backend import Engine, LoadOptions, Sampling, Spec, library
from specfit.backend import drafter as drafter_module
from specfit.backend.drafter import Drafter, draft
from specfit.backend.line import Line
from specfit.planner import DraftTree

GREEDY = Sampling(temp=0.0)
FEW = 100  # positions that may wait for the head where a test says so
STORY = "Once there was a fox who lived at the edge of a wood and counted the trains. "


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter_module, "PENDING", FEW)


class TwoChildrenEach:
    """A policy that lets every node have two children, three levels deep."""

    least_chance = 0.0
    reads_states = False

    def expand(self, tree: DraftTree, room: int) -> tuple[np.ndarray, int]:
        depth = int(tree.depths[-1])
        nodes = np.flatnonzero(tree.depths == depth) if depth < min(room, 3) else []
        return np.array(nodes, np.int32), 2


def random_features(checkpoint: Checkpoint) -> np.ndarray:
    """Of more tokens than any test here has."""
    n = 4000
    return checkpoint.pairs(n)[0].numpy().reshape(n, 3, -1)


def drafter_of(engine: Engine) -> Drafter:
    drafter = engine.lines[0].drafter
    assert drafter is not None
    return drafter


def drafted(drafter: Drafter, text: list[int]) -> DraftTree:
    return draft([drafter], [text], TwoChildrenEach(), 9).tree  # type: ignore[arg-type]


def assert_same(tree: DraftTree, other: DraftTree) -> None:
    np.testing.assert_array_equal(tree.parents, other.parents)
    np.testing.assert_array_equal(tree.tokens, other.tokens)
    np.testing.assert_allclose(tree.probs, other.probs, rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_however_a_text_was_remembered_and_cut_its_drafts_are_those_of_a_fresh_head(
    tmp_path: Path, few: None, seed: int
) -> None:
    random = np.random.default_rng(seed)
    checkpoint = make_checkpoint(seed=seed)
    drafter, features = Drafter(checkpoint.load(tmp_path / "used")), random_features(checkpoint)
    text: list[int] = []
    for _ in range(10):
        shared = int(random.integers(0, len(text) + 1))
        # As in the engine: the last shared token is the next one of a pair, and comes again.
        known = max(0, shared - 1)
        drafter.truncate(known)
        del text[shared:]
        for _ in range(int(random.integers(1, 6))):
            m = int(random.integers(1, 3 * FEW if random.random() < 0.3 else 9))
            text += random.integers(0, VOCAB, m).tolist()
            for end in range(known + FEW, len(text) + FEW, FEW):
                block = slice(known, min(end, len(text)))
                drafter.remember(features[block], text[: block.stop])
                known = block.stop
            assert drafter.n_known == len(text)
        if random.random() < 0.7:
            rooted = [*text, int(random.integers(VOCAB))]
            fresh = Drafter(checkpoint.load(tmp_path / "fresh"))
            fresh.head.commit(features[: len(text)].reshape(len(text), -1), rooted[1:])
            assert_same(drafted(drafter, rooted), drafted(fresh, rooted))


def test_the_features_that_wait_for_the_head_are_bounded(tmp_path: Path, few: None) -> None:
    checkpoint = make_checkpoint()
    drafter = Drafter(checkpoint.load(tmp_path))
    features = random_features(checkpoint)
    text: list[int] = []
    for rows in [FEW, 3, 1, FEW - 3, *[1] * 250]:
        start = len(text)
        text += [start % VOCAB] * rows
        drafter.remember(features[start : len(text)], text)
        assert drafter.n_known == len(text)
        assert len(text) - drafter.head.n_pairs <= FEW


def test_features_without_their_text_all_wait_for_the_draft(tmp_path: Path, few: None) -> None:
    checkpoint = make_checkpoint()
    drafter, other = (Drafter(checkpoint.load(tmp_path / name)) for name in "ab")
    features = random_features(checkpoint)
    n = 3 * FEW + 70
    text = torch.randint(0, VOCAB, (n + 1,)).tolist()
    for start in range(0, n, 97):
        block = features[start : min(n, start + 97)]
        drafter.remember(block)
        other.remember(block, text[: start + len(block)])
    assert (drafter.head.n_pairs, drafter.n_known) == (0, n)
    assert_same(drafted(drafter, text), drafted(other, text))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    options = LoadOptions(ctx=1600, threads=1, cost_profile="streamed")
    with Engine.load(options) as engine:
        yield engine


def prompt_of(engine: Engine, n: int) -> list[int]:
    tokens = engine.model.tokenize(STORY * (n // 8), add_special=False, parse_special=False)
    return tokens[:n]


def test_the_first_token_does_not_wait_for_the_head(engine: Engine) -> None:
    engine.forget()
    question = [{"role": "user", "content": STORY * 6}]
    generation = engine.generate(
        question, sampling=GREEDY, max_tokens=12, spec=Spec.parse("chain:2")
    )
    pieces = iter(generation)
    next(pieces)
    drafter, n_prompt = drafter_of(engine), engine.count_tokens(question)
    assert drafter.n_known == 0
    assert n_prompt > 100
    list(pieces)
    assert drafter.head.n_pairs >= n_prompt


def test_of_a_prompt_of_any_length_only_so_much_waits_for_the_first_cycle(
    engine: Engine,
) -> None:
    prompt, head = prompt_of(engine, 1400), drafter_of(engine).head
    for bound, waiting in ((2048, 1400), (512, 1400 - 1024)):
        engine.forget()
        line = Line(engine.context, 0, Drafter(head, bound))
        assert line.prefill(prompt, True, lambda: True)
        line.remember_prompt()
        assert line.drafter is not None
        assert line.n_past == line.drafter.n_known == 1400
        assert line.drafter.n_known - head.n_pairs == waiting


def test_a_mode_without_drafts_keeps_no_features(engine: Engine) -> None:
    engine.forget()
    assert engine.lines[0].prefill(prompt_of(engine, 40), False, lambda: True)
    assert drafter_of(engine).n_known == 0


def test_a_prompt_stopped_between_batches_goes_on_from_there(engine: Engine) -> None:
    engine.forget()
    prompt, line = prompt_of(engine, 1200), engine.lines[0]
    answers = iter([True, True, False])
    assert not line.prefill(prompt, True, lambda: next(answers))
    done = engine.context.n_past[0]
    assert 0 < done < len(prompt)
    asked = []
    assert line.prefill(prompt, True, lambda: not asked.append(1))
    assert len(asked) == 1
    assert engine.context.n_past[0] == len(prompt)
    stopped = drafted_after(engine, prompt)
    engine.forget()
    assert line.prefill(prompt, True, lambda: True)
    np.testing.assert_array_equal(drafted_after(engine, prompt).tokens[:3], stopped.tokens[:3])


def drafted_after(engine: Engine, prompt: list[int]) -> DraftTree:
    engine.lines[0].remember_prompt()
    return drafted(drafter_of(engine), [*prompt, prompt[10]])


def test_a_text_ahead_of_the_cache_is_not_taken_for_cached(engine: Engine) -> None:
    engine.forget()
    prompt, line = prompt_of(engine, 30), engine.lines[0]
    assert line.prefill(prompt[:20], False, lambda: True)
    line.tokens.append(prompt[20])  # as an interrupted cycle may leave it
    assert line.prefill(prompt, False, lambda: True)
    assert engine.context.n_past[0] == 30


def test_features_are_the_inputs_of_the_tapped_layers_in_their_order(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = engine.context
    engine.forget()
    context.tap(0, wanted=True)
    context.decode_prompt(prompt_of(engine, 9))
    layers = [
        library.floats(library.get_layer_input(context.handle, tap), 9, context.model.n_embd)
        for tap in context.taps
    ]
    assert len(layers) == 3
    wanted = np.stack(layers, axis=1)
    assert np.abs(wanted).max() > 0
    np.testing.assert_array_equal(context.features(9), wanted)
    # Were llama.cpp to lay them out otherwise, they would be copied together.
    monkeypatch.setattr(context, "_feature_view", lambda _places: None)
    monkeypatch.setattr(context, "_feature_places", [])
    np.testing.assert_array_equal(context.features(9), wanted)
    context._feature_places = []
    context.tap(0, wanted=False)
    engine.forget()


def test_features_that_nobody_wants_are_not_handed_out(engine: Engine) -> None:
    """A conversation may be decoded without for a while; the head then sees all of it."""
    engine.forget()
    line, drafter = engine.lines[0], drafter_of(engine)
    text = prompt_of(engine, 30)
    assert line.prefill(text[:10], True, lambda: True)
    line.remember_prompt()
    assert line.prefill(text[:20], False, lambda: True)
    assert not engine.context.tapped
    assert (line.n_past, drafter.n_known, line.missing(text)) == (20, 10, 10)
    assert line.prefill(text, True, lambda: True)
    line.remember_prompt()
    assert line.reused == 10
    assert (drafter.n_known, line.missing(text)) == (30, 0)
    engine.forget()


def test_a_running_report_is_the_mean_of_the_cycles_so_far(engine: Engine) -> None:
    engine.forget()
    generation = engine.generate(
        [{"role": "user", "content": "Tell me of a fox."}],
        sampling=GREEDY,
        max_tokens=24,
        spec=Spec.parse("chain:2"),
    )
    for i, _ in enumerate(generation):
        if i % 3 == 0:
            assert generation.report.cycles == len(generation.cycles)
    report, cycles = generation.report, generation.cycles
    assert report.cycles == len(cycles) > 3
    assert report.accepted == sum(cycle.accepted for cycle in cycles) > 0
    assert report.drafted == sum(cycle.rows - 1 for cycle in cycles)
    for name, of_a_cycle in (
        ("mean_acceptance_length", "committed"),
        ("measured_committed", "committed"),
        ("rows_per_cycle", "rows"),
        ("union_per_layer", "union_per_layer"),
        ("measured_cycle_ms", "measured_cycle_ms"),
        ("predicted_committed", "predicted_committed"),
    ):
        mean = np.mean([getattr(cycle, of_a_cycle) for cycle in cycles])
        assert getattr(report.means, name) == pytest.approx(mean)
