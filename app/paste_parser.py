"""Reading pastes as they are: Textual's parser takes escape sequences in them for keys.

In a bracketed paste (xterm's `CSI ?2004 h`) up to 32 characters behind each escape character would
come before the rest, as keys: text changes its order, and a line end among it sends the message.
Alt with a letter, which terminals send as an escape character and the letter, is read as one key at
once: Textual waits whether more comes, and takes what does for a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from textual._xterm_parser import XTermParser
from textual.message import Message

from .plain_text import shown

if TYPE_CHECKING:
    from textual.driver import Driver

START, END = "\x1b[200~", "\x1b[201~"
# No longer sequence begins like this; b and f, words to the left and right, Textual knows.
_ALT = re.compile("\x1b([ac-eg-z\r])")
_AS_KEY = "\x1b[{};3u"  # in kitty's protocol, which is read as it comes


class PasteParser(XTermParser):
    """Shows the parser control characters of a paste only as signs of them, which are text."""

    def __init__(self, debug: bool = False) -> None:
        self._before = ""  # the end of what was read, in case a mark is cut in two
        self._pasting = False
        super().__init__(debug)

    def feed(self, data: str) -> Iterable[Message]:
        if not data:  # the end
            yield from super().feed(data)
        for piece in self._pieces(data):
            yield from super().feed(piece)

    def _pieces(self, data: str) -> Iterator[str]:
        """`data` in parts that are not empty; what may be the end's beginning is kept for later."""
        while data:
            if self._pasting:
                text, mark, rest = (self._before + data).partition(END)
                kept = 0 if mark else _begun(text, END)
                self._before = text[len(text) - kept :]
                inside = text[: len(text) - kept]
                # A carriage return stays: it may be half of a line end.
                piece = "\r".join(map(shown, inside.split("\r"))) + mark
                self._pasting = not mark
            else:
                seen = self._before + data
                start, mark, rest = seen.partition(START)
                piece = _ALT.sub(_alt, (start + mark)[len(self._before) :])
                self._before = "" if mark else seen[1 - len(START) :]
                self._pasting = bool(mark)
            data = rest
            if piece:
                yield piece


def with_whole_pastes(driver: type[Driver]) -> type[Driver]:
    """A driver that reads the terminal with PasteParser; `driver` itself where it reads none.

    Textual's driver has no place for a parser: its thread takes the one that its module names.
    """
    try:
        from textual.drivers import linux_driver
    except ImportError:  # Windows
        return driver
    if not issubclass(driver, linux_driver.LinuxDriver):
        return driver

    class WholePastes(driver):  # type: ignore[misc, valid-type]
        def run_input_thread(self) -> None:
            vars(linux_driver)["XTermParser"] = PasteParser
            super().run_input_thread()

    return WholePastes


def _alt(match: re.Match[str]) -> str:
    return _AS_KEY.format(ord(match[1]))


def _begun(text: str, mark: str) -> int:
    """How many characters at the end of `text` begin `mark`."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)
