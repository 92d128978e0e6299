"""Tokens become text without broken characters and without stop strings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specfit.backend.text import TextStream


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


@given(st.text(), st.lists(st.integers(0, 5)))
def test_any_cut_of_the_bytes_gives_the_same_text(text: str, sizes: list[int]) -> None:
    stream = TextStream()
    out = [stream.feed(piece) for piece in cut(text.encode(), sizes)]
    assert "".join(out) + stream.finish() == text


@given(
    st.text(alphabet="ab"),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=2),
    st.lists(st.integers(0, 3)),
)
def test_text_ends_before_the_first_stop_string(
    text: str, stop: list[str], sizes: list[int]
) -> None:
    stream = TextStream(stop)
    out = ""
    for piece in cut(text.encode(), sizes):
        out += stream.feed(piece)
        assert not any(s in out for s in stop)
        if stream.stopped:
            break
    out += stream.finish()
    ends = [text.find(s) for s in stop if s in text]
    expected = text
    # Of stop strings that overlap, the one that is complete first counts.
    if ends:
        first_complete = min(text.find(s) + len(s) for s in stop if s in text)
        assert len(out) <= first_complete
        assert text.startswith(out)
        assert stream.stopped
    else:
        assert out == expected


def test_a_character_is_held_until_its_last_byte() -> None:
    stream = TextStream()
    smile = "🙂".encode()
    assert [stream.feed(smile[i : i + 1]) for i in range(4)] == ["", "", "", "🙂"]


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    stream = TextStream()
    assert stream.feed(b"a\xff") + stream.feed(b"b\xe2\x82") + stream.finish() == "a�b�"
