"""The branch that the session looks at, on the screen."""

from __future__ import annotations

from functools import partial

from .chat_view import ViewActions
from .keys import key_name, keys_of
from .store import Message
from .widgets.answer import Answer
from .widgets.user_message import UserMessage


class ShownConversation(ViewActions):
    """Messages as widgets, and which of several versions each is."""

    async def show_conversation(self) -> None:
        """Shows the branch that the session looks at."""
        await self.conversation.show([partial(self._widget, one) for one in self.session.turns])
        if self.drafted_shown:
            for widget in self.conversation.query(Answer):
                await widget.show_drafted(True)
        self.measure_context()

    def _widget(self, message: Message) -> UserMessage | Answer:
        widget: UserMessage | Answer
        if message.role == "user":
            widget = UserMessage(message.content, message_id=message.id)
        else:
            thought = message.meta.get("thought_s")
            widget = Answer(
                message.content,
                message.status,
                thought_s=thought if isinstance(thought, int | float) else None,
                message_id=message.id,
            )
            spans = message.meta.get("drafted", ())
            widget.set_spans([(int(a), int(b)) for a, b in spans])
        self.show_version(widget)
        return widget

    def show_version(self, widget: UserMessage | Answer) -> None:
        """Says on a message which of several versions it is."""
        if widget.message_id is None:
            return
        position, count = self.session.branch(widget.message_id)
        if count > 1:
            both = (keys_of(f"switch_branch({step})", self.keys) for step in (-1, 1))
            hint = " ".join(key_name(keys[0]) for keys in both if keys)
            widget.set_version(position, count, hint)
