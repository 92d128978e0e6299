"""A screen that asks something over the chat, and is answered once."""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen, ScreenResultType


class Dialog(ModalScreen[ScreenResultType]):
    """Keys of one burst may answer twice; the second would take the screen below away."""

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        if self.is_current:
            return super().dismiss(result)
        return AwaitComplete()
