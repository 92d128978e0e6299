"""Cycles that are judged by a prospect of a few cycles ago, and learned from together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from counting import counted
from test_policies import cost, specfit

from specfit.planner import DraftTree
from specfit.planner.cost import PLAINLY, Overheads
from specfit.planner.planned import PLAIN_AT_ONCE, Planned

OVERHEADS = Overheads(features_ms=0.1, position_ms=0.05)


def rare_hopes(policy: Planned) -> list[int]:
    """A text in which the head knows what follows a few tokens; 7 of them is one of those."""
    outlook, rng = policy.beliefs.outlook, np.random.default_rng(0)
    for _ in range(40):
        for token, chance in ((7, 0.95), (int(rng.integers(10, 20)), 0.05)):
            tree = DraftTree.of_root(token).grown(np.array([0]), np.array([1]), np.array([chance]))
            outlook.learn(tree, np.array([1.0, chance]))
    return rng.integers(8, 20, 400).tolist()


def drafted(policy: Planned, text: list[int], *, anew: bool) -> list[int]:
    """Places behind which it would draft; none of which come to anything. anew: all is worked out
    in every cycle."""
    found = []
    for place, token in enumerate(text):
        policy.behind(PLAINLY)
        if anew:
            policy._prospect = None
        if policy.begin(100 + place, [token]):
            found.append(place)
        policy.learn_plain(100 + place)
    return found


def both(table_of: float, text_with: list[int]) -> tuple[Planned, Planned, list[int], list[int]]:
    table = replace(cost(table_of), switch_ms=2.0, settle_ms=3.0)
    glancing, thorough = specfit(table, OVERHEADS), specfit(table, OVERHEADS)
    text = rare_hopes(glancing)
    rare_hopes(thorough)
    for place in text_with:
        text[place] = 7
    places = drafted(glancing, text, anew=False), drafted(thorough, text, anew=True)
    return glancing, thorough, *places


def test_a_glance_finds_what_a_thorough_look_finds() -> None:
    hopeful = [50, 61, 200, 201, 333]
    glancing, thorough, at_a_glance, by_looking = both(12.0, hopeful)
    assert set(hopeful) <= set(at_a_glance) & set(by_looking)
    tried = [len(set(places) - set(hopeful)) for places in (at_a_glance, by_looking)]
    assert 0 < tried[0] <= tried[1] <= tried[0] + 2
    for policy in (glancing, thorough):
        policy.reason(begun=True)  # learns from what it put off
    assert glancing.rule.rate == pytest.approx(thorough.rule.rate)
    assert glancing.beliefs.streak.share == pytest.approx(thorough.beliefs.streak.share, abs=1e-6)
    promises = [policy._resting._promises for policy in (glancing, thorough)]
    assert promises[0] == pytest.approx(promises[1], rel=0.05)


def test_a_glance_is_less_work() -> None:
    calls = {}
    for anew in (False, True):
        policy = specfit(cost(12.0, draft_ms=5.0), OVERHEADS)
        text = rare_hopes(policy)
        with counted() as calls[anew]:
            drafted(policy, text, anew=anew)
    assert calls[False].n < 0.55 * calls[True].n


def test_the_reason_is_that_of_the_cycle_that_was_glanced_at() -> None:
    policy = specfit(cost(12.0, draft_ms=5.0), OVERHEADS)
    text = rare_hopes(policy)
    drafted(policy, text[:5], anew=False)
    for token in text[5:10]:
        policy.behind(PLAINLY)
        assert not policy.begin(200, [token])
        policy.learn_plain(200)
        reason = policy.reason(begun=True)
        assert (reason.kind, reason.drafts) == ("unpromising", 0)
        assert reason.step is not None
        assert reason.step.tokens == pytest.approx(policy.beliefs.outlook.behind(token))


def test_cycles_are_learned_from_before_anything_is_planned_by_them() -> None:
    policy = specfit(cost(1.0))
    for _ in range(PLAIN_AT_ONCE - 1):
        policy.learn_plain(100)
    assert policy.rule._decoding_ms == 0.0
    policy.begin(100, [1])
    assert policy.rule._decoding_ms == pytest.approx((PLAIN_AT_ONCE - 1) * 21.0)
