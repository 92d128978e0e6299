"""A screen that asks something over the chat, and is answered once."""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen, ScreenResultType

# Classes of a screen by its columns and rows, for what has to do with less room.
WIDTHS = [(0, "-narrow"), (50, "-broad")]
HEIGHTS = [(0, "-low"), (8, "-middle"), (16, "-high")]


class Dialog(ModalScreen[ScreenResultType]):
    """Keys of one burst may answer twice; the second would take the screen below away."""

    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        if self.is_current:
            return super().dismiss(result)
        return AwaitComplete()

    def action_leave(self) -> None:
        """What Esc does, and Ctrl+C where nothing is selected."""
        self.dismiss(None)
