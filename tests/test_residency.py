"""Which experts lie in the cache: what holds for every policy, and what each part is for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from residency_reference import after as reference

from specfit.planner.residency import (
    Residency,
    Rule,
    after,
    filled,
    restored,
)

LAYERS, EXPERTS = 3, 6


def rule(slots: list[int], **changes: object) -> Rule:
    usual = Rule(np.array(slots, np.int32), np.ones(LAYERS), 0.5, np.full(LAYERS, 10))
    return replace(usual, **changes)  # type: ignore[arg-type]


def uses(*places: tuple[int, int]) -> np.ndarray:
    used = np.zeros((LAYERS, EXPERTS), np.int64)
    for place in places:
        used[place] += 1
    return used


RULES = st.builds(
    rule,
    st.one_of(
        st.lists(st.integers(0, LAYERS * EXPERTS + 2), min_size=1, max_size=1),
        st.lists(st.integers(0, EXPERTS + 1), min_size=LAYERS, max_size=LAYERS),
    ),
    saved_ms=st.sampled_from([np.ones(LAYERS), np.array([1.0, 0.0, 2.5])]),
    upload_ms=st.sampled_from([0.0, 0.5, 1.5]),
    cycle_bytes=st.sampled_from([None, 0, 15, 40]),
    decay=st.sampled_from([1.0, 0.9, 0.5]),
)
SEEDS = st.integers(0, 10_000)


def random_uses(seed: int, cycles: int = 25) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.gamma(0.4, 1.0, (LAYERS, EXPERTS)), (cycles, LAYERS, EXPERTS))


@given(RULES, SEEDS)
@settings(max_examples=150, deadline=None)
def test_uploads_explain_every_change_within_slots_and_bytes(rule: Rule, seed: int) -> None:
    held = Residency.empty(LAYERS, EXPERTS)
    groups = len(rule.slots)
    for used in random_uses(seed):
        following, uploads = after(held, used, rule)
        explained = held.resident.copy()
        for load, victim in zip(uploads.loads, uploads.victims, strict=True):
            assert not explained[tuple(load)]
            assert rule.saved_ms[load[0]] > 0
            if victim[0] >= 0:
                assert explained[tuple(victim)]
                assert groups == 1 or victim[0] == load[0]
                explained[tuple(victim)] = False
            explained[tuple(load)] = True
        assert (explained == following.resident).all()
        assert (following.resident.reshape(groups, -1).sum(axis=1) <= rule.slots).all()
        if rule.cycle_bytes is not None:
            assert rule.bytes_each[uploads.loads[:, 0]].sum() <= rule.cycle_bytes
        held = following


@given(RULES, SEEDS)
@settings(max_examples=150, deadline=None)
def test_the_compiled_decision_is_that_of_the_reference(rule: Rule, seed: int) -> None:
    held = Residency.empty(LAYERS, EXPERTS)
    for cycle, used in enumerate(random_uses(seed)):
        following, uploads = after(held, used, rule, committed=cycle % 3)
        expected, as_expected = reference(held, used, rule, committed=cycle % 3)
        assert (following.uses == expected.uses).all()
        assert (following.resident == expected.resident).all()
        assert uploads.loads.tolist() == as_expected.loads.tolist()
        assert uploads.victims.tolist() == as_expected.victims.tolist()
        held = following


def test_uses_of_another_model_are_refused() -> None:
    held = Residency.empty(LAYERS, EXPERTS)
    for used in (np.zeros((LAYERS, EXPERTS + 1)), np.zeros(LAYERS * EXPERTS)):
        with pytest.raises(ValueError, match="different models"):
            after(held, used, rule([3]))


@given(RULES, SEEDS)
@settings(max_examples=50, deadline=None)
def test_the_same_uses_give_the_same_residency(rule: Rule, seed: int) -> None:
    ends = []
    for _ in range(2):
        held = Residency.empty(LAYERS, EXPERTS)
        for used in random_uses(seed):
            held, _ = after(held, used, rule)
        ends.append(held)
    assert (ends[0].resident == ends[1].resident).all()
    assert (ends[0].uses == ends[1].uses).all()


@given(RULES, SEEDS)
@settings(max_examples=100, deadline=None)
def test_what_stays_out_is_worth_no_more_than_an_upload_beyond_the_least_inside(
    rule: Rule, seed: int
) -> None:
    rule = replace(rule, cycle_bytes=None)
    held = Residency.empty(LAYERS, EXPERTS)
    for used in random_uses(seed):
        held, _ = after(held, used, rule)
        worth = (held.uses * rule.saved_ms[:, None]).reshape(len(rule.slots), -1)
        for inside, worths, slots in zip(
            held.resident.reshape(worth.shape), worth, rule.slots, strict=True
        ):
            if not slots:
                continue
            least = worths[inside].min() if inside.sum() == slots else 0.0
            assert worths[~inside].max(initial=0.0) <= least + rule.upload_ms + 1e-12


@given(SEEDS)
@settings(max_examples=50, deadline=None)
def test_without_a_price_of_uploads_the_experts_of_most_worth_are_resident(seed: int) -> None:
    cheap = rule([7], upload_ms=0.0, saved_ms=np.array([1.0, 0.7, 2.5]))
    held = Residency.empty(LAYERS, EXPERTS)
    for used in random_uses(seed):
        held, _ = after(held, used, cheap)
        worth = held.uses * cheap.saved_ms[:, None]
        assert worth[held.resident].sum() == pytest.approx(np.sort(worth, axis=None)[-7:].sum())


def test_near_equals_do_not_take_turns() -> None:
    loads = {}
    for upload_ms in (0.0, 1.0):
        held, loads[upload_ms] = Residency.empty(LAYERS, EXPERTS), 0
        for cycle in range(100):
            one = rule([1], upload_ms=upload_ms, decay=0.8)
            held, uploads = after(held, uses((0, cycle % 2)), one)
            loads[upload_ms] += len(uploads)
    assert loads[0.0] > 90
    assert loads[1.0] <= 1


def test_a_layer_that_saves_more_is_put_first_where_slots_are_shared() -> None:
    used = uses((0, 0), (0, 0), (1, 1), (2, 2))
    shared = rule([1], saved_ms=np.array([1.0, 1.0, 5.0]))
    held, uploads = after(Residency.empty(LAYERS, EXPERTS), used, shared)
    assert uploads.loads.tolist() == [[2, 2]]
    assert held.resident.sum() == 1


def test_bytes_go_to_the_experts_of_most_worth_and_the_rest_come_later() -> None:
    used = uses((0, 0), (1, 1), (1, 1), (2, 2), (2, 2), (2, 2))
    few = rule([9], cycle_bytes=20)
    held, uploads = after(Residency.empty(LAYERS, EXPERTS), used, few)
    assert uploads.loads.tolist() == [[2, 2], [1, 1]]
    _, uploads = after(held, uses(), few)
    assert uploads.loads.tolist() == [[0, 0]]


def test_uses_fade_with_committed_tokens() -> None:
    held = Residency(uses((0, 0)).astype(np.float64), np.zeros((LAYERS, EXPERTS), np.bool_))
    following, _ = after(held, uses((0, 1)), rule([4], decay=0.5), committed=3)
    assert following.uses[0, :2].tolist() == [0.125, 1.0]


class TestBeginning:
    def test_a_run_begins_with_the_experts_of_most_worth_of_the_last(self) -> None:
        held = Residency.empty(LAYERS, EXPERTS)
        held, _ = after(held, uses((0, 0), (0, 0), (1, 1), (2, 2), (2, 2)), rule([9]))
        again = restored(held.state(), rule([2]), LAYERS, EXPERTS)
        assert np.argwhere(again.resident).tolist() == [[0, 0], [2, 2]]
        assert again.missing_share == pytest.approx(1 / 5)
        each = restored(held.state(), rule([1, 1, 0]), LAYERS, EXPERTS)
        assert np.argwhere(each.resident).tolist() == [[0, 0], [1, 1]]

    def test_slots_that_are_left_take_experts_that_were_never_used(self) -> None:
        used = uses((1, 5)).astype(np.float64)
        held = filled(used, rule([2, 2, 0]))
        assert np.argwhere(held.resident).tolist() == [[0, 0], [0, 1], [1, 0], [1, 5]]
        saved_ms = np.array([0.0, 1.0, 1.0])
        held = filled(used, rule([14], saved_ms=saved_ms))
        assert held.resident.sum(axis=1).tolist() == [0, 6, 6]
        assert Residency.empty(LAYERS, EXPERTS).missing_share == 1

    @pytest.mark.parametrize(
        "kept", [{}, {"uses": np.zeros((2, 2))}, {"uses": np.full((LAYERS, EXPERTS), -1.0)}]
    )
    def test_kept_uses_that_are_damaged_are_refused(self, kept: dict[str, np.ndarray]) -> None:
        with pytest.raises(ValueError, match="damaged"):
            restored(kept, rule([2]), LAYERS, EXPERTS)

    def test_rules_that_make_no_sense_are_refused(self) -> None:
        with pytest.raises(ValueError, match="slots"):
            rule([4, 4])
        with pytest.raises(ValueError, match="grow by themselves"):
            rule([4], decay=1.5)


def test_bitsets_of_the_residents_are_those_that_were_uploaded() -> None:
    held, _ = after(Residency.empty(LAYERS, 70), np.eye(LAYERS, 70, 65), rule([9]))
    assert held.sets.shape == (LAYERS, 2)
    assert held.sets[:, 1].tolist() == [2, 4, 8]
    assert not held.sets[:, 0].any()
