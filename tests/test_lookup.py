"""Drafts of several drafters in one tree: how they are merged, what is believed of them, when they
are verified."""

from __future__ import annotations

from dataclasses import replace

import lookup_reference as reference
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_policies import cost, dense_beliefs, live
from tracecases import LAYERS, repeating

from specfit.planner import (
    DRAFTERS,
    HEAD,
    LOOKUP,
    Acceptance,
    CycleCost,
    DraftTree,
    NgramIndex,
    Outcome,
    Policy,
    Spec,
    completed,
    make_policy,
    named_by,
)
from specfit.planner.lab import Lab
from specfit.planner.lookup import CHILDREN, DEEPEST, MOST, children_of
from specfit.planner.planned import Planned
from specfit.planner.steady import Steady

# Nodes to add: a parent, chosen among all there are by then, a token, and by whom it is named.
additions = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 3), st.sampled_from([HEAD, LOOKUP])), max_size=25
)


def paths_of(tree: DraftTree) -> dict[tuple[int, ...], tuple[float, ...]]:
    """What each drafter gives every path of tokens below a root."""
    named = named_by(HEAD, tree.probs) if tree.named is None else tree.named
    return {
        (tree.path(node)[0], *tree.tokens[tree.path(node)[1:]].tolist()): tuple(named[node])
        for node in range(tree.n_lines, len(tree))
    }


def indexed(*texts: list[int]) -> list[NgramIndex]:
    indices = []
    for text in texts:
        indices.append(NgramIndex())
        indices[-1].extend(text)
    return indices


class TestJoined:
    @given(additions, additions, st.integers(1, 3))
    def test_trees_are_the_union_of_their_paths_in_breadth_first_order(
        self, first: list, second: list, lines: int
    ) -> None:
        tree, expected = DraftTree.of_roots(range(50, 50 + lines)), {}
        for batch in (first, second):
            n, names = len(tree), [(line,) for line in range(lines)]
            names += [
                (tree.path(node)[0], *tree.tokens[tree.path(node)[1:]].tolist())
                for node in range(lines, n)
            ]
            parents, tokens, named = [], [], np.zeros((len(batch), len(DRAFTERS)))
            for i, (choice, token, drafter) in enumerate(batch):
                parent = choice % (n + i)
                parents.append(parent)
                tokens.append(token)
                named[i, drafter] = prob = 0.1 + 0.8 * i / 25
                names.append((*names[parent], token))
                known = expected.setdefault(names[-1], [0.0, 0.0])
                known[drafter] = max(known[drafter], prob)
            before = tree
            tree, places = tree.joined(parents, tokens, named)
            for old, name in enumerate(names):
                path = tree.path(int(places[old]))
                assert (path[0], *tree.tokens[path[1:]].tolist()) == name
            assert before.n_lines == tree.n_lines == lines
            assert tree.tokens[:lines].tolist() == list(range(50, 50 + lines))
            assert (np.diff(tree.parents) >= 0).all()  # children side by side, level by level
            assert (np.diff(tree.depths) >= 0).all()
            assert (tree.parents < np.arange(len(tree))).all()
            assert paths_of(tree) == {name: tuple(probs) for name, probs in expected.items()}
            drafts = tree.source[lines:]
            bits = [sum((p > 0) << i for i, p in enumerate(row)) for row in tree.named[lines:]]
            assert drafts.tolist() == bits
            assert (tree.probs[lines:] == tree.named[lines:].max(axis=1)).all()

    def test_states_stay_with_their_nodes(self) -> None:
        tree, _ = DraftTree.of_root(1).joined([0, 1, 2], [5, 6, 7], named_by(LOOKUP, np.ones(3)))
        states = np.array([[1.0, 2.0]], np.float32)
        tree, _ = tree.joined([0, 0], [4, 5], named_by(HEAD, np.array([0.5, 0.4])), states)
        states = np.array([[3.0, 4.0], [5.0, 6.0]], np.float32)
        wider, places = tree.joined([1, 2], [8, 9], named_by(HEAD, np.array([0.5, 0.4])), states)
        assert tree.states is not None
        assert wider.states is not None
        assert wider.states[0].tolist() == [1, 2]
        assert wider.states[places[1]].tolist() == [3, 4]
        assert wider.states[places[2]].tolist() == [5, 6]
        assert not wider.states[3:].any()


class TestCompleted:
    @given(
        st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=60), min_size=1, max_size=3),
        additions,
        st.integers(0, 60),
        st.sampled_from([0.0, 0.01, 0.2]),
        st.data(),
    )
    def test_the_compiled_drafts_are_those_of_the_reference(
        self, texts: list, head: list, room: int, least: float, data: st.DataObject
    ) -> None:
        indices = indexed(*(text[:-1] for text in texts))
        tree = DraftTree.of_roots([text[-1] for text in texts])
        if head:
            parents = [choice % (len(tree) + i) for i, (choice, _, _) in enumerate(head)]
            probs = np.linspace(0.9, 0.4, len(head))
            tokens = [token for _, token, _ in head]
            tree, _ = tree.joined(parents, tokens, named_by(HEAD, probs))
        asked = data.draw(st.none() | st.lists(st.integers(0, len(tree) - 1), unique=True))
        whole, places = completed(tree, indices, room, least, asked)
        expected = reference.drafts(tree, indices, room, least, asked)
        if not expected:
            assert whole is tree
            return
        parents, tokens, probs = map(list, zip(*expected, strict=True))
        as_expected, at = tree.joined(parents, tokens, named_by(LOOKUP, np.array(probs)))
        assert whole.parents.tolist() == as_expected.parents.tolist()
        assert whole.tokens.tolist() == as_expected.tokens.tolist()
        assert (whole.by_drafter == as_expected.by_drafter).all()
        assert (whole.probs == as_expected.probs).all()
        assert places[: len(tree)].tolist() == at[: len(tree)].tolist()

    def test_a_text_that_repeats_itself_is_drafted_as_deep_as_may_be(self) -> None:
        tree, _ = completed(DraftTree.of_root(2), indexed([1, 2, 3, 4, 5] * 3 + [1]), 100, 0.01)
        chain = tree.path(tree.leaves[-1])
        assert tree.tokens[chain].tolist() == [2, *([3, 4, 5, 1, 2] * 10)[:DEEPEST]]
        tree, _ = completed(DraftTree.of_root(2), indexed([1, 2, 3, 4, 5] * 3 + [1]), 2, 0.01)
        assert tree.depths.max() == 2

    def test_lines_are_looked_up_in_their_own_texts(self) -> None:
        texts = indexed([1, 2, 3, 7, 1], [1, 2, 4, 7, 1])
        tree, _ = completed(DraftTree.of_roots([2, 2]), texts, 1, 0.01)
        assert tree.tokens.tolist() == [2, 2, 3, 4]
        assert tree.lines.tolist() == [0, 1, 0, 1]

    def test_it_looks_behind_the_heads_drafts_but_not_twice(self) -> None:
        text = indexed([1, 2, 3, 4, 5, 9, 1])
        found, _ = completed(DraftTree.of_root(2), text, 2, 0.01)
        tree, places = found.joined([0, 0], [3, 9], named_by(HEAD, np.array([0.6, 0.3])))
        assert tree.tokens.tolist() == [2, 3, 9, 4]
        fresh = sorted(set(places[len(found) :].tolist()) - set(places[: len(found)].tolist()))
        again, _ = completed(tree, text, 9, 0.01, fresh)
        assert paths_of(again).keys() == paths_of(tree).keys()  # (2, 9) is nowhere in the text
        behind, _ = completed(tree, indexed([2, 9, 8, 8, 1]), 9, 0.01, fresh)
        assert (0, 9, 8) in paths_of(behind)

    @given(st.lists(st.integers(0, 2), min_size=5, max_size=60))
    def test_there_are_never_more_than_so_many(self, text: list[int]) -> None:
        tree, _ = completed(DraftTree.of_root(text[-1]), indexed(text[:-1]), 30, 0.0)
        assert len(tree) < 1 + MOST + CHILDREN
        if tree.named is None:
            return
        level = children_of(DraftTree.of_root(text[-1]), indexed(text[:-1]), np.array([0]), 1)
        first = tree.tokens[tree.parents == 0].tolist()
        assert level[1] == first[:1]


def both(head: float, lookup: float, *, asked: bool = True) -> DraftTree:
    """A root with a child, and with another that the head names if it is asked."""
    named = np.array([[0, 0], [head, lookup], [0.05 * asked, 0.05]])
    return DraftTree(
        np.array([-1, 0, 0], np.int32), np.array([1, 2, 3], np.int32), named.max(1), None, named
    )


class TestChances:
    def taught(self) -> Acceptance:
        """Of tokens that both name all are right, of those of one drafter alone few."""
        acceptance, rng = Acceptance(), np.random.default_rng(0)
        for _ in range(1000):
            cases = ((0.6, 0.6, True, 0.97), (0.0, 0.6, True, 0.02), (0.0, 0.6, False, 0.5))
            for head, lookup, asked, rate in cases:
                tree = both(head, lookup, asked=asked)
                acceptance.learn(tree, [0, 1] if rng.random() < rate else [0])
        return acceptance

    def test_are_learned_by_who_names_a_token_and_who_does_not(self) -> None:
        acceptance = self.taught()

        def chance(*case: float, asked: bool = True) -> float:
            return float(acceptance.conditional(both(*case, asked=asked))[1])

        assert chance(0.6, 0.6) == pytest.approx(0.95, abs=0.03)
        assert chance(0.0, 0.6) == pytest.approx(0.02, abs=0.03)
        assert chance(0.0, 0.6, asked=False) == pytest.approx(0.5, abs=0.08)
        assert chance(0.6, 0.0) == pytest.approx(0.6, abs=0.05)  # nothing was learned of these

    def test_the_quick_one_is_that_of_the_tree(self) -> None:
        acceptance = self.taught()
        for prob in (0.0, 0.3, 0.9, 1.0):
            tree = both(0.0, max(prob, 1e-9), asked=False)
            slow = acceptance.conditional(tree)[1]
            assert acceptance.first_looked_up(prob) == pytest.approx(slow)

    def test_what_was_learned_can_be_kept(self) -> None:
        acceptance, other = self.taught(), Acceptance()
        other.restore(acceptance.state())
        for tree in (both(0.6, 0.6), both(0.0, 0.6), both(0.0, 0.6, asked=False)):
            expected = acceptance.conditional(tree)
            assert other.conditional(tree) == pytest.approx(expected, rel=0.02)

    @given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6))
    def test_are_probabilities_that_never_rise_down_a_path(self, rows: list) -> None:
        named = np.array([(0.0, 0.0), *rows])
        parents = np.arange(-1, len(rows), dtype=np.int32)
        probs = named.max(1)
        probs[0] = 1.0
        tree = DraftTree(parents, parents + 5, probs, None, named)
        acceptance = self.taught()
        acceptance.learn(tree, [0, 1])
        chances = acceptance.chances(tree)
        assert chances[0] == 1
        assert (np.diff(chances) <= 0).all()
        assert (chances >= 0).all()


def policy_of(table: CycleCost, *drafters: str, mode: str = "specfit") -> Planned:
    beliefs, spec = dense_beliefs(), Spec.parse(mode)
    policy = make_policy(spec, beliefs, live(table), 64, drafters=drafters)
    assert isinstance(policy, Planned)
    return policy


def found(*probs: float) -> DraftTree:
    """A chain that a lookup found."""
    parents = range(len(probs))
    tokens, named = [7] * len(probs), named_by(LOOKUP, np.array(probs))
    return DraftTree.of_root(7).joined(list(parents), tokens, named)[0]


class TestPlans:
    def cycle(self, policy: Policy, tree: DraftTree, hits: int) -> int:
        """A cycle without a head in which so many of the tokens found are right; the drafts."""
        if not policy.hopes(float(tree.probs[1])) or not policy.takes(100, tree):
            policy.learn_plain(100)
            policy.learn_found([(7, float(tree.probs[1]))], 7 if hits else 8, 0.0)
            return 0
        choice = policy.choose(tree)
        verified = tree.subtree(choice.keep)
        path = list(range(min(hits, len(verified) - 1) + 1))
        policy.learn(Outcome(verified, path, choice, (), 100, None, 0.0, 0.1, 21.0, looked_up=True))
        return len(verified) - 1

    @pytest.mark.parametrize("steady", [False, True])
    def test_what_gains_in_every_cycle_is_verified_in_spite_of_a_switch(self, steady: bool) -> None:
        planned = policy_of(replace(cost(1.0), switch_ms=5.0, settle_ms=9.0), "ngram")
        policy = Steady(planned) if steady else planned
        drafts = [self.cycle(policy, found(0.8), i % 4 > 0) for i in range(400)]
        assert not any(drafts[:5])
        assert all(drafts[-50:])

    def test_a_long_match_is_verified_as_far_as_rows_pay(self) -> None:
        chain = found(*[0.99] * 12)
        drafts = [
            self.cycle(policy_of(cost(row_ms, fixed_ms=21 - row_ms), "ngram"), chain, 12)
            for row_ms in (0.5, 12.0, 25.0)
        ]
        assert drafts[0] == 12
        assert drafts[0] >= drafts[1] >= drafts[2] == 0

    def test_what_is_unlikely_to_pay_is_not_planned_with(self) -> None:
        policy = policy_of(cost(5.0, fixed_ms=16.0), "ngram")
        assert policy.hopes(0.9)
        assert not policy.hopes(0.02)

    def test_matches_that_are_never_right_are_left_alone_until_they_are(self) -> None:
        policy = policy_of(cost(5.0, fixed_ms=16.0), "ngram")
        chain = found(0.9, 0.9)
        assert self.cycle(policy, chain, 0)
        for _ in range(400):
            self.cycle(policy, chain, 0)
        assert not self.cycle(policy, chain, 0)
        for _ in range(1200):
            self.cycle(policy, chain, 2)
        assert self.cycle(policy, chain, 2) == 2

    def test_a_head_drafts_where_it_gains_beside_what_was_found(self) -> None:
        table = cost(1.0, draft_ms=5.0)
        alone, beside = (policy_of(table, "eagle3", "ngram") for _ in range(2))
        assert alone.begin(100, [7])
        assert beside.takes(100, found(*[0.999] * 8))
        assert not beside.begin(100, [7])
        cheap = policy_of(cost(0.2, draft_ms=0.01), "eagle3", "ngram")
        assert cheap.takes(100, found(0.3))
        assert cheap.begin(100, [7])

    def test_modes_that_do_not_plan_for_experts_take_lookups_only_without_a_head(self) -> None:
        table = cost(1.0)
        assert policy_of(table, "ngram", mode="count").looks_up
        assert not policy_of(table, "eagle3", "ngram", mode="count").looks_up
        assert policy_of(table, "eagle3", "ngram", mode="specfit:ratio").looks_up
        assert not policy_of(table, "eagle3").looks_up


class TestReplays:
    """Of recorded texts that repeat themselves."""

    @pytest.mark.parametrize("mode", ["chain:3", "count", "specfit", "specfit:ratio"])
    @pytest.mark.parametrize("lines", [1, 2])
    @pytest.mark.parametrize("drafters", [("ngram",), ("eagle3", "ngram")])
    def test_commit_the_whole_text(self, mode: str, lines: int, drafters: tuple[str, ...]) -> None:
        trace = repeating()
        lab = Lab(replace(trace, texts=trace.texts * lines))
        cycles = lab.take(mode, cost(0.5, layers=LAYERS), lines=lines, drafters=drafters)
        assert sum(cycle.committed for cycle in cycles) == 60 * lines
        if "eagle3" not in drafters:
            assert all(cycle.levels == 0 for cycle in cycles)
            assert sum(cycle.committed - lines for cycle in cycles) > 0

    def test_gain_by_lookups_where_rows_are_cheap_and_lose_nothing_where_they_are_dear(
        self,
    ) -> None:
        lab = Lab(repeating())
        for row_ms, gains in ((0.5, True), (25.0, False)):
            table = cost(row_ms, fixed_ms=25.0 - row_ms, layers=LAYERS)
            plain, looked = (
                sum(cycle.ms for cycle in lab.take(mode, table, drafters=("ngram",)))
                for mode in ("off", "specfit")
            )
            assert looked < 0.8 * plain if gains else looked == pytest.approx(plain)
