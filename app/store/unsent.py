"""The rows of texts that were written and not sent: each is one window's, or waits for one."""

from __future__ import annotations

import json
import sqlite3

from . import writers
from .values import Unsent, meta_of, storable


def keep(
    db: sqlite3.Connection,
    row: int | None,
    conversation: int | None,
    unsent: Unsent,
    writer: str | None,
    now: float,
) -> int | None:
    """Writes `unsent` to `row`, or a new one, and returns that; None if there is nothing to keep.

    A conversation or message that was deleted is left out.
    """
    if not unsent:
        db.execute("DELETE FROM unsent WHERE id = ?", (row,))
        return None
    values = (
        conversation,
        unsent.message,
        now,
        writer,
        *map(storable, (unsent.edited, unsent.text)),
        json.dumps(dict(unsent.prompts)),
    )
    place = "(SELECT id FROM conversation WHERE id = ?), (SELECT id FROM message WHERE id = ?)"
    kept = f"{place}, ?, ?, ?, ?, ?"
    columns = "conversation, message, written, writer, edited, text, prompts"
    changed = db.execute(
        f"UPDATE unsent SET ({columns}) = (SELECT {kept}) WHERE id = ?", (*values, row)
    )
    if changed.rowcount:
        return row
    return db.execute(f"INSERT INTO unsent ({columns}) SELECT {kept}", values).lastrowid


def waiting(db: sqlite3.Connection, conversation: int | None) -> list[int]:
    """Rows of the conversation that no living window has, newest first."""
    rows = db.execute(
        "SELECT id, writer FROM unsent WHERE conversation IS ? ORDER BY written DESC, id DESC",
        (conversation,),
    ).fetchall()
    return [row for row, writer in rows if writer is None or not writers.is_alive(writer)]


def take(
    db: sqlite3.Connection, conversation: int | None, writer: str
) -> tuple[int, Unsent] | None:
    """Gives `writer` the newest that waits."""
    for row in waiting(db, conversation):
        db.execute("UPDATE unsent SET writer = ? WHERE id = ?", (writer, row))
        text, edited, message, prompts = db.execute(
            "SELECT text, edited, message, prompts FROM unsent WHERE id = ?", (row,)
        ).fetchone()
        return row, Unsent(text, edited, message, texts_of(prompts))
    return None


def of_the_dead(db: sqlite3.Connection) -> list[tuple[int, str]]:
    """Rows that windows which died left in conversations, and the titles of these."""
    rows = db.execute(
        "SELECT unsent.id, writer, title FROM unsent"
        " JOIN conversation ON conversation.id = unsent.conversation"
        " WHERE writer IS NOT NULL ORDER BY written DESC"
    ).fetchall()
    return [(row, title) for row, writer, title in rows if not writers.is_alive(writer)]


def tell(db: sqlite3.Connection) -> list[str]:
    """The titles of these, each once: they wait like any other from now on."""
    found = of_the_dead(db)
    for row, _ in found:
        db.execute("UPDATE unsent SET writer = NULL WHERE id = ?", (row,))
    return list(dict.fromkeys(title for _, title in found))


def forget(db: sqlite3.Connection, conversation: int) -> None:
    """Deletes what waits in a conversation, with which it goes."""
    for row in waiting(db, conversation):
        db.execute("DELETE FROM unsent WHERE id = ?", (row,))


def texts_of(prompts: str) -> dict[str, str]:
    """System prompts by name, as they were written in JSON."""
    return {name: text for name, text in meta_of(prompts).items() if isinstance(text, str)}
