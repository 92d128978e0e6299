"""A conversation in memory: a tree of messages, and the leaf of the branch that is looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .values import GROWING, Message, NotThere


class _Messages(dict[int, Message]):
    """By id. Whoever acts on one that is not there any more is told so: raises NotThere."""

    def __missing__(self, message: int) -> Message:
        raise NotThere("that message is not in this conversation any more")


class Tree:
    """messages: by id, parents before their children. leaf: where the branch ends; None is before
    the first message."""

    def __init__(self, messages: Iterable[Message] = (), leaf: int | None = None) -> None:
        self.messages: dict[int, Message] = _Messages()
        self._children: dict[int | None, list[int]] = {}
        # The child of each message that was last looked at.
        self._looked_at: dict[int | None, int] = {}
        for message in messages:
            self._insert(message)
        self._next_id = max(self.messages, default=0) + 1
        self.leaf: int | None = None
        self.look_at(leaf)

    def path(self) -> tuple[Message, ...]:
        """The branch that is looked at, root first."""
        return self.path_to(self.leaf)

    def path_to(self, message: int | None) -> tuple[Message, ...]:
        found = []
        while message is not None:
            found.append(self.messages[message])
            message = found[-1].parent
        return tuple(reversed(found))

    def siblings(self, message: int) -> list[int]:
        """All that follow the same message, `message` among them, oldest first."""
        return self._children[self.messages[message].parent]

    def has_children(self, message: int) -> bool:
        return bool(self._children.get(message))

    def end_of(self, message: int) -> int:
        """The leaf below `message` that was last looked at, or else is newest."""
        while children := self._children.get(message):
            message = self._looked_at.get(message, children[-1])
        return message

    def look_at(self, leaf: int | None) -> None:
        self.leaf = leaf
        for message in self.path():
            self._looked_at[message.parent] = message.id

    def twin(self, message: Message) -> Message | None:
        """The finished message with the same history and content, if there is another."""
        for id_ in self._children.get(message.parent, ()):
            other = self.messages[id_]
            if (
                other.id != message.id
                and other.status != GROWING
                and (other.role, other.content) == (message.role, message.content)
            ):
                return other
        return None

    def add(self, message: Message) -> Message:
        """Takes a message in under an id of its own; the same message again is the one there is."""
        message = replace(message, id=self._next_id)
        if message.status != GROWING and (twin := self.twin(message)) is not None:
            return twin
        self._next_id += 1
        self._insert(message)
        return message

    def put(self, message: Message) -> None:
        """Replaces the message of that id."""
        self.messages[message.id] = message

    def remove(self, message: int) -> None:
        """Takes out a message that nothing follows."""
        gone = self.messages.pop(message)
        self._children[gone.parent].remove(message)
        if self._looked_at.get(gone.parent) == message:
            del self._looked_at[gone.parent]

    def _insert(self, message: Message) -> None:
        self.messages[message.id] = message
        self._children.setdefault(message.parent, []).append(message.id)
