"""What can still be read of a damaged file, brought into a new one.

A page that is lost takes its rows with it, or the ends of long texts; all other rows can be asked
for one by one. The indices know more: which messages there were, and what they followed.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from . import writers
from .pages import rows_of
from .schema import migrate
from .turns import title_of
from .values import CUT, GROWING, ROLES, STATUSES, Message, key_of, meta_of

# Ids are given one after the other: whatever lies between the first and the last is asked for.
MOST_ASKED = 300_000
MESSAGE_COLUMNS = 10
# Where a file's header says how many pages it has.
PAGE_COUNT = slice(28, 32)

Row = tuple[Any, ...]
Parents = Mapping[int, int | None]


def bring_over(damaged: Path, new: sqlite3.Connection) -> int:
    """Copies what can be read into `new`, a transaction for each conversation; how many there are.

    A message hangs below the deepest of those above it that could be read. Answers that a living
    process is writing are left to it. The damaged file is not changed.
    """
    done = 0
    with suppress(sqlite3.Error, OSError), _opened(damaged) as old:
        heads = _heads(old)
        stray = _stray(old, _known(old) - heads.keys())
        heads |= {id_: row[:-1] for id_, row in stray.items()}
        contents = {id_: row[-1] for id_, row in stray.items()}
        parents = _parents(old, heads)
        members: dict[int, list[int]] = defaultdict(list)
        for id_ in sorted(heads):
            members[heads[id_][0]].append(id_)
        rows = _conversations(old, members)
        now: dict[int, int] = {}
        for conversation, ids in members.items():
            found = (_message(old, id_, heads[id_], contents.get(id_)) for id_ in ids)
            if messages := [message for message in found if message]:
                now[conversation] = _copy(new, rows.get(conversation), messages, parents)
                done += 1
        _copy_unsent(old, new, now)
    return done


@contextmanager
def _opened(damaged: Path) -> Iterator[sqlite3.Connection]:
    """The file for reading. Where its first page is lost, a copy with one of ours, since that says
    where the tables are, and in all our files they are in the same place.

    Raises sqlite3.Error and OSError.
    """
    with TemporaryDirectory(dir=damaged.parent, prefix=f"{damaged.name}-") as folder:
        old = _reading(damaged)
        if not _rows(old, "SELECT 1 FROM sqlite_master WHERE name = 'message'"):
            old.close()
            copy = Path(folder) / "copy"
            shutil.copyfile(damaged, copy)
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{damaged}-wal", f"{copy}-wal")
            first = bytearray(_first_page(Path(folder) / "new"))
            pages = copy.stat().st_size // len(first)
            first[PAGE_COUNT] = pages.to_bytes(4, "big")
            with copy.open("r+b") as file:
                file.write(first)
            old = _reading(copy)
        try:
            yield old
        finally:
            old.close()


def _reading(path: Path) -> sqlite3.Connection:
    old = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    old.text_factory = lambda data: data.decode("utf-8", "replace")
    with suppress(sqlite3.Error):
        old.execute("PRAGMA writable_schema = ON")  # opens what has been cut off, too
    return old


def _first_page(path: Path) -> bytes:
    """Of a file without any conversations, which is made at `path`."""
    new = sqlite3.connect(path, isolation_level=None)
    new.execute("PRAGMA journal_mode = WAL")
    migrate(new)
    (size,) = new.execute("PRAGMA page_size").fetchone()
    new.close()
    return path.read_bytes()[:size]


def _heads(old: sqlite3.Connection) -> dict[int, Row]:
    """Of each message all but the content: conversation, parent, role, status, writer, created,
    meta."""
    heads = {}
    for id_ in _ids(old):
        row = _one(
            old,
            "SELECT conversation, parent, role, status, writer, created, meta"
            " FROM message WHERE id = ?",
            id_,
        )
        if row and _is_sound(id_, row):
            heads[id_] = row
    return heads


def _known(old: sqlite3.Connection) -> set[int]:
    """The messages that the indices know; those that were deleted are none of them."""
    known: set[int] = set()
    for by in ("conversation", "parent"):
        for order in ("ASC", "DESC"):
            way = f"SELECT id FROM message INDEXED BY message_{by} ORDER BY {by} {order}"
            known.update(id_ for (id_,) in _rows(old, way) if isinstance(id_, int))
    return known


def _stray(old: sqlite3.Connection, wanted: set[int]) -> dict[int, Row]:
    """Heads and contents of messages on pages that no page leads to any more."""
    found: dict[int, Row] = {}
    if not wanted:
        return found
    (size,) = old.execute("PRAGMA page_size").fetchone()
    (path,) = (file for _, name, file in old.execute("PRAGMA database_list") if name == "main")
    for id_, row in rows_of(Path(path).read_bytes(), size, MESSAGE_COLUMNS):
        if id_ not in wanted:
            continue
        _, conversation, parent, role, status, key, writer, created, meta, content = row
        head = (conversation, parent, role, status, writer, created, meta)
        is_older = id_ in found and key is None
        if _is_sound(id_, head) and isinstance(content, str) and not is_older:
            found[id_] = (*head, content)
    return found


def _is_sound(id_: int, head: Row) -> bool:
    conversation, parent, role, status, _, created, meta = head
    return (
        isinstance(conversation, int)
        and (parent is None or (isinstance(parent, int) and parent < id_))
        and role in ROLES
        and status in STATUSES
        and isinstance(created, (int, float))
        and isinstance(meta, str)
    )


def _parents(old: sqlite3.Connection, heads: Mapping[int, Row]) -> Parents:
    """Which message follows which, those among them that can be read no more."""
    parents: dict[int, int | None] = {}
    for order in ("ASC", "DESC"):
        way = f"SELECT id, parent FROM message INDEXED BY message_parent ORDER BY parent {order}"
        parents.update(
            (id_, parent)
            for id_, parent in _rows(old, way)
            if isinstance(id_, int)
            and (parent is None or (isinstance(parent, int) and parent < id_))
        )
    return parents | {id_: head[1] for id_, head in heads.items()}


def _conversations(old: sqlite3.Connection, wanted: Iterable[int]) -> dict[int, Row]:
    """Of each: origin, title, leaf, created, updated, meta; the origin alone where no more is
    known."""
    way = "SELECT id, origin FROM conversation INDEXED BY sqlite_autoindex_conversation_1"
    origins: dict[int, Any] = dict(_rows(old, way))
    found: dict[int, Row] = {}
    for id_ in wanted:
        row = _one(
            old,
            "SELECT origin, title, leaf, created, updated, meta FROM conversation WHERE id = ?",
            id_,
        )
        texts, times = (0, 1, 5), (3, 4)
        if row and (
            all(isinstance(row[one], str) for one in texts)
            and all(isinstance(row[one], (int, float)) for one in times)
        ):
            found[id_] = row
        elif isinstance(origins.get(id_), str):
            found[id_] = (origins[id_],)
    return found


def _message(old: sqlite3.Connection, id_: int, head: Row, content: str | None) -> Message | None:
    """content: if it has been read already."""
    _, parent, role, status, writer, created, meta = head
    if status == GROWING and writers.is_alive(writer):
        return None
    if content is None:
        (content,) = _one(old, "SELECT content FROM message WHERE id = ?", id_) or (None,)
    if not isinstance(content, str):
        return None
    status = CUT if status == GROWING else status
    return Message(id_, parent, role, content, status, float(created), meta=meta_of(meta))


def _copy(
    new: sqlite3.Connection, row: Row | None, messages: list[Message], parents: Parents
) -> int:
    """Returns its id in `new`. Raises sqlite3.Error."""
    if row is None or len(row) == 1:
        asked = next((one.content for one in messages if one.role == "user"), "")
        times = [one.created for one in messages]
        origin = row[0] if row else uuid.uuid4().hex
        row = (origin, title_of(asked), None, min(times), max(times), "{}")
    origin, title, leaf, created, updated, meta = row
    new.execute("BEGIN IMMEDIATE")
    try:
        new.execute(
            "INSERT INTO conversation (origin, title, created, updated, meta)"
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT (origin) DO NOTHING",
            (origin, title, created, updated, meta),
        )
        (conversation,) = new.execute(
            "SELECT id FROM conversation WHERE origin = ?", (origin,)
        ).fetchone()
        kept: dict[int, tuple[int, str]] = {}
        for one in messages:
            kept[one.id] = _add(new, conversation, _above(one.parent, parents, kept), one)
        at = _above(leaf, parents, kept) or kept[messages[-1].id]
        new.execute(
            "UPDATE conversation SET leaf = coalesce(leaf, ?) WHERE id = ?", (at[0], conversation)
        )
        new.execute("COMMIT")
    except BaseException:
        if new.in_transaction:
            new.execute("ROLLBACK")
        raise
    return int(conversation)


def _copy_unsent(old: sqlite3.Connection, new: sqlite3.Connection, now: Mapping[int, int]) -> None:
    """Texts that were not sent; living windows save theirs themselves. now: conversations in `new`
    by what they were in `old`."""
    known = {name for _, name, *_ in _rows(old, "PRAGMA table_info(unsent)")}
    prompts = "prompts" if "prompts" in known else "'{}'"  # in files before version 3
    way = f"SELECT conversation, written, writer, edited, text, {prompts} FROM unsent ORDER BY id"
    for conversation, written, writer, *texts in _rows(old, way):
        kinds = [isinstance(written, float), *(isinstance(text, str) for text in texts)]
        if all(kinds) and not (writer is not None and writers.is_alive(str(writer))):
            new.execute(
                "INSERT INTO unsent (conversation, written, writer, edited, text, prompts)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (now.get(conversation), written, writer, *texts),
            )


def _above(
    message: int | None, parents: Parents, kept: Mapping[int, tuple[int, str]]
) -> tuple[int, str] | None:
    """Row and key of `message`, or of the deepest above it that was read."""
    while message is not None and message not in kept:
        message = parents.get(message)
    return None if message is None else kept[message]


def _add(
    new: sqlite3.Connection, conversation: int, parent: tuple[int, str] | None, one: Message
) -> tuple[int, str]:
    row, above = parent or (None, None)
    key = key_of(above, one.role, one.content)
    new.execute(
        "INSERT OR IGNORE INTO message"
        " (conversation, parent, role, status, key, created, meta, content)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            conversation,
            row,
            one.role,
            one.status,
            key,
            one.created,
            json.dumps(one.meta),
            one.content,
        ),
    )
    (row,) = new.execute(
        "SELECT id FROM message WHERE conversation = ? AND key = ?", (conversation, key)
    ).fetchone()
    return row, key


def _ids(old: sqlite3.Connection) -> list[int]:
    """The messages that the indices know, or the table shows from either end, and all between."""
    found = _known(old)
    for order in ("ASC", "DESC"):
        rows = _rows(old, f"SELECT id FROM message NOT INDEXED ORDER BY id {order}")
        found.update(id_ for (id_,) in rows if isinstance(id_, int))
    if found and max(found) - min(found) < MOST_ASKED:
        return list(range(min(found), max(found) + 1))
    return sorted(found)


def _rows(old: sqlite3.Connection, query: str) -> list[Row]:
    """The rows up to the first that cannot be read."""
    rows = []
    with suppress(sqlite3.Error):
        for row in old.execute(query):
            rows.append(row)
    return rows


def _one(old: sqlite3.Connection, query: str, id_: int) -> Row | None:
    with suppress(sqlite3.Error):
        row: Row | None = old.execute(query, (id_,)).fetchone()
        return row
    return None
