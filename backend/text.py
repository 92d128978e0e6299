"""Tokens to text: whole characters only, and nothing past a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns the bytes of tokens into text as it becomes certain.

    A character is given out when its last byte is there; text that may be the start of a stop
    string is held back until it is known not to be.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(s for s in stop if s)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._released = 0
        self.stopped = False

    @property
    def n_chars(self) -> int:
        """Characters of the text so far, those held back included."""
        return self._released + len(self._held)

    def feed(self, piece: bytes) -> str:
        """The text that is certain after `piece`; sets `stopped` when a stop string is complete."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """What was held back, once the generation is over."""
        if self.stopped:
            return ""
        return self._release(self._decoder.decode(b"", final=True), all_of_it=True)

    def _release(self, text: str, *, all_of_it: bool = False) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        self._held = ""
        cuts = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if cuts:
            self.stopped = True
            text = text[: min(cuts)]
            self._released += len(text)
            return text
        if not all_of_it:
            held = max((_overlap(text, stop) for stop in self._stop), default=0)
            if held:
                text, self._held = text[:-held], text[-held:]
        self._released += len(text)
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper start of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
