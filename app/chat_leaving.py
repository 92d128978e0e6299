"""Ctrl+C, which copies, closes, stops, empties and leaves; and leaving."""

from __future__ import annotations

import time

from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, TextArea

from . import clipboard
from .chat_actions import ChatActions
from .chat_setup import Setup
from .keys import key_name, keys_of
from .widgets.composer import PLACEHOLDER
from .widgets.dialog import Dialog

# Longer than people need who mean it, and long enough to read what is said of it.
LEAVE_WITHIN_S = 2.0


class LeavingActions(ChatActions):
    """What ends something."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._last_interrupt = float("-inf")
        # The last message when it was told that not all is saved.
        self._warned_at: int | None = None

    async def action_interrupt(self) -> None:
        """Copies what is selected; else closes what is open over the chat, as Esc does; else stops
        the answer, or the loading; else empties the input; else leaves, at the second time."""
        last, self._last_interrupt = self._last_interrupt, float("-inf")
        over = isinstance(self.screen, ModalScreen)
        field = self.screen.focused if over else self.composer
        selected = self.screen.get_selected_text() or _selected_in(field)
        if selected:
            await clipboard.copy(self, selected)
            self.screen.clear_selection()
            _deselect_in(field)
        elif over:
            leave = "leave" if isinstance(self.screen, Dialog) else "escape"  # Textual's own
            await self.run_action(f"screen.{leave}")
        elif self.exchange is not None or self.is_loading:
            await self.action_stop()
        elif self.composer.text:
            if self.composer.empty():
                self.notify("Up brings it back.", timeout=2)
        elif time.monotonic() - last < LEAVE_WITHIN_S:
            await self.action_quit()
        else:
            self._last_interrupt = time.monotonic()
            self.composer.placeholder = f"Press {self._interrupts_by} again to leave"
            self.set_timer(LEAVE_WITHIN_S, self._stay)

    @property
    def _interrupts_by(self) -> str:
        return next(map(key_name, keys_of("interrupt", self.keys)), "it")

    def _stay(self) -> None:
        if time.monotonic() - self._last_interrupt >= LEAVE_WITHIN_S:
            self.composer.placeholder = PLACEHOLDER

    async def action_quit(self) -> None:
        """Leaves; where something could not be saved, at the second time."""
        unsaved, said = self.session.save(), self.session.current.tree.leaf
        if unsaved is not None and self._warned_at != said:
            self._warned_at = said
            told = f"{unsaved}. What was said is not saved: /export it elsewhere, or leave again."
            self.notify(told, severity="error", timeout=15, markup=False)
            return
        self.exit()


def _selected_in(field: Widget | None) -> str:
    return field.selected_text if isinstance(field, Input | TextArea) else ""


def _deselect_in(field: Widget | None) -> None:
    if isinstance(field, TextArea):
        field.move_cursor(field.cursor_location)
    elif isinstance(field, Input):
        field.cursor_position = field.cursor_position
