"""The n-gram index, against what a search through the whole text finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfit.planner.ngram import LEAST, LONGEST, OCCURRENCES, NgramIndex

# Few different tokens, so that everything occurs often.
texts = st.lists(st.integers(0, 3), max_size=60)


def searched(text: list[int], path: list[int]) -> dict[int, float]:
    """Probabilities of what follows, by the definition."""
    end = (text + path)[-LONGEST:]
    if len((text[-LONGEST:] + path)[-LONGEST:]) < LEAST:
        return {}
    found = []
    for place in range(LEAST, len(text)):
        n = 0
        while n < min(place, len(end)) and text[place - n - 1] == end[-n - 1]:
            n += 1
        if n >= LEAST:
            found.append((n, text[place]))
    found = found[-OCCURRENCES:]
    probs = dict.fromkeys((token for _, token in found), 0.0)
    for length in range(LEAST, max((n for n, _ in found), default=0) + 1):
        there = [token for n, token in found if n >= length]
        for token in probs:
            probs[token] = (there.count(token) + probs[token]) / (len(there) + 1)
    return probs


class TestNgramIndex:
    @given(texts, st.lists(st.integers(0, 3), max_size=20))
    def test_finds_what_a_search_through_the_text_finds(
        self, text: list[int], path: list[int]
    ) -> None:
        index = NgramIndex()
        index.extend(text)
        found = index.following(path)
        assert dict(found) == pytest.approx(searched(text, path))
        assert [p for _, p in found] == sorted((p for _, p in found), reverse=True)
        assert sum(p for _, p in found) < 1

    @given(st.lists(st.tuples(texts, st.integers(0, 60)), max_size=5), texts)
    def test_forgets_what_is_cut_off(self, parts: list[tuple[list[int], int]], end: list) -> None:
        index, text = NgramIndex(), [0]
        index.extend(text)
        for more, kept in parts:
            index.extend(more)
            text += more
            index.truncate(kept)
            del text[kept:]
            assert len(index) == len(text)
        afresh = NgramIndex()
        afresh.extend(text)
        for path in (end, [], text[-1:], text[:1]):
            assert index.following(path) == afresh.following(path)

    def test_a_longer_match_is_surer_and_more_of_them_too(self) -> None:
        def p(text: list[int]) -> float:
            index = NgramIndex()
            index.extend(text)
            return index.following()[0][1]

        assert p([1, 2, 9, 1, 2]) == pytest.approx(1 / 2)
        assert p([0, 1, 2, 9, 0, 1, 2]) == pytest.approx(3 / 4)
        assert p([1, 2, 9, 8, 1, 2, 9, 7, 1, 2]) == pytest.approx(2 / 3)
        assert p([0, 1, 2, 9, 7, 1, 2, 8, 0, 1, 2]) == pytest.approx((1 + 1 / 3) / 2)

    def test_a_text_that_repeats_itself_goes_on_for_ever(self) -> None:
        index, path = NgramIndex(), []
        index.extend([1, 2, 3, 4, 5] * 3)
        for _ in range(30):
            path.append(index.following(path)[0][0])
        assert path == [1, 2, 3, 4, 5] * 6
