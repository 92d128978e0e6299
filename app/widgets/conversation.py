"""The conversation: messages from top to bottom, following the newest until the reader looks up."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widget import Widget


class Conversation(VerticalScroll):
    """Scrolls along with new text; scrolling up lets go, scrolling to the end takes hold again."""

    # The inner column is never shorter than the view: following a shorter one would push it down.
    DEFAULT_CSS = """
    Conversation {
        height: 1fr;
        padding: 0 1;
        scrollbar-size-vertical: 1;
    }
    Conversation > Vertical {
        height: auto;
        min-height: 100%;
    }
    """

    def compose(self) -> ComposeResult:
        yield Vertical()

    def on_mount(self) -> None:
        self.can_focus = False  # the keyboard stays with the composer; the app scrolls for it
        self.anchor()

    async def clear(self) -> None:
        """Takes all messages away."""
        await self.query_one(Vertical).remove_children()

    async def add(self, message: Widget) -> None:
        """Adds a message at the end and shows it."""
        await self.query_one(Vertical).mount(message)
        self.anchor()
