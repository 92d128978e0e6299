"""What is learned about drafts: chances of being accepted, and what one more level may bring."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfit.planner import HEAD, LOOKUP, Acceptance, DraftTree, Outlook, named_by
from specfit.planner.regression import RunningRegression


def chain(*probs: float, tokens: list[int] | None = None) -> DraftTree:
    n = len(probs) + 1
    return DraftTree(
        np.arange(-1, n - 1, dtype=np.int32),
        np.array(tokens or range(n), np.int32),
        np.array([1.0, *probs]),
    )


def taught(rate: float, temperature: float = 1.0, prob: float = 0.9, n: int = 2000) -> Acceptance:
    acceptance, rng = Acceptance(), np.random.default_rng(0)
    acceptance.heat(temperature)
    tree = chain(prob)
    for _ in range(n):
        acceptance.learn(tree, [0, 1] if rng.random() < rate else [0])
    return acceptance


class TestAcceptance:
    def test_the_head_is_believed_at_first(self) -> None:
        assert Acceptance().chances(chain(0.8, 0.5)) == pytest.approx([1, 0.8, 0.4], abs=0.02)

    @pytest.mark.parametrize("kind", [HEAD, LOOKUP])
    def test_what_is_sure_is_believed_less_until_such_drafts_were_verified(self, kind: int) -> None:
        acceptance, named = Acceptance(), named_by(kind, np.array([0.9999]))
        sure, _ = DraftTree.of_root(0).joined([0], [1], named)
        assert acceptance.conditional(sure)[1] < 0.99
        for _ in range(300):
            acceptance.learn(sure, [0, 1])
        assert acceptance.conditional(sure)[1] > 0.99

    def test_learns_the_true_rate_of_an_overconfident_head(self) -> None:
        assert taught(0.3).chances(chain(0.9))[1] == pytest.approx(0.3, abs=0.08)

    def test_what_it_learns_of_sure_drafts_leaves_their_order(self) -> None:
        acceptance = taught(0.6)
        chances = [acceptance.chances(chain(p))[1] for p in np.linspace(0.01, 0.99, 30)]
        assert (np.diff(chances) > 0).all()

    def test_a_depth_has_its_own_rate(self) -> None:
        acceptance, rng = Acceptance(), np.random.default_rng(0)
        tree = chain(0.7, 0.7)
        for _ in range(2000):
            acceptance.learn(tree, [0, 1, 2] if rng.random() < 0.3 else [0, 1])
        first, second = acceptance.conditional(tree)[1:]
        assert first > 0.9
        assert second == pytest.approx(0.3, abs=0.1)

    def test_a_change_of_text_is_followed(self) -> None:
        acceptance, rng = taught(0.9), np.random.default_rng(1)
        for _ in range(2000):
            acceptance.learn(chain(0.9), [0, 1] if rng.random() < 0.4 else [0])
        assert acceptance.chances(chain(0.9))[1] == pytest.approx(0.4, abs=0.1)

    def test_a_node_behind_a_rejected_one_teaches_nothing(self) -> None:
        once, never = Acceptance(), Acceptance()
        for _ in range(100):
            once.learn(chain(0.5, 0.9), [0])
            never.learn(chain(0.5), [0])
        assert (once.state()["1.0"] == never.state()["1.0"]).all()

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(0, 6))
    def test_chances_are_probabilities_that_never_rise_down_a_path(
        self, probs: list[float], accepted: int
    ) -> None:
        acceptance, tree = Acceptance(), chain(*probs)
        for _ in range(30):
            acceptance.learn(tree, list(range(min(accepted, len(probs)) + 1)))
        chances = acceptance.chances(tree)
        assert (chances >= 0).all()
        assert chances[0] == 1
        assert (np.diff(chances) <= 0).all()

    def test_temperatures_are_learned_apart(self) -> None:
        acceptance, rng = taught(0.3, temperature=1.0), np.random.default_rng(0)
        acceptance.heat(0.0)
        for _ in range(500):
            acceptance.learn(chain(0.9), [0, 1] if rng.random() < 0.95 else [0])
        cold = acceptance.chances(chain(0.9))[1]
        acceptance.heat(1.0)
        assert cold > 0.85
        assert acceptance.chances(chain(0.9))[1] < 0.45

    def test_a_new_temperature_starts_from_the_nearest_one(self) -> None:
        acceptance = taught(0.3, temperature=0.7)
        acceptance.heat(0.6)
        assert acceptance.chances(chain(0.9))[1] < 0.45

    def test_what_was_learned_can_be_kept(self) -> None:
        acceptance, other = taught(0.3, temperature=0.7), Acceptance()
        other.restore(acceptance.state())
        other.heat(0.7)
        expected = acceptance.chances(chain(0.9, 0.4))
        assert other.chances(chain(0.9, 0.4)) == pytest.approx(expected, rel=0.01)

    def test_a_damaged_state_is_refused(self) -> None:
        for damaged in (np.zeros((3, 2)), np.full((11, 10), np.nan), np.zeros((11, 10))):
            with pytest.raises(ValueError, match="kept state"):
                Acceptance().restore({"1.0": damaged})


class TestOutlook:
    def learned(self) -> Outlook:
        """Token 5 is always followed by something sure, token 6 never."""
        outlook = Outlook()
        for _ in range(200):
            for token, best in ((5, 0.9), (6, 0.1)):
                tree = chain(0.8, best, tokens=[0, token, 9])
                outlook.learn(tree, np.array([1, 0.8, best]))
        return outlook

    def test_tokens_that_decide_the_next_one_are_known(self) -> None:
        hoped = self.learned().best_child(np.array([5, 6], np.int32), np.array([0.8, 0.8]))
        assert hoped == pytest.approx([0.9, 0.1], abs=0.1)

    def test_a_token_never_seen_gets_what_is_usual(self) -> None:
        hoped = self.learned().best_child(np.array([70_000], np.int32), np.array([0.8]))
        assert 0.3 < hoped[0] < 0.7

    def test_old_sightings_fade(self) -> None:
        outlook = self.learned()
        for _ in range(400):
            tree = chain(0.8, 0.1, tokens=[0, 5, 9])
            outlook.learn(tree, np.array([1, 0.8, 0.1]))
        assert outlook.best_child(np.array([5], np.int32), np.array([0.8]))[0] < 0.25


class TestRunningRegression:
    def test_starts_at_the_prior_and_finds_the_line(self) -> None:
        regression = RunningRegression(np.array([0.0, 1.0]), np.array([1.0, 1.0]), 1e6)
        assert regression.theta.tolist() == [0, 1]
        rng = np.random.default_rng(0)
        x = np.column_stack([np.ones(500), rng.normal(size=500)])
        y = x @ np.array([0.5, -2.0]) + rng.normal(size=500) * 0.1
        for i in range(0, 500, 5):
            regression.learn(x[i : i + 5], y[i : i + 5], np.full(5, 100.0))
        assert regression.theta == pytest.approx([0.5, -2.0], abs=0.02)

    def test_forgets_towards_the_prior(self) -> None:
        regression = RunningRegression(np.array([0.0, 1.0]), np.array([1.0, 1.0]), 10.0)
        regression.learn(np.array([[1.0, 0.0]]), np.array([5.0]), np.array([100.0]))
        far = regression.theta[0]
        for _ in range(500):
            regression.learn(np.array([[0.0, 1.0]]), np.array([1.0]), np.array([1.0]))
        assert far > 4.5
        assert abs(regression.theta[0]) < 0.1
