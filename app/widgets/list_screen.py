"""What screens share that look things up by words: an input, a list below, and one line of help."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker

from ..entry import AppError
from ..plain_text import shown
from .dialog import Dialog
from .plain_input import PlainInput

# While someone types, nothing is looked up.
SETTLED_S = 0.1
PAGE = 8

Entry = TypeVar("Entry")
Result = TypeVar("Result")


class ListScreen(Dialog[Result | None], Generic[Entry, Result]):
    """The keyboard stays with the input; arrows move in the list, Enter takes, Esc leaves."""

    DEFAULT_CSS = """
    ListScreen {
        align: center middle;
    }
    ListScreen > Vertical {
        width: 100%;
        max-width: 100;
        height: 100%;
        max-height: 36;
        border: round $primary;
        border-title-color: $text-primary;
        background: $surface;
    }
    ListScreen.-low > Vertical {
        border: none;
    }
    ListScreen PlainInput {
        margin: 0 1;
    }
    ListScreen OptionList {
        height: 1fr;
        border: none;
        padding: 0 1;
        background: $surface;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    ListScreen .hint {
        height: 1;
        padding: 0 1;
        color: $text-muted;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", show=False),
        Binding("up", "move(-1)", "Up", show=False, priority=True),
        Binding("down", "move(1)", "Down", show=False, priority=True),
        Binding("pageup", f"move({-PAGE})", "Page up", show=False, priority=True),
        Binding("pagedown", f"move({PAGE})", "Page down", show=False, priority=True),
    ]
    HEADING = ""
    PLACEHOLDER = ""
    HINT = ""

    def __init__(self, words: str = "") -> None:
        """words: what stands in the input at first."""
        super().__init__()
        self._words = words
        self._input = PlainInput(placeholder=self.PLACEHOLDER, compact=True)
        self._list = OptionList(markup=False)
        self._hint = Static(self.HINT, classes="hint", markup=False)
        self.entries: list[Entry] = []

    def compose(self) -> ComposeResult:
        self._list.can_focus = False
        with Vertical() as box:
            box.border_title = self.HEADING
            yield self._input
            yield self._list
            yield self._hint

    def on_mount(self) -> None:
        self._input.focus()
        self._input.value = self._words
        self.look_up()

    @property
    def chosen(self) -> Entry | None:
        """The highlighted entry."""
        at = self._list.highlighted
        return self.entries[at] if at is not None and at < len(self.entries) else None

    @abstractmethod
    def find(self, words: str) -> Sequence[Entry]:
        """What the list is to hold; called in a thread. May raise AppError."""

    @abstractmethod
    def line(self, entry: Entry) -> Content:
        """How the list shows `entry`."""

    @abstractmethod
    def result(self, entry: Entry) -> Result:
        """What the screen returns when `entry` is taken."""

    def nothing(self, words: str) -> str:
        """The line that stands for an empty list."""
        return "Nothing is found." if words else ""

    def look_up(self) -> None:
        # Not a coroutine, which would never be awaited if the next look-up comes before it begins.
        _: Worker[None] = self.run_worker(self._look_up, exclusive=True, group="list")

    def say(self, text: str) -> None:
        """Shows `text` in the line of help."""
        self._hint.update(shown(text))

    async def _look_up(self) -> None:
        words = self._input.value.strip()
        await asyncio.sleep(SETTLED_S if self.entries else 0)
        self.say(self.HINT)
        try:
            found = list(await asyncio.to_thread(self.find, words))
        except AppError as error:
            self.say(str(error))
            found = []
        at = self._list.highlighted or 0
        self.entries = found
        self._list.clear_options()
        if found:
            self._list.add_options([Option(self.line(entry)) for entry in found])
            self._list.highlighted = min(at, len(found) - 1)
        else:
            self._list.add_option(Option(self.nothing(words), disabled=True))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._list.highlighted = None
        self.look_up()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_take()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_take()

    def action_take(self) -> None:
        if self.chosen is not None:
            self.dismiss(self.result(self.chosen))

    def action_move(self, rows: int) -> None:
        if self.entries:
            at = (self._list.highlighted or 0) + rows
            self._list.highlighted = min(max(at, 0), len(self.entries) - 1)
