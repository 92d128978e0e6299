"""The conversation: messages from top to bottom, following the newest until the reader looks up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.geometry import Size
from textual.message import Message as Event
from textual.widget import Widget

from .answer import Answer
from .note import Note, Unseen
from .user_message import UserMessage

Message = Answer | UserMessage
STILL_TO_COME = -1  # instead of a message's id
# Messages put on the screen when a conversation is opened, and each time the reader comes near the
# top: a Markdown message takes some 30 ms.
BATCH = 12
LAYOUT_TRY_S, LAYOUT_TRIES = 0.02, 50
# A message farther up is not looked for: it would take long, and the machine.
MOST_LOOKED_THROUGH = 300


class Conversation(VerticalScroll):
    """Scrolls along with new text; scrolling up lets go, scrolling to the end takes hold again."""

    # What is in it is never shorter than the view: following that would push it down.
    DEFAULT_CSS = """
    Conversation {
        height: 1fr;
        padding: 0 1;
        scrollbar-size-vertical: 1;
    }
    Conversation Vertical {
        height: auto;
    }
    Conversation > Vertical {
        min-height: 100%;
    }
    """

    @dataclass
    class Selected(Event):
        """Another message is selected, or none."""

        message: Message | None

    def __init__(self) -> None:
        super().__init__()
        self._head = Vertical()
        self._column = Vertical()
        self._older: list[Callable[[], Widget]] = []  # not on the screen yet, oldest first
        self._mounting = asyncio.Lock()
        # While older ones are mounted above: how many rows are below what is seen, which is kept.
        self._below = 0.0
        self._first_seen: int | None = None
        self.selected: Message | None = None

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._head
            yield self._column

    def on_mount(self) -> None:
        self.can_focus = False  # the keyboard stays with the composer; the app scrolls for it
        self.anchor()

    @property
    def messages(self) -> list[Message]:
        """The messages on the screen, notes left out; older ones may be there when looked for."""
        return [child for child in self._column.children if isinstance(child, Message)]

    async def set_head(self, notes: Sequence[Note]) -> None:
        """Shows these above all messages, in the place of those before."""
        async with self.batch():
            await self._head.remove_children()
            await self._head.mount_all(notes)

    async def clear(self) -> None:
        """Takes all messages away."""
        self.deselect()
        self._older, self._first_seen = [], None
        await self._column.remove_children()

    async def add(self, message: Widget) -> None:
        """Adds a message at the end and shows it."""
        await self._column.mount(message)
        self.anchor()

    async def mark_unseen(self, first: int | None) -> None:
        """Marks that the model sees message `first` and what is below, and nothing above; None: it
        sees all. STILL_TO_COME: nothing that is here."""
        self._first_seen = first
        await self._mark()

    async def _mark(self) -> None:
        """Puts the mark where it belongs; nowhere, while that is not on the screen."""
        first, children = self._first_seen, list(self._column.children)
        marks = [child for child in children if isinstance(child, Unseen)]
        place = next((one for one in self.messages if one.message_id == first), None)
        if marks and place is not None and children[children.index(marks[0]) + 1 :][:1] == [place]:
            return
        for mark in marks:
            await mark.remove()
        if first is not None and (place is not None or first == STILL_TO_COME):
            await self._column.mount(Unseen(), before=place)

    async def show(self, makers: Sequence[Callable[[], Widget]]) -> None:
        """Shows other messages: the newest now, each older one when the reader comes near it.

        makers: what makes the widget of each message, oldest first.
        """
        await self.clear()
        self._older = list(makers[:-BATCH])
        await self._column.mount_all([make() for make in makers[-BATCH:]])
        await self._mark()
        self.anchor()
        self.call_after_refresh(self._fill)

    async def cut(self, message: Widget) -> None:
        """Takes `message` and all behind it away."""
        self.deselect()
        children = list(self._column.children)
        for child in children[children.index(message) :]:
            await child.remove()

    async def select(self, step: int) -> None:
        """Selects the message above (-1) or below (1); below the last one, none."""
        messages = self.messages
        at = messages.index(self.selected) if self.selected in messages else len(messages)
        if at + step < 0 and self._older:
            await self._mount_older()
            return await self.select(step)
        at = max(at + step, 0)
        self.deselect()
        if at < len(messages):
            self._select(messages[at])
            self.scroll_to_widget(messages[at], animate=False)
        else:
            self.anchor()
        return None

    async def go_to(self, message_id: int) -> None:
        """Selects a message and shows it, if it is not too far up."""
        for _ in range(MOST_LOOKED_THROUGH // BATCH):
            found = [one for one in self.messages if one.message_id == message_id]
            if found or not self._older:
                break
            await self._mount_older()
        for one in found:
            self.deselect()
            self._select(one)
            self.release_anchor()
            self.scroll_to_widget(one, animate=False, top=True)

    def deselect(self) -> None:
        """Selects none."""
        if self.selected is not None:
            self.selected.remove_class("-selected")
            self.selected = None
            self.post_message(self.Selected(None))

    def on_click(self, event: events.Click) -> None:
        """Selects what was clicked, unless the mouse selected text."""
        if event.widget is None or self.screen.get_selected_text():
            return
        self.deselect()
        for widget in event.widget.ancestors_with_self:
            if isinstance(widget, Message):
                self._select(widget)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._mounting.locked():
            self._below = self.max_scroll_y - new_value
        if new_value < old_value:
            self._fill()

    def watch_virtual_size(self, old_value: Size, new_value: Size) -> None:
        """Keeps what is seen in its place; at the very end the anchor does it."""
        if self._mounting.locked() and self._below > 0:
            self.scroll_to(y=self.max_scroll_y - self._below, animate=False, immediate=True)

    def _select(self, message: Message) -> None:
        self.selected = message
        message.add_class("-selected")
        self.post_message(self.Selected(message))

    def _fill(self) -> None:
        """Has older messages mounted if the reader is less than a page below the oldest."""
        near = self.scroll_y < self.size.height
        if self._older and near and not self._mounting.locked():
            self.run_worker(self._mount_older())

    async def _mount_older(self) -> None:
        """Mounts a batch of older messages above, and waits until they are laid out."""
        async with self._mounting:
            makers, self._older = self._older[-BATCH:], self._older[:-BATCH]
            self._below = self.max_scroll_y - self.scroll_y
            batch = [make() for make in makers]
            await self._column.mount_all(batch, before=0)
            await self._mark()
            for _ in range(LAYOUT_TRIES):
                await asyncio.sleep(LAYOUT_TRY_S)
                if all(widget.size for widget in batch):
                    break
        self._fill()
