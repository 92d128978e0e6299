"""Messages sent before, to be looked through with Up and Down as in a shell."""

from __future__ import annotations

from collections.abc import Iterable


class History:
    """The messages, oldest first, and a place among them; behind the last is what is being written.

    `back` and `forward` return the message at the new place, or None where there is none.
    """

    def __init__(self, messages: Iterable[str] = ()) -> None:
        self._messages = list(messages)
        self._place = len(self._messages)
        self._draft = ""

    def add(self, message: str) -> None:
        """A message was sent; the same one twice in a row is kept once."""
        if self._messages[-1:] != [message]:
            self._messages.append(message)
        self._place = len(self._messages)

    def back(self, written: str) -> str | None:
        """written: what is in the input box, which comes back at the end."""
        if self._place == 0:
            return None
        if self._place == len(self._messages):
            self._draft = written
        self._place -= 1
        return self._messages[self._place]

    def forward(self) -> str | None:
        if self._place == len(self._messages):
            return None
        self._place += 1
        return self._messages[self._place] if self._place < len(self._messages) else self._draft
