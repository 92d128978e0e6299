"""Where the user writes: Enter sends, Shift+Enter or Ctrl+J begins a new line."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from ..plain_text import shown

# Terminals that cannot report Shift+Enter send a plain Enter for it; Ctrl+J always arrives.
NEW_LINE_KEYS = ("shift+enter", "ctrl+j")


class Composer(TextArea):
    """The input box; it grows with its text up to a few rows."""

    DEFAULT_CSS = """
    Composer {
        height: auto;
        min-height: 3;
        max-height: 8;
        border: round $primary;
        border-subtitle-color: $text-muted;
        padding: 0 1;
        background: $background;
        &:focus {
            border: round $primary;
        }
    }
    """

    @dataclass
    class Submitted(Message):
        """The user pressed Enter on `text`, which is more than blanks."""

        text: str

    def __init__(self) -> None:
        super().__init__(
            placeholder="Write a message",
            show_line_numbers=False,
            soft_wrap=True,
            highlight_cursor_line=False,
        )
        self.border_subtitle = (
            "Enter sends · Ctrl+J new line · Esc stops · Ctrl+N new · Ctrl+C twice leaves"
        )

    def on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.prevent_default().stop()
            if self.text.strip():
                # Cleared at once: what is typed before the message is handled is the next one's.
                self.post_message(self.Submitted(self.text))
                self.clear()
        elif event.key in NEW_LINE_KEYS:
            event.prevent_default().stop()
            self._insert_here("\n")

    def on_paste(self, event: events.Paste) -> None:
        """Inserts what was pasted as it is: its line ends do not send."""
        event.prevent_default().stop()
        self._insert_here(shown(event.text.replace("\r\n", "\n").replace("\r", "\n")))

    def restore(self, text: str) -> None:
        """Puts back a message that was not answered, before whatever was written since."""
        self.text = text if not self.text else f"{text}\n{self.text}"
        self.move_cursor(self.document.end)

    def _insert_here(self, text: str) -> None:
        start, end = self.selection
        result = self.replace(text, start, end, maintain_selection_offset=False)
        self.move_cursor(result.end_location)
