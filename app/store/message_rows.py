"""The rows of messages: a history is there once, whoever writes it. All within a transaction.

Where something is missing that was there, functions raise Gone.
"""

from __future__ import annotations

import json
import sqlite3

from .values import COMPLETE, GROWING, Gone, Message, key_of, storable


def insert(
    db: sqlite3.Connection,
    conversation: int,
    parent: int | None,
    message: Message,
    writer: str,
    now: float,
) -> tuple[int, bool]:
    """The row of the message, and whether it is new. writer: whose it is while it grows."""
    content, meta = storable(message.content), json.dumps(message.meta)
    key, above = None, _key(db, conversation, parent)
    if message.status != GROWING:
        key = key_of(above, message.role, content)
        twin = _twin(db, conversation, key, message.status, meta)
        if twin is not None:
            return twin, False
    row = db.execute(
        "INSERT INTO message"
        " (conversation, parent, role, status, key, writer, created, meta, content)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            conversation,
            parent,
            message.role,
            message.status,
            key,
            writer if key is None else None,
            message.created or now,
            meta,
            content,
        ),
    ).lastrowid
    assert row is not None
    return row, True


def finish(
    db: sqlite3.Connection, message: int, content: str, status: str, meta: str, now: float
) -> int:
    """Ends the growing answer in row `message`; its row, or that of an equal answer."""
    found = db.execute(
        "SELECT conversation, parent, role FROM message WHERE id = ? AND key IS NULL",
        (message,),
    ).fetchone()
    if found is None:
        raise Gone("the answer has been deleted")
    conversation, parent, role = found
    key = key_of(_key(db, conversation, parent), role, content)
    twin = _twin(db, conversation, key, status, meta)
    if twin is None:
        db.execute(
            "UPDATE message SET content = ?, status = ?, key = ?, meta = ?, writer = NULL"
            " WHERE id = ?",
            (content, status, key, meta, message),
        )
    else:
        db.execute("UPDATE conversation SET leaf = ? WHERE leaf = ?", (twin, message))
        db.execute("DELETE FROM message WHERE id = ?", (message,))
    touch(db, conversation, now)
    return message if twin is None else twin


def expect(db: sqlite3.Connection, conversation: int) -> None:
    """Raises Gone if there is no such conversation."""
    if not db.execute("SELECT 1 FROM conversation WHERE id = ?", (conversation,)).fetchone():
        raise Gone("the conversation has been deleted")


def touch(db: sqlite3.Connection, conversation: int, now: float) -> None:
    """Notes when something was last said in it."""
    db.execute("UPDATE conversation SET updated = ? WHERE id = ?", (now, conversation))


def _twin(
    db: sqlite3.Connection, conversation: int, key: str, status: str, meta: str
) -> int | None:
    """The row of that key. It is complete once it has been completed at any time."""
    found = db.execute(
        "SELECT id, status FROM message WHERE conversation = ? AND key = ?",
        (conversation, key),
    ).fetchone()
    if found is None:
        return None
    if status == COMPLETE != found[1]:
        db.execute("UPDATE message SET status = ?, meta = ? WHERE id = ?", (status, meta, found[0]))
    return int(found[0])


def _key(db: sqlite3.Connection, conversation: int, message: int | None) -> str | None:
    if message is None:
        return None
    found = db.execute(
        "SELECT key FROM message WHERE id = ? AND conversation = ? AND key IS NOT NULL",
        (message, conversation),
    ).fetchone()
    if found is None:
        raise Gone("the message to follow has been deleted")
    return str(found[0])
