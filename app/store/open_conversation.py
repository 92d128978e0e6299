"""A conversation that is open: its tree in memory, and how much of it the store has.

The tree is what the chat works with. Saving brings the store up to it, and may fail and be tried
again at any time: nothing is forgotten in between.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .store import Store
from .tree import Tree
from .values import GROWING, Gone, Meta


class OpenConversation:
    """title, meta: as they should be in the store. row: its conversation there."""

    def __init__(self, tree: Tree, title: str = "", meta: Meta | None = None) -> None:
        self.tree = tree
        self.title = title
        self.meta: Mapping[str, Any] = dict(meta or {})
        self.row: int | None = None
        self.origin = uuid.uuid4().hex
        self._generation = 0  # of the store, that the rows are of
        self._rows: dict[int, int] = {}
        self._growing: set[int] = set()  # in the store
        self._unsaved: set[int] = set()
        self._discarded: list[int] = []  # rows, children before their parents
        self._saved_leaf: int | None = None
        self._saved_as: tuple[str, Meta] = (self.title, self.meta)

    @classmethod
    def load(cls, store: Store, conversation: int, message: int | None = None) -> OpenConversation:
        """One of the store, with the branch that `message` is in. Raises StoreError.

        An answer that another window is still writing is left out. Where it is only now found that
        the file is damaged, what was brought over of the conversation is opened.
        """
        generation, kept = store.generation, store.conversation(conversation)
        try:
            messages = store.messages(conversation)
        except Gone:
            rescued = store.find(kept.origin)
            if rescued is None or store.generation == generation:
                raise
            return cls.load(store, rescued)
        messages = [one for one in messages if one.status != GROWING]
        tree = Tree(messages)
        wanted = kept.leaf if message is None else message
        if wanted not in tree.messages:
            wanted = max(tree.messages, default=None)
        if wanted is not None:
            tree.look_at(wanted if message is None else tree.end_of(wanted))
        found = cls(tree, kept.title, kept.meta)
        found.row, found.origin, found._generation = kept.id, kept.origin, generation
        found._rows = {one.id: one.id for one in messages}
        found._saved_leaf = kept.leaf
        return found

    @property
    def is_saved(self) -> bool:
        """Whether the store has all of it. Without a word said, there is nothing to keep."""
        if self.row is None and self._is_silent():
            return True
        return not (
            self._unsaved
            or self._discarded
            or self._saved_leaf != self._leaf_row()
            or self._saved_as != (self.title, self.meta)
        )

    def is_of_another_file(self, store: Store) -> bool:
        """Whether the store's file was replaced since: all of it is to be saved then."""
        return self.row is not None and self._generation != store.generation

    def row_of(self, message: int) -> int | None:
        """The message's row in the store, if it is there."""
        return self._rows.get(message)

    def message_of(self, row: int | None) -> int | None:
        """The message of that row."""
        return next((message for message, its in self._rows.items() if its == row), None)

    def changed(self, message: int) -> None:
        """Notes that a message is to be saved."""
        self._unsaved.add(message)

    def removed(self, message: int) -> None:
        """Notes that a message was taken out of the tree."""
        self._unsaved.discard(message)
        self._growing.discard(message)
        if (row := self._rows.pop(message, None)) is not None:
            self._discarded.append(row)

    def meet(self, store: Store, parent: int | None) -> bool:
        """Takes in what other windows have said, if any of it follows `parent`; whether it does.
        Answers that grow are left to them. Raises StoreError."""
        above = None if parent is None else self._rows.get(parent)
        is_there = self.row is not None and (parent is None or above is not None)
        if self.row is None or not is_there or self.is_of_another_file(store):
            return False
        known = {*self._rows.values(), *self._discarded}
        if store.following(self.row, above) <= known:
            return False
        ours: dict[int | None, int | None] = {row: one for one, row in self._rows.items()}
        ours[None] = None
        for one in store.messages(self.row):
            if one.id not in known and one.status != GROWING and one.parent in ours:
                ours[one.id] = self.tree.add(replace(one, parent=ours[one.parent])).id
        self._rows = {one: row for row, one in ours.items() if row is not None and one is not None}
        return True

    def save(self, store: Store) -> None:
        """Brings the store up to the tree. Raises StoreError; what was not saved remains noted."""
        if self.is_of_another_file(store):
            self.forget_rows()
        self._generation = store.generation
        while self._discarded:
            store.discard(self._discarded[0])
            self._discarded.pop(0)
        if self._is_silent():
            if self.row is not None:
                store.delete(self.row, only_silent=True)
            self.forget_rows()
            return
        if self.row is None:
            self.row = store.new_conversation(self.title, self.meta, self.origin)
            self._saved_as = (self.title, self.meta)
        self._save_messages(store, self.row)
        if self._saved_leaf != self._leaf_row():
            store.set_leaf(self.row, self._leaf_row())
            self._saved_leaf = self._leaf_row()
        if self._saved_as != (self.title, self.meta):
            store.rename(self.row, self.title)
            store.keep_meta(self.row, self.meta)
            self._saved_as = (self.title, self.meta)

    def forget_rows(self) -> None:
        """The store does not have it any more, or not as it was: all of it is to be saved."""
        self.row = None
        self._rows.clear()
        self._growing.clear()
        self._discarded.clear()
        self._unsaved = set(self.tree.messages)
        self._saved_leaf = None

    def _save_messages(self, store: Store, row: int) -> None:
        for message in sorted(self._unsaved & self._growing):
            self._save_growth(store, message)
            self._unsaved.discard(message)
        if self._unsaved:
            new = [self.tree.messages[message] for message in sorted(self._unsaved)]
            leaf = self.tree.leaf if self.tree.leaf in self._unsaved else None
            self._rows = store.add_all(row, new, self._rows, leaf=leaf)
            self._growing |= {message.id for message in new if message.status == GROWING}
            self._unsaved.clear()
            if leaf is not None:
                self._saved_leaf = self._rows[leaf]

    def _save_growth(self, store: Store, message: int) -> None:
        now, row = self.tree.messages[message], self._rows[message]
        if now.status == GROWING:
            store.grow(row, now.content)
            return
        kept = store.finish(row, now.content, now.status, now.meta)
        if self._saved_leaf == row:  # as the store does
            self._saved_leaf = kept
        self._rows[message] = kept
        self._growing.discard(message)

    def _is_silent(self) -> bool:
        return all(message.role == "system" for message in self.tree.messages.values())

    def _leaf_row(self) -> int | None:
        return None if self.tree.leaf is None else self._rows.get(self.tree.leaf)
