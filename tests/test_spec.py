"""Speculation modes as they are typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfit.planner import Spec
from specfit.planner.spec import MOST_NODES


@pytest.mark.parametrize(
    ("text", "mode", "numbers"),
    [
        ("off", "off", ()),
        ("count", "count", ()),
        (" specfit ", "specfit", ()),
        ("specfit:ratio", "specfit:ratio", ()),
        ("chain:63", "chain", (63,)),
        ("eagle3", "eagle3", (60, 7, 10)),
        ("eagle3:31", "eagle3", (31, 7, 10)),
        ("eagle3:64:2:3", "eagle3", (64, 2, 3)),
    ],
)
def test_a_mode_is_read_with_what_it_leaves_out(
    text: str, mode: str, numbers: tuple[int, ...]
) -> None:
    spec = Spec.parse(text)
    assert (spec.mode, spec.numbers, str(spec)) == (mode, numbers, text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, "is no speculation mode") for text in ("", "on", "chain", "chain:0", "chain:2:3")),
        *((text, "is no speculation mode") for text in ("chain:²", "off:1", "eagle3:1:2:3:4")),
        ("specfit:fast", "is no speculation mode"),
        (f"chain:{MOST_NODES}", "a chain has 63 tokens at most"),
        ("eagle3:65", "a tree has 64 tokens at most"),
    ],
)
def test_what_is_no_mode_or_cannot_be_verified_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Spec.parse(text)


@given(text=st.text() | st.from_regex(r"(chain|eagle3)(:[0-9]{1,3}){0,5}", fullmatch=True))
def test_every_text_is_a_mode_within_the_limits_or_refused_in_a_sentence(text: str) -> None:
    try:
        spec = Spec.parse(text)
    except ValueError as error:
        assert repr(text) in str(error)
    else:
        assert all(n >= 1 for n in spec.numbers)
        assert spec.mode != "chain" or spec.numbers[0] < MOST_NODES
        assert spec.mode != "eagle3" or spec.numbers[0] <= MOST_NODES
