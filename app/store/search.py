"""Search over all messages: those that hold every word of the question, in any case.

Where SQLite has FTS5 with trigrams, an index finds the candidates; words of one or two letters, and
a SQLite without it, mean reading everything. Either way the same messages are found. The index is
filled when something is searched for, so that writing a message costs nothing for it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

from .values import Hit

TRIGRAM = 3
BATCH = 200
BEFORE, SNIPPET = 30, 120


def catch_up(db: sqlite3.Connection) -> int | None:
    """Within a transaction: indexes some messages that are final and not yet indexed; how many, or
    None if there can be no index.

    Some, because other windows wait meanwhile: an index of 1 MB takes 0.1 s.
    """
    try:
        db.execute(
            "CREATE VIRTUAL TABLE IF NOT EXISTS words"
            " USING fts5(content, content='', tokenize='trigram')"
        )
        added = db.execute(
            "SELECT id, content FROM message"
            " WHERE key IS NOT NULL AND id NOT IN (SELECT id FROM words_docsize) LIMIT ?",
            (BATCH,),
        ).fetchall()
        db.executemany("INSERT INTO words(rowid, content) VALUES (?, ?)", added)
    except sqlite3.DatabaseError as error:
        _give_up(db, error)
        return None
    return len(added)


def is_behind(db: sqlite3.Connection) -> bool:
    """Whether `catch_up` has something to do. Raises sqlite3.DatabaseError without an index."""
    found = db.execute(
        "SELECT EXISTS (SELECT 1 FROM message"
        " WHERE key IS NOT NULL AND id NOT IN (SELECT id FROM words_docsize))"
    )
    return bool(found.fetchone()[0])


def forget(db: sqlite3.Connection, conversation: int) -> None:
    """Within a transaction: throws the index away if it has something of a conversation, before
    that is deleted; the next search makes it anew.

    FTS5 only notes in the index what is to be gone, and keeps it until it happens to be rewritten.
    """
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'words'").fetchone():
        return
    indexed = (
        "SELECT 1 FROM message WHERE conversation = ? AND id IN (SELECT id FROM words_docsize)"
    )
    try:
        if db.execute(indexed, (conversation,)).fetchone():
            db.execute("DROP TABLE words")
    except sqlite3.DatabaseError as error:
        _give_up(db, error)


def _give_up(db: sqlite3.Connection, error: sqlite3.DatabaseError) -> None:
    """Throws a damaged index away, which the next search makes anew; leaves one alone that this
    SQLite is too old for. Raises any other error."""
    code = error.sqlite_errorcode & 0xFF
    if code == sqlite3.SQLITE_CORRUPT:
        db.execute("DROP TABLE words")
    elif code != sqlite3.SQLITE_ERROR:
        raise error


def find(db: sqlite3.Connection, text: str, limit: int, *, indexed: bool) -> list[Hit]:
    """The newest messages that hold every word of `text`."""
    words = [re.compile(re.escape(word), re.IGNORECASE) for word in text.split()]
    if not words:
        return []
    hits: list[Hit] = []
    for conversation, title, message, role, content, created in _candidates(db, text, indexed):
        found = [word.search(content) for word in words]
        if found[0] is not None and all(found):
            snippet, match = snippet_of(content, *found[0].span())
            hits.append(Hit(conversation, title, message, role, snippet, match, created))
            if len(hits) == limit:
                break
    return hits


def _candidates(
    db: sqlite3.Connection, text: str, indexed: bool
) -> Iterator[tuple[int, str, int, str, str, float]]:
    long = [word.replace('"', '""') for word in text.replace("\0", " ").split()]
    query = " ".join(f'"{word}"' for word in long if len(word) >= TRIGRAM)
    columns = (
        "SELECT c.id, c.title, m.id, m.role, m.content, m.created"
        " FROM message m JOIN conversation c ON c.id = m.conversation"
    )
    if indexed and query:
        return db.execute(
            f"{columns} WHERE m.id IN (SELECT rowid FROM words WHERE words MATCH ?)"
            " ORDER BY m.id DESC",
            (query,),
        )
    return db.execute(f"{columns} WHERE m.key IS NOT NULL ORDER BY m.id DESC")


def snippet_of(content: str, start: int, end: int) -> tuple[str, tuple[int, int]]:
    """A line of `content` around start:end, and where in it that is."""
    first = max(0, start - BEFORE)
    last = max(end, first + SNIPPET)
    head = ("…" if first else "") + content[first:start]
    tail = content[end:last] + ("…" if last < len(content) else "")
    pieces = [re.sub(r"\s", " ", piece) for piece in (head, content[start:end], tail)]
    return "".join(pieces), (len(head), len(head) + end - start)
