"""Earlier conversations: choosing one, deleting some."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, TypeVar

from textual.binding import Binding, BindingType
from textual.content import Content

from ..entry import AppError
from ..plain_text import shown
from .list_screen import ListScreen

DELETE_KEY = "ctrl+d"


class ConversationLine(Protocol):
    """What is known of a conversation. updated: seconds since the epoch; shown: messages
    of the branch that was last looked at."""

    @property
    def id(self) -> int: ...
    @property
    def title(self) -> str: ...
    @property
    def shown(self) -> int: ...
    @property
    def updated(self) -> float: ...


LineT = TypeVar("LineT", bound=ConversationLine)


class ConversationsScreen(ListScreen[ConversationLine, int]):
    """Returns the id of the conversation to open, or None.

    conversations: all of them, newest first; delete: takes one away by its id. Both are called in
    threads, and may raise AppError.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(DELETE_KEY, "delete", "Delete", show=False, priority=True),
    ]
    HEADING = "Conversations"
    PLACEHOLDER = "Words of the title"
    HINT = "Enter opens · Ctrl+D deletes · Esc leaves"

    def __init__(
        self,
        conversations: Callable[[], Sequence[ConversationLine]],
        delete: Callable[[int], None],
        *,
        words: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(words)
        self._conversations = conversations
        self._delete = delete
        self._clock = clock
        self._doomed: ConversationLine | None = None  # to be deleted, if the user says yes

    def find(self, words: str) -> Sequence[ConversationLine]:
        return titled(self._conversations(), words)

    def line(self, entry: ConversationLine) -> Content:
        age = ago(self._clock() - entry.updated)
        messages = f"{entry.shown} message{'s' if entry.shown != 1 else ''}"
        title = " ".join(shown(entry.title).split()) or "(no title)"
        if self.has_class("-narrow"):
            return Content.assemble(title, (f" · {age}", "$text-muted"))
        return Content.assemble((f"{age:>10}  {messages:>13}  ", "$text-muted"), title)

    def result(self, entry: ConversationLine) -> int:
        return entry.id

    def nothing(self, words: str) -> str:
        return "No title has these words." if words else "There is no conversation yet."

    def action_take(self) -> None:
        if self._doomed is None:
            super().action_take()
        else:
            self.run_worker(self._delete_doomed(self._doomed))

    def action_leave(self) -> None:
        if self._doomed is None:
            super().action_leave()
        else:
            self._ask(None)

    def action_move(self, rows: int) -> None:
        self._ask(None)
        super().action_move(rows)

    def action_delete(self) -> None:
        """Asks whether the highlighted one is to be deleted."""
        self._ask(self.chosen)

    def look_up(self) -> None:
        self._ask(None)
        super().look_up()

    def _ask(self, doomed: ConversationLine | None) -> None:
        self._doomed = doomed
        if doomed is None:
            self.say(self.HINT)
        else:
            title = " ".join(doomed.title.split())[:40]
            self.say(f"Enter deletes “{title}” for good · Esc keeps it")

    async def _delete_doomed(self, doomed: ConversationLine) -> None:
        self._ask(None)
        try:
            await asyncio.to_thread(self._delete, doomed.id)
        except AppError as error:
            self.say(str(error))
        else:
            self.look_up()


def titled(lines: Sequence[LineT], words: str) -> list[LineT]:
    """Those that have all the words in their titles."""
    wanted = words.casefold().split()
    return [line for line in lines if all(word in line.title.casefold() for word in wanted)]


def ago(seconds: float) -> str:
    """A time in the past, in a word or two."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago" if seconds < 1e8 else "long ago"
    return "just now"
