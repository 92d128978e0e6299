"""All keys and commands, from the data that they are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ..commands import COMMANDS
from ..keys import KEYS, Key
from .dialog import Dialog

# What the input box does by itself.
WRITING = (
    ("@file", "Send a text file along; Tab completes its name"),
    ("//", "Begin a message with a slash"),
    ("Ctrl+U, Ctrl+K", "Delete to the beginning of the line, to its end; Ctrl+Z undoes"),
    ("Up", "With nothing written: edit the last message; else earlier messages"),
)

# Columns below which keys and their help do not stand side by side.
SIDE_BY_SIDE = 70


class HelpScreen(Dialog[None]):
    """Scrolls with the arrow keys; Esc leaves."""

    DEFAULT_CSS = """
    HelpScreen {
        align: center middle;
    }
    HelpScreen VerticalScroll {
        width: 100%;
        max-width: 84;
        height: auto;
        max-height: 100%;
        border: round $primary;
        border-title-color: $text-primary;
        border-subtitle-color: $text-muted;
        background: $surface;
        padding: 0 1;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q,enter", "leave", "Leave", show=False)
    ]

    def __init__(self, keys: Iterable[Key] = KEYS) -> None:
        super().__init__()
        self._keys = tuple(keys)

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title, box.border_subtitle = "Help", "Esc leaves"
            yield Static()

    def on_resize(self, event: events.Resize) -> None:
        keys = [(key.shown, key.help) for key in self._keys if key.keys]
        commands = [(spec.usage, spec.help) for spec in COMMANDS]
        parts = (("Keys", keys), ("Commands", commands), ("Writing", list(WRITING)))
        narrow = event.size.width < SIDE_BY_SIDE
        text = Content("\n\n").join(_table(heading, rows, narrow) for heading, rows in parts)
        self.query_one(Static).update(text)


def _table(heading: str, rows: list[tuple[str, str]], narrow: bool) -> Content:
    """narrow: the help stands below what it is for, not beside it."""
    width = max(len(left) for left, _ in rows) + 2
    lines = [
        Content.assemble(
            (left if narrow else left.ljust(width), "bold"),
            "\n  " if narrow else "",
            (right, "$text-muted"),
        )
        for left, right in rows
    ]
    return Content("\n").join([Content.styled(heading, "bold underline"), *lines])
