"""Search over all conversations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from textual.content import Content

from ..plain_text import shown
from .list_screen import ListScreen


class Hit(Protocol):
    """A message that was found. match: [from, to) of a word in `snippet`.
    created: seconds since the epoch."""

    @property
    def conversation(self) -> int: ...
    @property
    def message(self) -> int: ...
    @property
    def title(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def snippet(self) -> str: ...
    @property
    def match(self) -> tuple[int, int]: ...
    @property
    def created(self) -> float: ...


class SearchScreen(ListScreen[Hit, Hit]):
    """Returns the message to show, or None.

    search: finds messages by words, best first; called in a thread, and may raise AppError.
    """

    HEADING = "Search"
    PLACEHOLDER = "Words of a message"
    HINT = "Enter opens · Esc leaves"

    def __init__(self, search: Callable[[str], Sequence[Hit]], *, words: str = "") -> None:
        super().__init__(words)
        self._search = search

    def find(self, words: str) -> Sequence[Hit]:
        return self._search(words) if words else []

    def line(self, entry: Hit) -> Content:
        title = _flat(entry.title).strip() or "(no title)"
        speaker = {"user": "you", "assistant": "model"}.get(entry.role, entry.role)
        start, end = entry.match
        text = entry.snippet
        return Content.assemble(
            title,
            (f" · {_flat(speaker)}{_day(entry.created)}", "$text-muted"),
            "\n  ",
            (_flat(text[:start]), "$text-muted"),
            (_flat(text[start:end]), "bold underline"),
            (_flat(text[end:]), "$text-muted"),
        )

    def result(self, entry: Hit) -> Hit:
        return entry

    def nothing(self, words: str) -> str:
        return "No message has these words." if words else ""


def _day(created: float) -> str:
    """The day in the user's place; "" where it is not known."""
    try:
        return f" · {datetime.fromtimestamp(created):%Y-%m-%d}" if created > 0 else ""
    except (OverflowError, OSError, ValueError):
        return ""


def _flat(text: str) -> str:
    """`text` in one line."""
    return shown(text.replace("\n", " ").replace("\t", " "))
