"""Thinking apart from answers, and noticing when a model repeats itself."""

from __future__ import annotations

import random

import pytest

from specfit.app.loops import LoopDetector
from specfit.app.thinking import OPENED, Split, ThinkingSplitter, split, stripped


def streamed(text: str, size: int, *, opened: bool = False) -> Split:
    splitter = ThinkingSplitter(opened=opened)
    parts = [splitter.feed(text[i : i + size]) for i in range(0, len(text), size)]
    parts.append(splitter.finish())
    return Split("".join(p.thinking for p in parts), "".join(p.answer for p in parts))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_thinking_is_split_from_the_answer_in_pieces_of_any_size(size):
    text = "\n<think>\nIs 1 < 2? </thin yes\n</think>\n\n<b>Yes</b> <think>not this</think>"
    assert streamed(text, size) == Split(
        "Is 1 < 2? </thin yes\n", "<b>Yes</b> <think>not this</think>"
    )


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_tag_that_the_template_wrote_is_as_good_as_the_models(size):
    text = "hm, é漢👩‍👩‍👧\n</think>\n\nSo."
    assert streamed(text, size, opened=True) == streamed(OPENED + text, size)
    assert streamed("", size, opened=True) == Split("", "")


@pytest.mark.parametrize("text", ["", "  \n", "Hello", "\n <thin ice", "<", " <thinker>"])
def test_an_answer_without_thinking_stays_as_it_is(text):
    assert streamed(text, 1) == Split("", text)


def test_history_has_no_thinking():
    assert stripped("<think>\nlong\n</think>\n\nShort.") == "Short."
    assert stripped("<think>\n\n</think>\n\nShort.") == "Short."
    assert stripped("<think>cut in the mid") == ""
    assert stripped("Short. </think>") == "Short. </think>"
    assert split("<think>\n\n</think>\n\nShort.").thinking == ""


def test_the_splitter_knows_when_it_is_thinking():
    splitter = ThinkingSplitter()
    seen = []
    for piece in ("<thi", "nk>", "a", "</think", ">", "b"):
        splitter.feed(piece)
        seen.append(splitter.thinking)
    assert seen == [False, True, True, True, False, False]


def looping_after(text: str, size: int = 3) -> int | None:
    """How many characters it took to notice."""
    detector = LoopDetector()
    for i in range(0, len(text), size):
        if detector.feed(text[i : i + size]):
            return i
    return None


PARAGRAPH = (
    "The answer is that the sky is blue because of how light is scattered by the air, and that is "
    "why the sky is blue. It is the same with the sea, which is blue because of the sky. "
)
LOOPS = {
    "a paragraph": PARAGRAPH * 8,
    "a word": "Repeat: " + "la " * 500,
    "a line of code": "def f():\n" + "    return self.x if self.x is not None else None\n" * 30,
    "a list that does not count": "Reasons:\n" + "- It is good for the people, and for all.\n" * 40,
    "one character": "Well" + "!" * 4000,
    "no blanks": "答案是，天空是蓝色的。" * 40,
    "blank lines": "End." + "\n" * 8000,
    "thinking": "<think>" + "Wait, let me check that again. Is it 12? No, it is 13. " * 20,
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_noticed(name):
    assert looping_after(LOOPS[name]) is not None


def test_a_loop_is_noticed_soon_and_only_after_four_times():
    words = [f"w{n}" for n in random.Random(1).choices(range(900), k=150)]
    period = " ".join(words) + " "
    intro = " ".join(f"x{n}" for n in range(500)) + " "
    assert looping_after(intro + period * 3) is None
    noticed = looping_after(intro + period * 6, size=1)
    assert len(intro + period * 3) < noticed <= len(intro + period * 4) + 4


def table(rows: int) -> str:
    lines = [f"| {n} | {n * n} | yes | no | - |\n" for n in range(rows)]
    return "| n | n² | a | b | c |\n|---|---|---|---|---|\n" + "".join(lines)


LEGITIMATE = {
    "a table": table(60),
    "rows of zeros": "[" + "0, 0, 0, 0, 0, 0, 0, 0,\n" * 12 + "]",
    "tests": "".join(
        f"def test_{n}():\n    assert square({n}) == {n * n}\n\n\n" for n in range(40)
    ),
    "a refrain": "".join(
        f"Verse {n} tells of {thing}.\nOh, and the wind blows, the wind blows all day long,\n"
        "and nobody hears our song.\n\n"
        for n, thing in enumerate(("rain", "sun", "snow", "a king", "the sea", "an end"))
    ),
    "three times the same": "I will not talk in class, and I will be good, always and ever. " * 3,
    "a rule": "Title\n" + "=" * 200 + "\n" + "-" * 400,
    "numbers": " ".join(map(str, range(2000))),
    "a chessboard": "\n".join(["♜♞♝♛♚♝♞♜", "♟" * 8, *["·" * 8] * 4, "♙" * 8, "♖♘♗♕♔♗♘♖"]),
}


@pytest.mark.parametrize("name", LEGITIMATE)
def test_text_that_only_resembles_a_loop_is_left_alone(name):
    assert looping_after(LEGITIMATE[name]) is None


def test_the_size_of_the_pieces_makes_no_difference():
    for text in (*LOOPS.values(), *LEGITIMATE.values()):
        assert (looping_after(text, 1) is None) == (looping_after(text, 50) is None)
