"""What the user said."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widgets import Static

from ..attachments import size_in_words, split_files
from ..plain_text import shown
from .answer import version

# More of a message than this is folded; even unfolded, no more than MAX_SHOWN characters are drawn.
FOLDED_LINES, FOLDED_SHOWN = 24, 4000
MAX_SHOWN = 60_000


class UserMessage(Static):
    """A message of the user's, as plain text, with the names of its files.

    text: as the model sees it, files included. A long one is folded; a click unfolds it.
    """

    DEFAULT_CSS = """
    UserMessage {
        margin: 0 0 1 0;
        padding: 0 1;
        border-left: thick $accent;
        background: $boost;
        &.-selected {
            border-left: outer $primary;
        }
        &.-selected:nocolor {
            border-left: double $primary;
        }
    }
    """

    def __init__(self, text: str, *, message_id: int | None = None) -> None:
        super().__init__(markup=False)
        self.text = text
        self.message_id = message_id
        self.written, self.files = split_files(text)
        self._version = self._waits = ""
        self._unfolded = False
        self.update(self._content())

    @property
    def code_blocks(self) -> list[str]:
        from .markdown import code_blocks

        return code_blocks(self.written)

    def set_version(self, position: int, count: int, hint: str = "") -> None:
        """Shows that this is one of several; hint: the keys that show the others."""
        self._version = version(position, count, hint)
        self.update(self._content())

    def set_waiting(self, hint: str) -> None:
        """Shows that it is not answered yet, and why; "" once it is."""
        self._waits = hint
        self.update(self._content())

    def toggle(self) -> None:
        """Unfolds or folds a long message."""
        if self._head(FOLDED_SHOWN, FOLDED_LINES) != self.written:
            self._unfolded = not self._unfolded
            self.update(self._content())

    def on_click(self, event: events.Click) -> None:
        if not self.screen.get_selected_text():
            self.toggle()

    def _content(self) -> Content:
        head = (
            self._head(MAX_SHOWN, MAX_SHOWN)
            if self._unfolded
            else self._head(FOLDED_SHOWN, FOLDED_LINES)
        )
        notes = [f"+ {name}" for name in self.files]
        if len(head) < len(self.written):
            notes.insert(0, f"… {size_in_words(len(self.written.encode()))} in all")
        notes += [note for note in (self._version, self._waits) if note]
        return Content.assemble(
            shown(head), *((f"\n{shown(note)}", "$text-muted italic") for note in notes)
        )

    def _head(self, characters: int, lines: int) -> str:
        """The beginning of the message, cut at a line's end where only lines are too many."""
        head = self.written[:characters]
        parts = head.split("\n", lines)
        return "\n".join(parts[:lines]) if len(parts) > lines else head
