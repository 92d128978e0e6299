"""A remark of the app's own in the conversation: a notice or an error."""

from __future__ import annotations

from textual.widgets import Static

from ..plain_text import shown


class Note(Static):
    """One sentence that neither the user nor the model said."""

    DEFAULT_CSS = """
    Note {
        margin: 0 0 1 0;
        padding: 0 1;
        color: $text-muted;
        border-left: thick $panel;
    }
    Note.-error {
        color: $text-error;
        border-left: thick $error;
        &:nocolor {
            text-style: bold;
        }
    }
    """

    def __init__(self, text: str, *, error: bool = False) -> None:
        super().__init__(shown(text), markup=False, classes="-error" if error else "")


class Unseen(Static):
    """Stands where the part of a conversation ends that the context has no room for."""

    DEFAULT_CSS = """
    Unseen {
        height: 1;
        margin: 0 0 1 0;
        border-top: solid $warning;
        border-title-color: $text-warning;
    }
    """

    def on_mount(self) -> None:
        self.border_title = "The model no longer sees what is above"
