"""When the modes draft, and what they verify."""

from __future__ import annotations

from dataclasses import replace

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
    Outlook,
    Policy,
    Spec,
    UnionByRows,
    make_policy,
    pack,
)
from specfit.planner.cost import NO_OVERHEADS, PLAINLY, Before, Overheads
from specfit.planner.drafting import PREPARING_SHARE, DraftingRule
from specfit.planner.gains import Gains
from specfit.planner.planned import Planned
from specfit.planner.policies import Choice
from specfit.planner.spells import SPELL
from specfit.planner.streak import Streak


def cost(
    row_ms: float,
    *,
    fixed_ms: float = 20.0,
    expert_ms: float = 0.0,
    draft_ms: float = 0.5,
    layers: int = 4,
) -> CycleCost:
    rows_ms = fixed_ms + row_ms * np.arange(65)
    return CycleCost(rows_ms, np.full(65, expert_ms), np.ones(layers), np.array([draft_ms]))


def live(table: CycleCost) -> LiveCost:
    return LiveCost(table, follows=False)


def dense_beliefs() -> Beliefs:
    return Beliefs(Acceptance(), Outlook(), None, UnionByRows(np.zeros(65)), np.zeros(0))


def policy_of(spec: str, table: CycleCost) -> Policy:
    return make_policy(Spec.parse(spec), dense_beliefs(), live(table), 64)


def rule_for(table: CycleCost) -> DraftingRule:
    return DraftingRule(live(table), 0.0, 64, Gains(), Streak())


class TestDraftingRule:
    def run(self, rule: DraftingRule, cycles: int, gained: float) -> int:
        """Cycles that drafted, in a text where drafting gains `gained` tokens and promises 0.5."""
        drafted = 0
        for _ in range(cycles):
            if rule.goes_on(0, 0.5, rule.gains.calibrated(0, 0.5), 1.0):
                drafted += 1
                rule.gains.learn(0, 0.5, gained)
            rule.learn(1, 25.0, 0, drafts=0)
        return drafted

    def test_sees_where_certain_drafts_would_lose(self) -> None:
        assert not rule_for(cost(25.0, fixed_ms=0.0)).may_draft(0.1)
        assert rule_for(cost(1.0)).may_draft(0.1)

    def test_planning_that_takes_too_long_forbids_drafting(self) -> None:
        table = cost(1.0, fixed_ms=1.0)
        assert rule_for(table).may_draft(0.0)
        assert not rule_for(table).may_draft(5.0)

    def test_stops_after_disappointment_and_then_only_tries(self) -> None:
        # 0.5 % of 25 s are 125 trials of 1 ms; it must keep trying, within that.
        assert 3 <= self.run(rule_for(cost(5.0)), 1000, gained=-0.3) <= 140

    def test_a_change_for_the_better_is_noticed(self) -> None:
        rule = rule_for(cost(5.0))
        self.run(rule, 300, gained=-0.3)
        self.run(rule, 300, gained=0.5)
        assert self.run(rule, 100, gained=0.5) == 100

    def test_plans_are_weighed_by_what_plain_decoding_takes_at_present(self) -> None:
        rule = rule_for(replace(cost(1.0), context_ms=np.full(65, 0.021)))
        for _ in range(500):
            rule.learn(2, 1.5 * 21.0, 0, drafts=0)
        assert rule.rate == pytest.approx(2 / (1.5 * 21.0), rel=1e-3)
        rule.turn_to(1, 0.0, 1000)
        assert rule.rate == pytest.approx(2 / (1.5 * 42.0), rel=1e-3)

    def test_the_rate_is_of_the_text_that_was_decoded_meanwhile(self) -> None:
        rule = rule_for(replace(cost(1.0), context_ms=np.full(65, 0.021)))
        for _ in range(300):  # without any draft, nobody asking
            rule.learn(1, 5 * 21.0, 4000, drafts=0)
        rule.turn_to(1, 0.0, 4000)
        assert rule.rate == pytest.approx(1 / (5 * 21.0))

    def test_time_is_never_worth_less_than_plain_decoding_makes_of_it(self) -> None:
        rule = rule_for(cost(1.0))
        for _ in range(300):  # drafts that lose must not make further ones look cheap
            rule.learn(1, 30.0, 0, drafts=3)
        assert rule.rate == pytest.approx(1 / 21.0)
        for _ in range(300):
            rule.learn(3, 30.0, 0, drafts=3)
        assert rule.rate == pytest.approx(3 / 30.0, rel=0.01)

    def test_predictions_that_are_always_too_low_are_corrected(self) -> None:
        rule = rule_for(cost(5.0))
        assert not rule.goes_on(1, -0.1, rule.gains.calibrated(1, -0.1), 1.0)
        for gain in np.linspace(-0.3, 0.3, 100):
            rule.gains.learn(1, float(gain), float(gain) + 0.2)
        assert rule.goes_on(1, -0.1, rule.gains.calibrated(1, -0.1), 1.0)
        assert not rule.goes_on(1, -0.4, rule.gains.calibrated(1, -0.4), 1.0)


def specfit(table: CycleCost, overheads: Overheads = NO_OVERHEADS) -> Planned:
    policy = make_policy(Spec.parse("specfit"), dense_beliefs(), live(table), 64, overheads)
    assert isinstance(policy, Planned)
    return policy


class TestResting:
    """A row takes 21 ms, a draft more as much as another token and half of one, if it is `dear`."""

    dear = cost(30.0, fixed_ms=-9.0, draft_ms=0.1)
    cheap = cost(5.0, fixed_ms=16.0)
    features = Overheads(features_ms=0.5, position_ms=0.05)

    def test_an_answer_is_prepared_where_drafts_promise_more_than_that_takes(self) -> None:
        assert specfit(self.cheap, self.features).tracks(100, missing_ms=0.0)
        assert specfit(self.cheap, self.features).tracks(100, missing_ms=500.0)
        assert not specfit(self.cheap, self.features).tracks(100, missing_ms=1e5)

    def test_an_answer_is_prepared_where_only_drafts_in_every_cycle_pay(self) -> None:
        table = replace(self.cheap, switch_ms=5.0, settle_ms=10.0)
        for share, drafts in ((0.0, False), (0.9, True)):  # a first draft pays for the way back
            policy = specfit(table, self.features)
            policy.beliefs.streak.share = share
            assert policy.tracks(100, missing_ms=0.0)
            assert policy.begin(0, [0]) == drafts

    def test_what_drafts_promise_is_not_a_matter_of_the_last_decode(self) -> None:
        policy = specfit(replace(self.cheap, switch_ms=5.0, settle_ms=10.0), self.features)
        promises = []
        for before in (PLAINLY, Before(1, repeated=False), Before(2), Before(3, repeated=False)):
            policy.rule.switching.before = before
            promises.append(policy._promise())
        assert promises == pytest.approx([promises[0]] * 4)

    def test_where_drafts_do_not_pay_answers_are_decoded_as_without_a_head(self) -> None:
        policy = specfit(cost(14.0, fixed_ms=7.0), self.features)
        assert not policy.tracks(100, missing_ms=0.0)
        tracked = 0
        for _ in range(400):  # answers of 2.1 s; to prepare one takes 5 % of that, and a look
            tracked += policy.tracks(100, missing_ms=0.0)
            for _ in range(100):
                policy.learn_plain(0)
        assert 10 < tracked < 400 * PREPARING_SHARE * 2100 / (200 * 0.5)

    def test_lines_are_prepared_together_or_not_at_all(self) -> None:
        dear = specfit(cost(14.0, fixed_ms=7.0), self.features)
        cheap = specfit(cost(0.5), self.features)
        assert cheap.tracks(100, missing_ms=0.0, lines=8)
        for _ in range(4000):
            assert not dear.tracks(100, missing_ms=0.0, lines=8)
            dear.rule.learn(8, 119.0, 0, drafts=0)
        assert dear.tracks(100, missing_ms=0.0)  # alone, it is time for a trial

    def test_lines_that_rest_are_prepared_again_after_some_answers(self) -> None:
        policy = specfit(cost(0.5), self.features)
        assert policy.tracks(100, missing_ms=0.0, lines=8)
        for _ in range(1000):
            policy._resting.learn(8, -1.0)
        awake = [policy.tracks(100, missing_ms=0.0, lines=8) for _ in range(40)]
        assert not awake[0]
        assert all(awake[-20:])

    def test_what_costs_nothing_is_always_prepared(self) -> None:
        policy = specfit(cost(14.0, fixed_ms=7.0), Overheads(features_ms=0.0))
        policy.rule.learn(1, 1e3, 0, drafts=0)
        assert policy.tracks(100, missing_ms=0.0)
        assert not policy.tracks(100, missing_ms=1e4)

    def test_a_plan_in_which_the_machine_slept_does_not_end_all_drafting(self) -> None:
        policy, tree = specfit(self.cheap), DraftTree.of_root(0)
        assert policy.begin(0, [0])
        choice = policy.choose(tree)
        policy.learn(Outcome(tree, [0], choice, [(0,)], 0, None, 0.5, 3.6e6, 21.0))
        assert policy.tracks(100, missing_ms=0.0)
        assert policy.begin(0, [0])

    def test_planning_that_takes_too_long_is_tried_again_after_many_answers(self) -> None:
        policy = specfit(self.cheap)
        policy._foresight.planning_ms = {True: 50.0, False: 50.0}
        tracked = [policy.tracks(100, missing_ms=0.0) for _ in range(200)]
        assert not any(tracked[:20])
        assert tracked[-1]

    def test_catching_up_on_the_prompt_is_weighed_against_an_answer(self) -> None:
        policy = specfit(self.cheap, Overheads(position_ms=1.0))
        assert policy.begin(0, [0], waiting=100)
        assert not policy.begin(0, [0], waiting=20_000)

    def test_where_few_cycles_of_an_answer_draft_they_pay_for_its_prompt(self) -> None:
        policy = specfit(self.cheap, Overheads(position_ms=1.0))

        def drafts_behind_a_prompt(after: int) -> bool:
            """Having drafted in so many cycles of each of some answers."""
            for _ in range(20):
                policy.tracks(100, missing_ms=0.0)
                assert all(policy.begin(0, [0]) for _ in range(after))
            policy.tracks(100, missing_ms=0.0)
            return policy.begin(0, [0], waiting=100)

        assert policy._resting.drafted == 20.0
        assert not drafts_behind_a_prompt(after=2)
        assert drafts_behind_a_prompt(after=60)

    def test_a_trial_counts_for_all_that_it_took(self) -> None:
        def trials(catch_up_ms: float) -> int:
            policy = specfit(cost(14.0, fixed_ms=7.0))
            found = 0
            for _ in range(2000):
                if not policy.begin(0, [0]):
                    policy.learn_plain(0)
                    continue
                found += 1
                tree = DraftTree.of_root(0)
                choice = policy.choose(tree)
                outcome = Outcome(tree, [0], choice, [(0,)], 0, None, 0.5, 0.3, 21.0, catch_up_ms)
                policy.learn(outcome)
            return found

        assert trials(0.0) > 100
        assert 2 <= trials(80.0) <= 3  # of 42 s


class TestSpells:
    def test_a_few_cycles_in_a_row_are_plain_and_say_why(self) -> None:
        policy = specfit(cost(1.0))
        policy.live.follows = True
        tree = DraftTree(np.array([-1, 0], np.int32), np.array([5, 6], np.int32), np.ones(2))
        choice = Choice(np.ones(2, np.bool_), np.ones(2), 0.0)
        told = ""
        for _ in range(2000):
            if policy.begin(0, [0]):
                policy.learn(Outcome(tree, [0, 1], choice, [(0,)], 0, None, 0.5, 0.3, 22.0))
            else:
                policy.learn_plain(0)
            told += "p" if policy.reason(begun=True).kind == "abstaining" else "d"
        assert {len(spell) for spell in told.split("d")} == {0, SPELL}

    def test_plans_for_another_machine_need_none(self) -> None:
        rule = rule_for(cost(1.0))
        rule._live.follows = False
        for _ in range(1000):
            rule.learn(2, 23.0, 0, drafts=1)
            assert not rule.abstains


class TestPolicies:
    def draft(self, policy: Policy, prob: float, room: int) -> DraftTree | None:
        """All candidates of a head whose best child always has chance `prob`."""
        if not policy.begin(0, [0]):
            return None
        tree = DraftTree.of_root(0)
        while True:
            nodes, branching = policy.expand(tree, room)
            if not len(nodes):
                return tree
            ranks = prob * (1 - prob) ** np.arange(branching)
            tree = tree.grown(
                np.repeat(nodes, branching),
                np.tile(np.arange(branching, dtype=np.int32), len(nodes)),
                np.tile(ranks, len(nodes)),
            )

    def grow(self, spec: str, prob: float, table: CycleCost, *, room: int = 30) -> DraftTree:
        """What the mode verifies, after some cycles to learn from."""
        policy, rng = policy_of(spec, table), np.random.default_rng(0)
        verified = DraftTree.of_root(0)
        for _ in range(50):
            candidates = self.draft(policy, prob, room)
            if candidates is None:
                policy.learn_plain(0)
                verified = DraftTree.of_root(0)
                continue
            choice = policy.choose(candidates)
            verified = candidates.subtree(choice.keep)
            path = [0]
            while (below := np.flatnonzero(verified.parents == path[-1])).size:
                hits = below[rng.random(len(below)) < verified.probs[below]]
                if not len(hits):
                    break
                path.append(int(hits[0]))
            levels = [(0,)] * int(candidates.depths[-1])
            policy.learn(Outcome(verified, path, choice, levels, 0, None, 0.5, 0.1, 20.0))
        return verified

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
        machines = [cost(0.2), cost(4.0), cost(30.0), cost(20.0, fixed_ms=0.0)]
        sizes = [len(self.grow("specfit", 0.8, machine)) for machine in machines]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > 4
        assert sizes[-1] == 1

    def test_both_objectives_agree_where_every_cycle_is_alike(self) -> None:
        for row_ms in (0.5, 3.0):
            sizes = [
                len(self.grow(spec, 0.9, cost(row_ms))) for spec in ("specfit", "specfit:ratio")
            ]
            assert abs(sizes[0] - sizes[1]) <= max(2, 0.3 * sizes[0])

    def test_a_draft_behind_plain_cycles_pays_for_the_way_back_as_well(self) -> None:
        tree = DraftTree(
            np.array([-1, 0], np.int32), np.array([1, 2], np.int32), np.array([1, 0.5])
        )
        drafting = Before(2, repeated=False)
        for switch_ms, settle_ms, before, drafts in (
            (0.0, 0.0, PLAINLY, 1),
            (3.0, 3.0, PLAINLY, 1),  # 1 ms of a row, and 9 of switching, for half of 21
            (3.0, 6.0, PLAINLY, 0),
            (5.0, 6.0, drafting, 1),
        ):
            policy = specfit(replace(cost(1.0), switch_ms=switch_ms, settle_ms=settle_ms))
            policy.rule.switching.before = before
            assert np.count_nonzero(policy.choose(tree).keep) == 1 + drafts

    def test_experts_in_use_are_free_and_new_ones_are_not(self) -> None:
        forecast = Forecast(2, 128, 2, np.ones(2))
        both = DraftTree(
            np.array([-1, 0], np.int32), np.array([1, 2], np.int32), np.array([1, 0.5])
        )
        for _ in range(5):
            forecast.learn(both, None, pack(np.array([[[1, 2], [1, 2]]] * 2), 128))
            forecast.learn(DraftTree.of_root(3), None, pack(np.array([[[5, 6], [5, 6]]]), 128))
        beliefs = Beliefs(
            Acceptance(), Outlook(), forecast, UnionByRows(np.full(65, 2.0)), np.ones(2)
        )
        dear_experts = cost(0.0, expert_ms=5.0, draft_ms=0.1, layers=2)
        policy = make_policy(Spec.parse("specfit"), beliefs, live(dear_experts), 64)
        tree = DraftTree(
            np.array([-1, 0, 0], np.int32), np.array([1, 2, 3], np.int32), np.array([1, 0.4, 0.4])
        )
        assert policy.choose(tree).keep.tolist() == [True, True, False]

    def test_looks_at_experts_take_half_a_percent_of_the_time(self) -> None:
        beliefs = Beliefs(
            Acceptance(),
            Outlook(),
            Forecast(2, 128, 2, np.ones(2)),
            UnionByRows(np.full(65, 2.0)),
            np.ones(2),
        )
        policy = make_policy(
            Spec.parse("specfit"), beliefs, live(cost(1.0, layers=2)), 64, Overheads(5.0)
        )
        seen = 0
        for token in range(5000):
            tree = DraftTree.of_root(token)
            looked = policy.looks(tree)
            seen += looked
            experts = pack(np.array([[[1, 2], [1, 2]]]), 128) if looked else None
            choice = policy.choose(tree)
            policy.learn(Outcome(tree, [0], choice, (), 0, experts, 0.0, 0.0, 21.0))
        spent = seen * 5.0 / (5000 * 21.0)
        assert 0.003 < spent < 0.006


@pytest.mark.parametrize("text", ["off", "chain:3", "eagle3", "eagle3:31:4:4", "count", "specfit"])
def test_a_mode_prints_as_typed(text: str) -> None:
    assert str(Spec.parse(text)) == text


def test_omitted_parts_of_eagle3_are_the_published_ones() -> None:
    assert Spec.parse("eagle3:31").numbers == (31, 7, 10)
    assert Spec.parse("eagle3").numbers == (60, 7, 10)
