"""A one-line field that takes pasted text as it is shown, never as commands to the terminal."""

from __future__ import annotations

from textual import events
from textual.widgets import Input

from ..plain_text import shown


class PlainInput(Input):
    """An Input for the pickers: compact, and clean of control characters."""

    def on_paste(self, event: events.Paste) -> None:
        """Inserts the first line of what was pasted."""
        event.prevent_default().stop()
        line = next(iter(event.text.splitlines()), "")
        self.replace(shown(line).replace("\t", " "), *self.selection)
