"""The tables, version by version. A file of any older version is brought to the newest."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from .values import StoreError

# In the file's header ("SpFt"), so that another program's file is not taken for ours.
APPLICATION = 0x53704674

# Ids are never used twice, not even in a file that replaces this one (hence the random starts): a
# window that still holds one must not reach into something newer.
# `content` comes last, so that the other columns are read without its overflow pages.
_VERSION_1 = (
    """CREATE TABLE conversation (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        origin TEXT NOT NULL UNIQUE,
        title TEXT NOT NULL,
        leaf INTEGER REFERENCES message(id) ON DELETE SET NULL,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        meta TEXT NOT NULL
    )""",
    """CREATE TABLE message (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        conversation INTEGER NOT NULL REFERENCES conversation(id) ON DELETE CASCADE,
        parent INTEGER REFERENCES message(id),
        role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
        status TEXT NOT NULL
            CHECK (status IN ('complete', 'stopped', 'length', 'cut', 'growing')),
        key TEXT CHECK ((key IS NULL) = (status = 'growing')),
        writer TEXT,
        created REAL NOT NULL,
        meta TEXT NOT NULL,
        content TEXT NOT NULL
    )""",
    """INSERT INTO sqlite_sequence (name, seq)
        VALUES ('conversation', abs(random()) >> 32), ('message', abs(random()) >> 24)""",
    "CREATE INDEX conversation_updated ON conversation(updated)",
    "CREATE INDEX conversation_leaf ON conversation(leaf)",
    "CREATE INDEX message_conversation ON message(conversation)",
    "CREATE INDEX message_parent ON message(parent)",
    "CREATE UNIQUE INDEX message_key ON message(conversation, key) WHERE key IS NOT NULL",
    "CREATE INDEX message_growing ON message(id) WHERE key IS NULL",
)

# Who has a text in the input is its `writer`; one without, or whose writer is dead, waits for
# whoever opens the conversation next. Without a conversation it is a new one's.
_VERSION_2 = (
    """CREATE TABLE unsent (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        conversation INTEGER REFERENCES conversation(id) ON DELETE SET NULL,
        message INTEGER REFERENCES message(id) ON DELETE SET NULL,
        written REAL NOT NULL,
        writer TEXT,
        edited TEXT NOT NULL,
        text TEXT NOT NULL
    )""",
    "INSERT INTO sqlite_sequence (name, seq) VALUES ('unsent', abs(random()) >> 32)",
)

# System prompts that are being written, by name, in JSON.
_VERSION_3 = ("ALTER TABLE unsent ADD COLUMN prompts TEXT NOT NULL DEFAULT '{}'",)

Statements = Sequence[str]
MIGRATIONS: tuple[Statements, ...] = (_VERSION_1, _VERSION_2, _VERSION_3)


def migrate(connection: sqlite3.Connection, migrations: Sequence[Statements] = MIGRATIONS) -> None:
    """Brings the file to the newest version, whole or not at all.

    Raises StoreError for a newer version, and for a file of another program.
    """
    if _version(connection, len(migrations)) == len(migrations):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        done = _version(connection, len(migrations))  # another window may have been faster
        for number, statements in enumerate(migrations[done:], done + 1):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check(connection: sqlite3.Connection) -> None:
    """Raises StoreError as `migrate` does, for a file that cannot be changed."""
    _version(connection, len(MIGRATIONS))


def _version(connection: sqlite3.Connection, known: int) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION and (version or application or tables):
        raise StoreError("is another program's database, not SpecFit's")
    if version > known:
        raise StoreError("was written by a newer SpecFit; update this one to open it")
    return version
