"""What the user said."""

from __future__ import annotations

from textual.widgets import Static

from ..plain_text import shown


class UserMessage(Static):
    """A message of the user's, as plain text."""

    DEFAULT_CSS = """
    UserMessage {
        margin: 0 0 1 0;
        padding: 0 1;
        border-left: thick $accent;
        background: $boost;
    }
    """

    def __init__(self, text: str) -> None:
        super().__init__(shown(text), markup=False)
