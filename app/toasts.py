"""What the chat tells in passing, and what is too long for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import App

from .widgets.conversation import Conversation
from .widgets.note import Note

if TYPE_CHECKING:
    from textual.notifications import SeverityLevel

# Characters that two lines of a toast hold, however they are broken.
MOST_TOASTED = 105


class ShortToasts(App[None]):
    """Toasts of two lines at most."""

    conversation: Conversation

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """As Textual's; what two lines have no room for is said in the conversation, where it stays
        and hides nothing."""
        if len(message) > MOST_TOASTED:
            self.call_later(self.conversation.add, Note(message, error=severity == "error"))
            return
        super().notify(message, title=title, severity=severity, timeout=timeout, markup=markup)

    def complain(self, error: Exception) -> None:
        self.notify(str(error), severity="error", timeout=6, markup=False)
