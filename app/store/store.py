"""The store: `specfit.db` in the user's data folder, for several windows at once.

Every change is one transaction. A user's turn and a finished answer are on the disk when the call
returns; the growth of an answer survives the death of the process, if not always that of the
machine. Raises StoreError, in a sentence, for whatever goes wrong with the file; where the file is
gone, replaced or damaged, a new one has been begun by then.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import platformdirs

from . import message_rows, search, unsent, writers
from .file import SHORT_PATIENCE_MS, StoreFile
from .values import (
    CUT,
    GROWING,
    Conversation,
    Gone,
    Hit,
    Message,
    Meta,
    StoreError,
    Unsent,
    meta_of,
    storable,
)

# Of a conversation `c`. UNION, as a damaged file may hold a circle.
SHOWN = """
(WITH RECURSIVE up(id, parent, role) AS (
    SELECT id, parent, role FROM message WHERE id = c.leaf
    UNION SELECT m.id, m.parent, m.role FROM message m JOIN up ON m.id = up.parent
) SELECT count(*) FROM up WHERE role != 'system') AS shown"""


def default_path() -> Path:
    return platformdirs.user_data_path("specfit") / "specfit.db"


class Store:
    """An open store; any thread may call it."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """clock: seconds since the epoch. Raises StoreError if the file cannot be opened."""
        self._file = StoreFile(path or default_path())
        self._clock = clock
        self._writer_name = writers.this_process()
        with suppress(StoreError):  # of a file that can only be read
            self.recover()

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def notices(self) -> list[str]:
        """What the user should be told of the file, in sentences, oldest first."""
        return self._file.notices

    @property
    def generation(self) -> int:
        """Rises when another file takes this one's place: ids from before mean nothing then, and
        the last notice says why."""
        return self._file.generation

    @property
    def read_only(self) -> bool:
        """Whether it can be read and no more; anything else raises ReadOnly."""
        return self._file.read_only

    def hurried(self, seconds: float) -> AbstractContextManager[None]:
        """Within it nobody is waited for any longer than so long, all together: raises Locked."""
        return self._file.hurried(seconds)

    def close(self) -> None:
        self._file.close()

    # Conversations

    def conversations(self, limit: int = 100, offset: int = 0) -> list[Conversation]:
        """Those that have messages, newest first."""
        return self._conversations(
            "WHERE count > 0 ORDER BY updated DESC, id DESC LIMIT ? OFFSET ?", (limit, offset)
        )

    def conversation(self, conversation: int) -> Conversation:
        """Raises Gone if it was deleted."""
        found = self._conversations("WHERE id = ?", (conversation,))
        if not found:
            raise Gone("the conversation has been deleted")
        return found[0]

    def find(self, origin: str) -> int | None:
        """The conversation of that origin."""
        found = self._conversations("WHERE origin = ?", (origin,))
        return found[0].id if found else None

    def new_conversation(
        self, title: str, meta: Meta | None = None, origin: str | None = None
    ) -> int:
        """Begins a conversation, or finds the one of that origin."""
        now, origin = self._clock(), origin or uuid.uuid4().hex
        with self._file.writing() as db:
            db.execute(
                "INSERT INTO conversation (origin, title, created, updated, meta)"
                " VALUES (?, ?, ?, ?, ?) ON CONFLICT (origin) DO NOTHING",
                (origin, storable(title), now, now, json.dumps(meta or {})),
            )
            found = db.execute("SELECT id FROM conversation WHERE origin = ?", (origin,))
            return int(found.fetchone()[0])

    def rename(self, conversation: int, title: str) -> None:
        self._change(conversation, "title = ?", storable(title))

    def keep_meta(self, conversation: int, meta: Meta) -> None:
        """Replaces what JSON holds about the conversation."""
        self._change(conversation, "meta = ?", json.dumps(meta))

    def set_leaf(self, conversation: int, leaf: int | None) -> None:
        self._change(conversation, "leaf = ?", leaf)

    def delete(self, conversation: int, *, only_silent: bool = False) -> None:
        """Deletes a conversation with all its branches, from the disk as well.

        only_silent: if nothing was said in it, by no window.
        """
        with self._file.writing() as db:
            said = "SELECT 1 FROM message WHERE conversation = ? AND role != 'system'"
            if only_silent and db.execute(said, (conversation,)).fetchone():
                return
            search.forget(db, conversation)
            unsent.forget(db, conversation)
            db.execute("DELETE FROM conversation WHERE id = ?", (conversation,))
        self._file.fold()

    # Messages

    def messages(self, conversation: int) -> list[Message]:
        """All branches, parents before their children."""
        with self._file.reading() as db:
            rows = db.execute(
                "SELECT id, parent, role, content, status, created, key, meta FROM message"
                " WHERE conversation = ? ORDER BY id",
                (conversation,),
            ).fetchall()
        return [
            Message(id_, parent, role, content, status, created, key, meta_of(meta))
            for id_, parent, role, content, status, created, key, meta in rows
        ]

    def following(self, conversation: int, message: int | None) -> set[int]:
        """The rows of all finished messages that follow one, of any window."""
        with self._file.reading() as db:
            rows = db.execute(
                "SELECT id FROM message WHERE conversation = ? AND parent IS ? AND key IS NOT NULL",
                (conversation, message),
            )
            return {row for (row,) in rows}

    def add(self, conversation: int, message: Message) -> int:
        """Adds a message below the row `message.parent`, as the new leaf, and returns its row."""
        rows = {message.parent: message.parent} if message.parent is not None else {}
        return self.add_all(conversation, [message], rows, leaf=message.id)[message.id]

    def add_all(
        self,
        conversation: int,
        messages: Sequence[Message],
        rows: Mapping[int, int] | None = None,
        *,
        leaf: int | None = None,
    ) -> dict[int, int]:
        """Adds messages, parents first, and returns `rows` with theirs.

        Ids, parents and the leaf are the caller's own; `rows` says which rows they are. What is
        there already, with the same history, is not added again. Raises Gone.
        """
        rows = dict(rows or {})
        durable = any(message.status != GROWING for message in messages)
        with self._file.writing(durable=durable) as db:
            message_rows.expect(db, conversation)
            added = 0
            for message in messages:
                parent = None if message.parent is None else rows[message.parent]
                row, is_new = message_rows.insert(
                    db, conversation, parent, message, self._writer_name, self._clock()
                )
                rows[message.id] = row
                added += is_new
            if added:
                message_rows.touch(db, conversation, self._clock())
            if leaf is not None:
                db.execute(
                    "UPDATE conversation SET leaf = ? WHERE id = ?", (rows[leaf], conversation)
                )
        return rows

    def grow(self, message: int, content: str) -> None:
        """Writes what a growing answer has come to. Raises Gone if it does not grow any more."""
        with self._file.writing(durable=False, patience_ms=SHORT_PATIENCE_MS) as db:
            changed = db.execute(
                "UPDATE message SET content = ? WHERE id = ? AND key IS NULL",
                (storable(content), message),
            )
            if not changed.rowcount:
                raise Gone("the answer has been deleted")

    def finish(self, message: int, content: str, status: str, meta: Meta | None = None) -> int:
        """Ends a growing answer and returns its row: that of an equal answer, if there is one."""
        with self._file.writing() as db:
            told = json.dumps(meta or {})
            return message_rows.finish(db, message, storable(content), status, told, self._clock())

    def discard(self, message: int) -> None:
        """Deletes a message that nothing follows; any other stays."""
        with self._file.writing() as db:
            db.execute(
                "DELETE FROM message WHERE id = ?1"
                " AND NOT EXISTS (SELECT 1 FROM message WHERE parent = ?1)",
                (message,),
            )

    def recover(self) -> None:
        """Marks answers as cut that a dead process left growing."""
        with self._file.reading() as db:
            left = [
                row
                for row, writer in db.execute("SELECT id, writer FROM message WHERE key IS NULL")
                if not writers.is_alive(writer)
            ]
        if left:
            with self._file.writing() as db:
                for message in left:
                    found = db.execute(
                        "SELECT content, meta FROM message WHERE id = ? AND key IS NULL",
                        (message,),
                    ).fetchone()
                    if found is not None:
                        message_rows.finish(db, message, found[0], CUT, found[1], self._clock())

    # What is not sent

    def keep_unsent(
        self, row: int | None, conversation: int | None, text: Unsent, *, held: bool = True
    ) -> int | None:
        """Writes what this window has in the input, or had if not `held`; its row from now on."""
        writer = self._writer_name if held else None
        with self._file.writing(durable=False) as db:
            return unsent.keep(db, row, conversation, text, writer, self._clock())

    def take_unsent(self, conversation: int | None) -> tuple[int, Unsent] | None:
        """The newest that no living window has, and its row: it is this window's now."""
        with self._file.reading() as db:
            if not unsent.waiting(db, conversation):
                return None
        with self._file.writing(durable=False) as db:
            return unsent.take(db, conversation, self._writer_name)

    def unsent_elsewhere(self) -> list[str]:
        """Titles of conversations where a window that died left something; each is told once."""
        with self._file.reading() as db:
            if not unsent.of_the_dead(db):
                return []
        with self._file.writing(durable=False) as db:
            return unsent.tell(db)

    def search(self, text: str, limit: int = 50) -> list[Hit]:
        """The newest messages that hold every word of `text`."""
        indexed = self._index()
        with self._file.reading() as db:
            try:
                return search.find(db, text, limit, indexed=indexed)
            except sqlite3.DatabaseError:
                if not indexed:
                    raise
                return search.find(db, text, limit, indexed=False)

    def _change(self, conversation: int, what: str, value: object) -> None:
        with self._file.writing(durable=False) as db:
            message_rows.expect(db, conversation)
            db.execute(f"UPDATE conversation SET {what} WHERE id = ?", (value, conversation))

    def _conversations(self, which: str, values: tuple[object, ...]) -> list[Conversation]:
        with self._file.reading() as db:
            rows = db.execute(
                "SELECT * FROM (SELECT id, origin, title, leaf, created, updated,"
                f" (SELECT count(*) FROM message WHERE conversation = c.id) AS count, meta, {SHOWN}"
                f" FROM conversation c) {which}",
                values,
            ).fetchall()
        return [
            Conversation(id_, origin, title, leaf, created, updated, count, meta_of(meta), shown)
            for id_, origin, title, leaf, created, updated, count, meta, shown in rows
        ]

    def _index(self) -> bool:
        """Whether there is an index of all messages, which is made now if it can be."""
        with self._file.reading() as db, suppress(sqlite3.DatabaseError):
            if not search.is_behind(db):
                return True
        try:
            while True:
                with self._file.writing(durable=False) as db:
                    added = search.catch_up(db)
                if not added:
                    return added is not None
        except StoreError:
            return False
