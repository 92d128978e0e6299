"""Keys that take effect in the order in which they are pressed.

Textual runs a key that the app has taken for itself (`priority`) as soon as it arrives, while a
letter waits in the queue of the widget with the focus: in one burst of input F1 came before the
letters that were typed before it. Editing keys, which come up to the app to be looked up, came
after the letters behind them. What is typed before there is anything on the screen found no widget.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from textual import events
from textual.app import App
from textual.message_pump import MessagePump
from textual.widget import Widget

# In the first round the key itself comes up to the app, in the second what it had widgets post.
ROUNDS = 2


class KeysInOrder(App[None]):
    """Gives out one key, or paste, at a time; letters for one field together.

    A marker goes behind it, from queue to queue up to the app, as keys and messages do. What comes
    meanwhile waits until the marker is back.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pressed: deque[events.Key | events.Paste] = deque()
        self._marked: MessagePump | None = None  # where the marker is
        self._field: Widget | None = None  # what all letters that are under way go to
        self._more = False  # letters behind the marker
        self._seen = False  # whether the app has been on the screen

    async def on_event(self, event: events.Event) -> None:
        if not isinstance(event, events.Key | events.Paste) or event.is_forwarded:
            await super().on_event(event)
            if isinstance(event, events.Ready) and not self._seen:
                self._seen = True
                await self._give()
            return
        self._pressed.append(event)
        if not self._seen:
            return
        if self._marked is None or not self._marked.is_running:
            await self._give()
        elif len(self._pressed) == 1:
            await self._give_letters()

    async def _give(self) -> None:
        self._marked = None
        if self._pressed:
            event = self._pressed.popleft()
            self._field = self._field_of(event)
            await super().on_event(event)
            await self._give_letters()
            self._more = False
            self._mark(self.focused or self.screen, ROUNDS)

    async def _give_letters(self) -> None:
        """Those that go where all that are under way go."""
        while self._field and self._pressed and self._field_of(self._pressed[0]) is self._field:
            await super().on_event(self._pressed.popleft())
            self._more = True

    def _field_of(self, event: events.Key | events.Paste) -> Widget | None:
        """Where the key is a letter and no more."""
        field = self.focused
        if field is None or not isinstance(event, events.Key):
            return None
        return field if field.check_consume_key(event.key, event.character) else None

    def _mark(self, pump: MessagePump, rounds: int) -> None:
        self._marked = pump
        if not pump.call_later(self._passed, pump, rounds):  # it closes
            self._marked = self
            self.call_later(self._passed, self, rounds)

    async def _passed(self, pump: MessagePump, rounds: int) -> None:
        if pump is not self:
            self._mark(pump._parent or self, rounds)
        elif rounds > 1 or self._more:
            self._more, rounds = False, ROUNDS if self._more else rounds - 1
            self._mark(self.focused or self.screen, rounds)
        else:
            await self._give()
