"""Splits what a reasoning model writes into its thinking and its answer.

The thinking stands at the start between "<think>" and "</think>". Some templates write the opening
tag themselves; put OPENED before such an answer, and its content says by itself what it is.
"""

from __future__ import annotations

from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"
OPENED = OPEN + "\n"


@dataclass(frozen=True)
class Split:
    """Text that was found to be thinking, and text of the answer."""

    thinking: str
    answer: str


class ThinkingSplitter:
    """Splits streamed text; a tag may come in any number of pieces.

    Blanks after either tag are left out. A tag further on in the answer is part of the answer.
    """

    def __init__(self, *, opened: bool = False) -> None:
        """opened: the template has written the opening tag already."""
        self._held = ""  # read, but it may be part of a tag
        self._part = "thinking" if opened else "start"
        self._skipping = opened

    @property
    def thinking(self) -> bool:
        """Whether the model is at its thinking."""
        return self._part == "thinking"

    def feed(self, text: str) -> Split:
        """What `text` adds to either part."""
        self._held += text
        thinking = answer = ""
        if self._part == "start":
            self._begin()
        if self._part == "thinking":
            thinking = self._thought()
        if self._part == "answer":
            answer = self._release(len(self._held))
        return Split(thinking, answer)

    def finish(self) -> Split:
        """What was held back, once no more text comes."""
        rest = self._release(len(self._held))
        return Split(rest, "") if self.thinking else Split("", rest)

    def _begin(self) -> None:
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self._enter("thinking", text[len(OPEN) :])
        elif not OPEN.startswith(text):
            self._part = "answer"

    def _thought(self) -> str:
        end = self._held.find(CLOSE)
        if end < 0:
            return self._release(len(self._held) - _tag_begun(self._held))
        thought = self._release(end)
        self._enter("answer", self._held.removeprefix(CLOSE))
        return thought

    def _enter(self, part: str, held: str) -> None:
        self._part, self._held, self._skipping = part, held, True

    def _release(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        if self._skipping:
            text = text.lstrip()
            self._skipping = not text
        return text


def split(content: str) -> Split:
    """The two parts of a whole message; thinking that was never closed is all thinking."""
    splitter = ThinkingSplitter()
    first, last = splitter.feed(content), splitter.finish()
    return Split((first.thinking + last.thinking).rstrip(), first.answer + last.answer)


def stripped(content: str) -> str:
    """`content` without its thinking, as the model is to see it in later turns."""
    return split(content).answer


def _tag_begun(text: str) -> int:
    """How many characters at the end of `text` may be the beginning of a closing tag."""
    most = min(len(text), len(CLOSE) - 1)
    return next((n for n in range(most, 0, -1) if CLOSE.startswith(text[-n:])), 0)
