"""What the planner learns while it runs: acceptance, experts, and when drafting pays."""

from __future__ import annotations

import numpy as np
import pytest

from specfit.planner import (
    Acceptance,
    Beliefs,
    CycleCost,
    DraftTree,
    Forecast,
    LiveCost,
    Outcome,
    Spec,
    UnionByRows,
    make_policy,
)
from specfit.planner.drafting import DraftingRule


def chain(probs: list[float], tokens: list[int] | None = None) -> DraftTree:
    n = len(probs) + 1
    return DraftTree(
        np.arange(-1, n - 1, dtype=np.int32),
        np.array(tokens or range(n), np.int32),
        np.array([1.0, *probs]),
    )


def cost(
    row_ms: float,
    *,
    fixed_ms: float = 20.0,
    expert_ms: float = 0.0,
    draft_ms: float = 0.5,
    layers: int = 4,
) -> CycleCost:
    rows_ms = fixed_ms + row_ms * np.arange(65)
    return CycleCost(
        rows_ms, np.full(65, expert_ms), np.ones(layers), level_ms=np.array([draft_ms])
    )


def dense_beliefs() -> Beliefs:
    return Beliefs(Acceptance(), None, UnionByRows(np.zeros(65)), np.zeros(0))


class TestAcceptance:
    def test_the_head_is_believed_at_first(self) -> None:
        tree = chain([0.8, 0.5])
        assert Acceptance().chances(tree) == pytest.approx([1, 0.8, 0.4])

    def test_learns_the_true_rate_of_an_overconfident_head(self) -> None:
        acceptance, rng = Acceptance(), np.random.default_rng(0)
        tree = chain([0.9])
        for _ in range(2000):
            acceptance.learn(tree, [0, 1] if rng.random() < 0.3 else [0])
        assert acceptance.chances(tree)[1] == pytest.approx(0.3, abs=0.08)

    def test_a_node_behind_a_rejected_one_teaches_nothing(self) -> None:
        acceptance = Acceptance()
        tree = chain([0.5, 0.9])
        before = acceptance.conditional(tree)[2]
        for _ in range(100):
            acceptance.learn(tree, [0])
        assert acceptance.conditional(tree)[2] == before

    def test_chances_never_rise_down_a_path(self) -> None:
        acceptance = Acceptance()
        tree = chain([0.99, 1.0, 0.97])
        for _ in range(50):
            acceptance.learn(tree, [0, 1, 2, 3])
        chances = acceptance.chances(tree)
        assert (np.diff(chances) <= 0).all()


class TestForecast:
    def forecast(self, n_layers: int = 2) -> Forecast:
        return Forecast(n_layers, 128, 2, np.ones(n_layers))

    def test_a_token_is_expected_to_use_what_it_used_last(self) -> None:
        forecast = self.forecast()
        tree = chain([0.5], tokens=[7, 9])
        forecast.learn(tree, None, np.array([[[1, 2], [3, 127]], [[1, 5], [3, 4]]], np.int32))
        expected = forecast.of(chain([0.5], tokens=[9, 7]))
        assert expected.sets[1, 1, 1] == np.uint64(1) << np.uint64(63)
        assert expected.sets[0, 0, 0] == np.uint64(2 + 32)
        assert not expected.unforeseen.any()

    def test_an_unknown_token_costs_something_even_if_nothing_is_known(self) -> None:
        expected = self.forecast().of(chain([0.5], tokens=[1, 2]))
        assert expected.unforeseen[1] > 0

    def test_memory_is_bounded_and_forgets_the_oldest(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("specfit.planner.forecast.CAPACITY", 3)
        forecast = self.forecast()
        for token in range(5):
            root = DraftTree.of_root(token)
            forecast.learn(root, None, np.full((1, 2, 2), token, np.int32))
        assert not forecast.knows(np.array([0], np.int32))
        assert forecast.knows(np.array([2, 3, 4], np.int32))
        assert forecast.of(DraftTree.of_root(4)).sets[0, 0, 0] == np.uint64(16)

    def test_unions_that_grow_less_than_forecast_are_noticed(self) -> None:
        forecast = self.forecast()
        tree = chain([0.5], tokens=[1, 2])
        apart = np.array([[[1, 2], [1, 2]], [[3, 4], [3, 4]]], np.int32)
        together = np.array([[[1, 2], [1, 2]], [[1, 2], [1, 2]]], np.int32)
        forecast.learn(tree, None, apart)
        before = forecast.scale
        forecast.learn(tree, forecast.of(tree), together)
        assert forecast.scale < before


class TestDraftingRule:
    def test_never_drafts_where_certain_drafts_would_lose(self) -> None:
        rule = DraftingRule(cost(25.0, fixed_ms=0.0), 0.0, 64)
        assert not rule.may_draft
        assert not rule.begin()

    def test_drafts_at_first_where_rows_are_cheap(self) -> None:
        assert DraftingRule(cost(1.0), 0.0, 64).begin()

    def test_stops_after_disappointment_and_then_only_tries(self) -> None:
        rule = DraftingRule(cost(5.0), 0.0, 64)
        begun = 0
        for _ in range(1000):
            if rule.begin():
                begun += 1
                rule.weigh(committed=1.0, ms=26.0)
                rule.learn(1, 26.0, draft_ms=1.0)
            else:
                rule.learn(1, 25.0, draft_ms=0.0)
        # 1 % of 25 s are 250 trials of 1 ms; it must keep trying, within that.
        assert 3 <= begun <= 260

    def test_a_change_for_the_better_is_noticed(self) -> None:
        rule = DraftingRule(cost(5.0), 0.0, 64)
        for _ in range(200):
            if rule.begin():
                rule.weigh(1.0, 26.0)
                rule.learn(1, 26.0, 1.0)
            else:
                rule.learn(1, 25.0, 0.0)
        drafted = 0
        for _ in range(400):
            if rule.begin():
                drafted += 1
                rule.weigh(3.5, 37.0)
                rule.learn(3, 37.0, 1.0)
            else:
                rule.learn(1, 25.0, 0.0)
        assert drafted > 300


class TestPolicies:
    def grow(self, spec: str, prob: float, cost: CycleCost, *, room: int = 30) -> DraftTree:
        """Drafts as the backend would, from a head whose best child always has chance `prob`."""
        policy = make_policy(Spec.parse(spec), dense_beliefs(), LiveCost(cost, follows=False), 64)
        tree = DraftTree.of_root(0)
        if not policy.begin(0):
            return tree
        while True:
            nodes, branching = policy.expand(tree, room)
            if not len(nodes):
                return tree.subtree(policy.choose(tree).keep)
            ranks = prob * (1 - prob) ** np.arange(branching)
            tree = tree.grown(
                np.repeat(nodes, branching),
                np.tile(np.arange(branching, dtype=np.int32), len(nodes)),
                np.tile(ranks, len(nodes)),
            )

    def test_a_chain_is_as_long_as_asked(self) -> None:
        tree = self.grow("chain:3", 0.5, cost(1.0))
        assert tree.parents.tolist() == [-1, 0, 1, 2]

    def test_eagle3_keeps_the_best_nodes_with_their_ancestors(self) -> None:
        tree = self.grow("eagle3:31", 0.6, cost(1.0))
        assert len(tree) == 31
        assert tree.depths.max() > 3

    def test_eagle3_paths_may_be_one_longer_than_its_expansions(self) -> None:
        tree = self.grow("eagle3:60:2:3", 0.99, cost(1.0))
        assert tree.depths.max() == 3
        assert len(tree) == 1 + 3 + 9 + 9

    def test_a_tree_never_reaches_past_the_context(self) -> None:
        for spec in ("chain:8", "eagle3:60", "specfit"):
            assert self.grow(spec, 0.9, cost(0.1), room=2).depths.max() <= 2

    def test_cheap_rows_make_large_trees_and_dear_rows_small_ones(self) -> None:
        machines = [cost(0.2), cost(4.0), cost(20.0), cost(20.0, fixed_ms=0.0)]
        sizes = [len(self.grow("specfit", 0.8, machine)) for machine in machines]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > 4
        assert sizes[-1] == 1

    def test_both_objectives_agree_where_every_cycle_is_alike(self) -> None:
        for row_ms in (0.5, 3.0):
            policies = [
                make_policy(
                    Spec.parse(s), dense_beliefs(), LiveCost(cost(row_ms), follows=False), 64
                )
                for s in ("specfit", "specfit:ratio")
            ]
            tree = chain([0.9, 0.8, 0.7, 0.5, 0.3])
            for _ in range(300):
                for policy in policies:
                    choice = policy.choose(tree)
                    rows = int(choice.keep.sum())
                    # what an accurate forecast leads to: rate settles at the plan's own
                    policy.learn(
                        Outcome(
                            rows, round(choice.committed), (0, 1, 1, 1, 1), 0.0, 0, 1.0, 0.5, 20.0
                        )
                    )
            sizes = [int(policy.choose(tree).keep.sum()) for policy in policies]
            assert abs(sizes[0] - sizes[1]) <= 1

    def test_unused_experts_are_free_and_new_ones_are_not(self) -> None:
        forecast = Forecast(2, 128, 2, np.ones(2))
        same = np.array([[[1, 2], [1, 2]]] * 2, np.int32)
        other = np.array([[[5, 6], [5, 6]]], np.int32)
        forecast.learn(chain([0.5], tokens=[1, 2]), None, same)
        forecast.learn(DraftTree.of_root(3), None, other)
        beliefs = Beliefs(Acceptance(), forecast, UnionByRows(np.full(65, 2.0)), np.ones(2))
        dear_experts = cost(0.0, expert_ms=5.0, draft_ms=0.1, layers=2)
        policy = make_policy(
            Spec.parse("specfit"), beliefs, LiveCost(dear_experts, follows=False), 64
        )
        tree = DraftTree(
            np.array([-1, 0, 0], np.int32), np.array([1, 2, 3], np.int32), np.array([1, 0.4, 0.4])
        )
        assert policy.choose(tree).keep.tolist() == [True, True, False]


@pytest.mark.parametrize("text", ["off", "chain:3", "eagle3", "eagle3:31:4:4", "count", "specfit"])
def test_a_mode_prints_as_typed(text: str) -> None:
    assert str(Spec.parse(text)) == text


def test_omitted_parts_of_eagle3_are_the_published_ones() -> None:
    assert Spec.parse("eagle3:31").numbers == (31, 7, 10)
    assert Spec.parse("eagle3").numbers == (60, 7, 10)


@pytest.mark.parametrize(
    "text", ["", "on", "chain", "chain:0", "chain:x", "eagle3:1:2:3:4", "specfit:fast", "off:1"]
)
def test_what_is_no_mode_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="no speculation mode"):
        Spec.parse(text)
