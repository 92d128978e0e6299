"""Replays of caches: Belady's optimum against exhaustive search, and everything against Belady."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tracecases import EXPERTS, LAYERS, USED, made_up_trace

from specfit.planner.caching import (
    BELADY,
    LFU,
    LRU,
    Uses,
    hits_of_classic,
    hits_of_rule,
    left_by,
    uses_of_chains,
)
from specfit.planner.residency import Rule


def made(rows: np.ndarray) -> Uses:
    return Uses(rows.astype(np.uint8), (1,) * len(rows))


def of_letters(text: str) -> Uses:
    """One layer of four experts; a cycle each, such as "ab c"."""
    rows = [[[letter in cycle for letter in "abcd"]] for cycle in text.split()]
    return made(np.array(rows, np.uint8))


def plain_rule(slots: list[int], layers: int, upload_ms: float = 0.5) -> Rule:
    return Rule(np.array(slots, np.int32), np.ones(layers), upload_ms, np.ones(layers, np.int64))


def most_hits(rows: np.ndarray, slots: list[int]) -> int:
    """By trying every content of the cache after every cycle."""
    n_experts = rows.shape[2]
    best = {frozenset[int](): 0}
    for used in rows:
        places = frozenset(np.flatnonzero(used.reshape(-1)).tolist())
        following: dict[frozenset[int], int] = {}
        for held, hits in best.items():
            known = sorted(held | places)
            for size in range(len(known) + 1):
                for kept in combinations(known, size):
                    if len(slots) == 1:
                        fits = size <= slots[0]
                    else:
                        layers = [place // n_experts for place in kept]
                        fits = all(layers.count(layer) <= n for layer, n in enumerate(slots))
                    if fits:
                        now, key = hits + len(held & places), frozenset(kept)
                        following[key] = max(following.get(key, -1), now)
        best = following
    return max(best.values())


@given(
    st.integers(0, 10_000),
    st.sampled_from([[1], [2], [3], [1, 1], [2, 1], [0, 2]]),
    st.floats(0.15, 0.6),
)
@settings(max_examples=60, deadline=None)
def test_belady_is_the_most_that_any_cache_hits(seed: int, slots: list[int], share: float) -> None:
    rows = np.random.default_rng(seed).random((7, 2, 3)) < share
    if not rows.any():
        return
    hits = hits_of_classic(made(rows), np.array(slots, np.int32), BELADY)
    assert round(hits.unique * rows.sum()) == most_hits(rows, slots)


@given(st.integers(0, 10_000), st.sampled_from([[4], [9], [3, 3], [6, 2]]))
@settings(max_examples=40, deadline=None)
def test_nothing_hits_more_than_belady(seed: int, slots: list[int]) -> None:
    rng = np.random.default_rng(seed)
    uses = made(rng.random((60, 2, 8)) < rng.beta(0.7, 2, (2, 8)) + 0.01)
    best = hits_of_classic(uses, np.array(slots, np.int32), BELADY).unique
    others = [hits_of_classic(uses, np.array(slots, np.int32), kind) for kind in (LRU, LFU)]
    others += [hits_of_rule(uses, plain_rule(slots, 2, price)) for price in (0.0, 0.5, 2.0)]
    assert max(one.unique for one in others) <= best + 1e-12


def test_lru_keeps_the_latest_and_lfu_the_most_frequent() -> None:
    uses, two = of_letters("a b a b c d a b"), np.array([2], np.int32)
    lru, lfu = (hits_of_classic(uses, two, kind) for kind in (LRU, LFU))
    assert round(lru.unique * 8) == 2
    assert round(lfu.unique * 8) == 4
    assert lru.uploads.tolist() == [6]
    assert lfu.uploads.tolist() == [2]
    with pytest.raises(ValueError, match="'FIFO' is no policy"):
        hits_of_classic(uses, two, "FIFO")


def test_pairs_count_every_row_and_unions_every_expert_once() -> None:
    rows = np.array([[[1, 0]], [[3, 1]]])
    hits = hits_of_classic(made(rows), np.array([1], np.int32), LRU)
    assert hits.pairs == pytest.approx(3 / 5)
    assert hits.unique == pytest.approx(1 / 3)


def test_ours_is_ahead_of_lru_and_lfu_and_near_belady_where_favourites_change() -> None:
    """Skewed like the routing of real models, other experts being usual in the second half."""
    rng = np.random.default_rng(0)
    likes = np.repeat(1.6 * rng.standard_normal((2, 2, 64)), 300, axis=0)
    scores = likes + rng.gumbel(size=likes.shape)
    rows = scores >= np.sort(scores, axis=2)[:, :, -8, None]
    uses = made(rows)
    for share in (0.4, 0.6, 0.77):
        slots = [round(share * 128)]
        ours = hits_of_rule(uses, plain_rule(slots, 2))
        lru, lfu, best = (
            hits_of_classic(uses, np.array(slots, np.int32), kind) for kind in (LRU, LFU, BELADY)
        )
        assert ours.unique > max(lru.unique, lfu.unique)
        assert ours.unique > 0.85 * best.unique
        assert ours.uploads.sum() < lru.uploads.sum()


class TestTraces:
    def test_plain_decoding_uses_what_the_text_did(self) -> None:
        trace = made_up_trace(12, texts=2)
        uses = uses_of_chains(trace.texts, 0, EXPERTS)
        assert uses.rows.shape == (24, LAYERS, EXPERTS)
        assert uses.committed == (1,) * 24
        assert (uses.rows.sum(axis=2) == USED).all()

    def test_chains_commit_the_texts_in_fewer_cycles_of_more_rows(self) -> None:
        trace = made_up_trace(40, texts=2, sureness=5.0)
        uses = uses_of_chains(trace.texts, 3, EXPERTS)
        assert sum(uses.committed) == 80
        assert len(uses) < 70
        assert set(uses.rows.sum(axis=2).ravel().tolist()) <= {n * USED for n in (1, 2, 3, 4)}

    def test_a_cache_that_begins_as_it_was_left_misses_less(self) -> None:
        uses = uses_of_chains(made_up_trace(100).texts, 0, EXPERTS)
        rule = plain_rule([60], LAYERS)
        assert (
            hits_of_rule(uses, rule, left_by(uses, rule)).unique > hits_of_rule(uses, rule).unique
        )
