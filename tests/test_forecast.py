"""Which experts are expected of drafts, and how that is learned."""

from __future__ import annotations

import numpy as np
import pytest
from costcases import foreseen_union
from numpy.typing import NDArray

from specfit.planner import DraftTree, Forecast, UnionByRows, pack, union_per_layer
from specfit.planner.experts import best, sizes, unpack
from specfit.planner.forecast import ExpertForecast
from specfit.planner.forecast_report import forecast_quality, likeliest
from specfit.planner.tokentable import TokenTable
from specfit.planner.trace import TracedStep, TracedText

LAYERS, EXPERTS, USED, WIDTH = 3, 64, 4, 24


def forecast_of(n_layers: int = 2, n_used: int = 2) -> Forecast:
    return Forecast(n_layers, 128, n_used, np.ones(n_layers))


def chain(tokens: list[int], states: NDArray[np.float32] | None = None) -> DraftTree:
    n = len(tokens)
    return DraftTree(
        np.arange(-1, n - 1, dtype=np.int32),
        np.array(tokens, np.int32),
        np.array([1.0] + [0.5] * (n - 1)),
        states,
    )


class World:
    """Made-up experts: those of the token, of the state behind the parent, or of both."""

    def __init__(self, by_token: float, by_state: float, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.by_token = by_token * self.random.standard_normal((50, LAYERS, EXPERTS))
        self.by_state = by_state * self.random.standard_normal((WIDTH, LAYERS, EXPERTS)) / 5

    def text(self, steps: int) -> TracedText:
        return TracedText("made up", np.zeros(0, np.int32), tuple(self._steps(steps)))

    def _steps(self, steps: int) -> list[TracedStep]:
        return [self._step() for _ in range(steps)]

    def _step(self) -> TracedStep:
        states = self.random.standard_normal((4, WIDTH)).astype(np.float16)
        tree = DraftTree(
            np.array([-1, 0, 0, 0, 1, 1, 2, 3], np.int32),
            self.random.integers(0, 50, 8).astype(np.int32),
            np.array([1, 0.5, 0.3, 0.2, 0.5, 0.4, 0.6, 0.7]),
        )
        behind = np.tensordot(states[tree.parents].astype(np.float32), self.by_state, 1)
        behind[0] = 0.0
        scores = self.by_token[tree.tokens] + behind
        scores += 0.3 * self.random.standard_normal(scores.shape)
        used = best(scores.astype(np.float32), USED)
        expanded = np.arange(4, dtype=np.int32)
        return TracedStep(0, tree, 0, np.ones(8), used, None, states, expanded)


def quality(world: World, *, trained: bool) -> dict[str, float]:
    """Recall by signal, when their weights have been learned."""
    forecast = Forecast(LAYERS, EXPERTS, USED, np.ones(LAYERS))
    if trained:
        forecast.train([world.text(100), world.text(100)])
    look(forecast, world.text(150))
    return {row.signal: row.recall for row in forecast_quality([world.text(100)], forecast)}


def look(forecast: Forecast, text: TracedText) -> None:
    """Learns from every step, where a planner looks now and then."""
    for step in text.steps:
        tree, seen = likeliest(step, 4)
        forecast.learn(tree, forecast.of(tree), seen)


class TestExperts:
    def test_unpacked_sets_are_what_was_packed(self) -> None:
        ids = np.array([[[1, 63], [0, 69]], [[5, 64], [2, 3]]])
        flags = unpack(pack(ids, 70), 70).reshape(2, 2, 70)
        assert flags.sum() == 8
        assert np.take_along_axis(flags, ids, axis=-1).all()

    def test_the_best_are_those_with_the_highest_scores(self) -> None:
        scores = np.random.default_rng(0).random((5, 2, 70), np.float32)
        ids = np.argsort(-scores, axis=-1)[..., :3]
        assert (best(scores, 3) == pack(ids, 70)).all()


class TestTokens:
    def test_a_token_is_expected_to_use_what_it_used(self) -> None:
        forecast = forecast_of()
        used = pack(np.array([[[1, 2], [3, 127]], [[1, 5], [3, 4]]]), 128)
        forecast.learn(chain([7, 9]), None, used)
        assert (forecast.of(chain([9, 7])).sets == used[::-1]).all()

    def test_what_it_mostly_used_outweighs_what_it_used_last(self) -> None:
        forecast = forecast_of()
        mostly, once = (np.array([[[e, e + 1]] * 2]) for e in (10, 20))
        for ids in (mostly, mostly, mostly, once):
            forecast.learn(DraftTree.of_root(7), None, pack(ids, 128))
        assert (forecast.of(DraftTree.of_root(7)).sets == pack(mostly, 128)).all()

    def test_a_habit_that_changed_is_followed(self) -> None:
        table = TokenTable(2)
        for used in ([1, 0],) * 100 + ([0, 1],) * 100:
            table.learn(np.array([5], np.int32), np.array([used], np.uint8))
        assert table.shares[table.slots(np.array([5], np.int32))[0]].argmax() == 1

    def test_memory_is_bounded_and_forgets_the_oldest(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("specfit.planner.tokentable.CAPACITY", 3)
        forecast = forecast_of()
        for token in range(5):
            used = pack(np.array([[[token, token + 50]] * 2]), 128)
            forecast.learn(DraftTree.of_root(token), None, used)
        assert not forecast.knows(np.array([0], np.int32))
        assert forecast.knows(np.array([2, 3, 4], np.int32))
        assert forecast.of(DraftTree.of_root(4)).sets[0, 0, 0] == np.uint64(16 + 2**54)


class TestUnknownTokens:
    def test_one_costs_something_even_if_nothing_is_known(self) -> None:
        expected = forecast_of().of(chain([1, 2]))
        assert expected.unforeseen[1] > 0
        assert expected.unforeseen[0] == 0
        assert (sizes(expected.sets) == 2).all()

    def test_what_they_bring_is_learned(self) -> None:
        apart, alike = forecast_of(), forecast_of()
        for token in range(0, 200, 2):
            tree = chain([token, token + 1])
            news = [token % 60, token % 60 + 1], [token % 60 + 60, token % 60 + 61]
            apart.learn(tree, apart.of(tree), pack(np.array([[news[0]] * 2, [news[1]] * 2]), 128))
            alike.learn(tree, alike.of(tree), pack(np.array([[news[0]] * 2, [news[0]] * 2]), 128))
        tree = chain([998, 999])
        assert growth(apart, tree) == pytest.approx(2 * 2, rel=0.2)
        assert growth(alike, tree) < 0.7


def growth(forecast: Forecast, tree: DraftTree) -> float:
    """Weighted growth of the union that a plan of the whole tree would be priced with."""
    expected, weights = forecast.of(tree), np.ones(2)
    everyone = np.ones(len(tree), np.bool_)
    root = np.arange(len(tree)) == 0
    return forecast.scale * (
        foreseen_union(expected, everyone, weights) - foreseen_union(expected, root, weights)
    )


class TestUnions:
    def test_that_sets_share_more_than_forecast_is_noticed(self) -> None:
        """Tokens that use quite different experts alone and the root's when behind it."""
        forecast = forecast_of()
        lone, together = (
            pack(np.array([[[3, 4]] * 2]), 128),
            pack(np.array([[[1, 2]] * 2] * 2), 128),
        )
        tree = chain([1, 2])
        for _ in range(150):
            for _ in range(3):
                forecast.learn(DraftTree.of_root(2), None, lone)
            forecast.learn(tree, forecast.of(tree), together)
        assert growth(forecast, tree) < 0.35 * 4

    def test_a_few_looks_correct_what_random_tokens_told(self) -> None:
        unions, rng = UnionByRows(np.full(65, 24.0)), np.random.default_rng(0)
        for look in range(200):
            unions.learn(31, 40.0 * (1 + 0.1 * rng.normal()))
            assert look < 4 or unions.mean[31] == pytest.approx(40.0, rel=0.15)
        assert unions.mean[1] == 24.0  # one row's is certain

    @pytest.mark.parametrize("noise", [0.0, 1.0, 4.0])
    def test_expected_unions_come_to_be_right(self, noise: float) -> None:
        """However little can be known of the experts."""
        world = World(by_token=1.0, by_state=0.5)
        world.by_token[:] *= 1 / (1 + noise)
        forecast = Forecast(LAYERS, EXPERTS, USED, np.ones(LAYERS))
        look(forecast, world.text(100))
        mixed = forecast_quality([world.text(150)], forecast)[-1]
        assert np.abs(mixed.bias).max() < 0.08


class TestMixing:
    @pytest.mark.parametrize("trained", [False, True])
    @pytest.mark.parametrize(("by_token", "by_state"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
    def test_all_signals_together_are_never_much_worse_than_the_best(
        self, by_token: float, by_state: float, trained: bool
    ) -> None:
        recalls = quality(World(by_token, by_state), trained=trained)
        mixed = recalls.pop("mixed")
        assert mixed > max(recalls.values()) - 0.02

    def test_a_trained_probe_tells_what_the_token_does_not(self) -> None:
        recalls = quality(World(by_token=1.0, by_state=1.0), trained=True)
        assert recalls["mixed"] > recalls["token"] + 0.1

    def test_an_untrained_probe_learns_on_the_way(self) -> None:
        world = World(by_token=0.0, by_state=1.0)
        forecast = Forecast(LAYERS, EXPERTS, USED, np.ones(LAYERS))
        early = forecast_quality([world.text(50)], forecast)[-1].recall
        look(forecast, world.text(300))
        late = forecast_quality([world.text(50)], forecast)[-1].recall
        assert late > 2 * early

    def test_without_drafts_there_is_nothing_to_train_on(self) -> None:
        with pytest.raises(ValueError, match="no drafts"):
            forecast_of().train([])


class TestGrowingTrees:
    def test_level_by_level_is_the_same_as_at_once(self) -> None:
        forecast, step = trained()
        states = np.zeros((8, WIDTH), np.float32)
        states[:4] = step.hidden
        whole = DraftTree(step.tree.parents, step.tree.tokens, step.tree.probs, states)
        tree = DraftTree.of_root(int(whole.tokens[0]))
        forecast.of(tree)
        for level in (slice(1, 4), slice(4, 8)):
            parents = whole.parents[level]
            tree = tree.grown(
                parents, whole.tokens[level], whole.probs[level], states[np.unique(parents)]
            )
            grown = forecast.of(tree)
        forecast.of(DraftTree.of_root(49))
        at_once = forecast.of(whole)
        assert (grown.sets == at_once.sets).all()
        assert (grown.unforeseen == at_once.unforeseen).all()

    def test_equal_tokens_behind_another_state_are_forecast_anew(self) -> None:
        forecast, step = trained()
        sets = []
        for state in (step.hidden[0], -step.hidden[0]):
            states = np.zeros((2, WIDTH), np.float32)
            states[0] = state
            sets.append(forecast.of(chain([1, 2], states)).sets[1])
        assert (sets[0] != sets[1]).any()


class TestState:
    def test_a_restored_forecast_expects_the_same(self) -> None:
        forecast, step = trained()
        copy = Forecast(LAYERS, EXPERTS, USED, np.ones(LAYERS))
        copy.restore(forecast.state())
        for _ in range(2):
            one, other = (f.of(step.tree) for f in (forecast, copy))
            assert (one.sets == other.sets).all()
            assert (one.unforeseen == other.unforeseen).all()
            assert forecast.scale == copy.scale
            for f in (forecast, copy):  # and learns the same
                f.learn(step.tree, None, step.experts)

    @pytest.mark.parametrize("name", ["tokens", "shares", "linear", "gram", "projection", "rows"])
    def test_what_does_not_fit_is_refused(self, name: str) -> None:
        state = dict(trained()[0].state())
        fresh = Forecast(LAYERS, EXPERTS, USED, np.ones(LAYERS))
        for wrong in (None, np.zeros((3, 1)), np.full_like(state[name], 1, np.complex64)):
            damaged = {k: v for k, v in state.items() if k != name}
            if wrong is not None:
                damaged[name] = wrong
            with pytest.raises(ValueError, match=name):
                fresh.restore(damaged)

    def test_what_another_model_learned_is_refused(self) -> None:
        with pytest.raises(ValueError, match="not what a forecast of this model"):
            forecast_of().restore(trained()[0].state())


def trained() -> tuple[Forecast, TracedStep]:
    world = World(by_token=1.0, by_state=1.0)
    forecast = Forecast(LAYERS, EXPERTS, USED, np.ones(LAYERS))
    forecast.train([world.text(60)])
    forecast_quality([world.text(20)], forecast)
    return forecast, world.text(1).steps[0]


def test_a_likeness_brings_nothing_new() -> None:
    expected = ExpertForecast(pack(np.array([[[1, 2]], [[3, 4]]]), 128), np.array([0.0, 2.0]))
    wider = expected.with_likenesses(np.array([1]))
    everyone, weights = np.ones(3, np.bool_), np.ones(1)
    narrow = foreseen_union(expected, everyone[:2], weights)
    assert foreseen_union(wider, everyone, weights) == narrow
    assert union_per_layer(wider.sets).tolist() == [4]
