"""The store keeps what was committed, whatever happens to its file, for several windows at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specfit.app.session import Session
from specfit.app.store import (
    Message,
    OpenConversation,
    Store,
    StoreError,
    from_json,
    search,
    to_json,
    to_markdown,
    writers,
)
from specfit.app.store import file as store_file
from specfit.app.store.schema import MIGRATIONS, migrate

NOBODY = 65534
SAID = ("Why is the sky blue?", "Because of Rayleigh scattering.")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "specfit.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = Store(path)
    yield opened
    opened.close()


def question(text: str, parent: int | None = None) -> Message:
    return Message(0, parent, "user", text)


def answer(text: str, parent: int, status: str = "complete") -> Message:
    return Message(0, parent, "assistant", text, status)


def talk(store: Store, *texts: str) -> int:
    """A conversation of these texts, questions and answers in turn."""
    conversation = store.new_conversation(texts[0])
    row = None
    for index, text in enumerate(texts):
        role = "assistant" if index % 2 else "user"
        row = store.add(conversation, Message(0, row, role, text))
    return conversation


def contents(store: Store, conversation: int) -> list[str]:
    return [message.content for message in store.messages(conversation)]


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


# Messages


def test_the_same_history_is_the_same_message(store):
    conversation = store.new_conversation("")
    first = store.add(conversation, question("Hi"))
    again = store.add(conversation, question("Hi"))
    below = store.add(conversation, question("Hi", first))
    assert first == again != below


def test_an_answer_that_was_given_before_becomes_that_one(store):
    conversation = talk(store, *SAID)
    asked, given = (message.id for message in store.messages(conversation))
    growing = store.add(conversation, answer("", asked, "growing"))
    store.grow(growing, SAID[1][:5])
    assert store.finish(growing, SAID[1], "stopped") == given
    assert contents(store, conversation) == list(SAID)
    assert store.conversation(conversation).leaf == given


def test_what_was_once_completed_stays_complete(store):
    conversation = talk(store, "Hi")
    asked = store.messages(conversation)[0].id
    rows = {
        store.add(conversation, answer("Hello", asked, status))
        for status in ("stopped", "complete", "length")
    }
    assert [store.messages(conversation)[1].id] == list(rows)
    assert store.messages(conversation)[1].status == "complete"


def test_conversations_are_listed_newest_first_and_empty_ones_are_not(path):
    times = iter(range(100))
    store = Store(path, clock=lambda: next(times))
    first, second = talk(store, "one"), talk(store, "two", "three")
    store.new_conversation("empty")
    store.add(first, question("later"))
    listed = store.conversations()
    assert [(one.id, one.title, one.count) for one in listed] == [
        (first, "one", 2),
        (second, "two", 2),
    ]
    assert [one.id for one in store.conversations(limit=1, offset=1)] == [second]
    store.delete(first)
    store.rename(second, "another")
    assert [one.title for one in store.conversations()] == ["another"]


def test_ids_are_never_used_again(store):
    first = talk(store, *SAID)
    rows = [message.id for message in store.messages(first)]
    store.delete(first)
    second = talk(store, *SAID)
    assert second != first
    assert not set(rows) & {message.id for message in store.messages(second)}


@pytest.mark.parametrize(
    "text", ["nul \0 inside", "half \ud83d of a pair", "e\u0301 日本 👩‍👩‍👧", ""]
)
def test_any_text_can_be_kept(store, text):
    conversation = talk(store, text)
    assert contents(store, conversation) == [text.replace("\ud83d", "?")]


def test_two_thousand_messages_load_at_once(store):
    conversation = store.new_conversation("long")
    texts = (f"message {number} " + "word " * 100 for number in range(2000))
    store.add_all(
        conversation,
        [Message(number, number - 1 or None, "user", text) for number, text in enumerate(texts, 1)],
    )
    began = time.perf_counter()
    assert len(OpenConversation.load(store, conversation).tree.messages) == 2000
    assert time.perf_counter() - began < 0.5


# Search


@pytest.fixture(params=["indexed", "read through"])
def searched(request, store, monkeypatch) -> Store:
    if request.param == "read through":
        monkeypatch.setattr(search, "is_behind", lambda _db: True)
        monkeypatch.setattr(search, "catch_up", lambda _db: None)
    return store


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rayleigh", [1]),
        ("BLUE sky", [0]),
        ("ö", [2]),
        ("GRÖSSE", []),
        ("größe", [2]),
        ("語の", [3]),
        ("日本語", [3]),
        ('100% "sure', [4]),
        ("_00", []),
        ("  ", []),
        ("NOT sky", []),
        ("\0blue", []),
    ],
)
def test_messages_with_all_words_are_found_in_any_case(searched, text, found):
    texts = (*SAID, "Die Größe", "日本語の本", '100% "sure"')
    conversation = talk(searched, *texts)
    rows = [message.id for message in searched.messages(conversation)]
    hits = searched.search(text)
    assert [rows.index(hit.message) for hit in hits] == found
    for hit in hits:
        start, end = hit.match
        assert hit.snippet[start:end].lower() == text.split()[0].lower()
        assert hit.conversation == conversation


def test_a_snippet_shows_where_the_word_is(searched):
    talk(searched, "start " * 50 + "\nneedle\n" + "end " * 50)
    (hit,) = searched.search("needle")
    assert len(hit.snippet) < 130
    assert hit.snippet.startswith("…") and hit.snippet.endswith("…") and "\n" not in hit.snippet
    assert hit.snippet[slice(*hit.match)] == "needle"


def test_what_is_deleted_or_still_growing_is_not_found(searched):
    gone, kept = talk(searched, "needle one"), talk(searched, "needle two")
    assert len(searched.search("needle")) == 2
    row = searched.messages(kept)[0].id
    searched.add(kept, answer("needle three", row, "growing"))
    searched.delete(gone)
    assert [hit.conversation for hit in searched.search("needle")] == [kept]
    assert [hit.conversation for hit in searched.search("ne")] == [kept]


def test_a_long_history_is_indexed_in_parts(store, monkeypatch):
    monkeypatch.setattr(search, "BATCH", 3)
    talk(store, *(f"needle {number}" for number in range(10)))
    assert len(store.search("needle")) == 10
    assert [hit.snippet for hit in store.search("needle", limit=2)] == ["needle 9", "needle 8"]


def test_deleted_words_leave_the_index(store, path):
    conversation = talk(store, "xylophone")
    assert store.search("xylophone")
    store.delete(conversation)
    db = sqlite3.connect(path)
    assert not db.execute("SELECT rowid FROM words WHERE words MATCH 'xylophone'").fetchall()
    db.close()


def test_a_damaged_index_is_made_anew(store, path):
    conversation = talk(store, "needle")
    assert store.search("needle")
    db = sqlite3.connect(path)
    db.execute("UPDATE words_data SET block = x'00'")
    db.commit()
    db.close()
    store.add(conversation, question("needle too", store.messages(conversation)[0].id))
    assert len(store.search("needle")) == 2
    assert len(store.search("needle")) == 2
    assert store.notices == []
    store.delete(conversation)
    assert store.search("needle") == []


# Processes

GROWER = """
import sys, time
from pathlib import Path
from specfit.app.store import Message, Store
store = Store(Path(sys.argv[1]))
conversation = store.new_conversation("grown")
asked = store.add(conversation, Message(0, None, "user", "Hi"))
growing = store.add(conversation, Message(0, asked, "assistant", "", "growing"))
store.grow(growing, "so far")
print("ready", flush=True)
time.sleep(60)
"""


def test_an_answer_of_a_killed_process_is_cut_and_that_of_a_living_one_is_not(path):
    grower = python(GROWER, path)
    try:
        assert grower.stdout and grower.stdout.readline() == "ready\n"
        store = Store(path)
        (conversation,) = (one.id for one in store.conversations())
        assert store.messages(conversation)[1].status == "growing"
    finally:
        grower.send_signal(signal.SIGKILL)
        grower.communicate()
    store.recover()
    cut = store.messages(conversation)[1]
    assert (cut.content, cut.status) == ("so far", "cut")
    assert cut.key is not None
    assert store.conversation(conversation).leaf == cut.id
    store.close()


def test_a_process_that_has_the_number_of_a_dead_one_is_another():
    number, started = writers.this_process().split()
    assert writers.is_alive(f"{number} {started}")
    assert not writers.is_alive(f"{number} {float(started) - 3600}")
    assert not any(writers.is_alive(name) for name in (None, "", "?", "999999999 1"))


WRITER = """
import sys
from pathlib import Path
from specfit.app.session import Session
from specfit.app.store import Store
path, name, origin = sys.argv[1:]
session = Session(Store(Path(path)))
session.current.origin = origin  # all write to the same conversation
for number in range(20):
    session.ask(f"{name} asks {number}")
    session.begin_answer()
    session.grow(f"{name} answers " * 20)
    session.finish()
    session.store.search(f"answers {number}")
assert session.is_saved and session.take_trouble() is None, session.take_trouble()
"""


def test_windows_that_open_and_write_at_once_do_not_hurt_each_other(path):
    names = ("a", "b", "c")
    writers = [python(WRITER, path, name, "shared") for name in names]
    assert [(writer.communicate(), writer.returncode)[1] for writer in writers] == [0, 0, 0]
    store = Store(path)
    (conversation,) = store.conversations()
    tree = OpenConversation.load(store, conversation.id).tree
    for name in names:
        last = next(m for m in tree.messages.values() if m.content == f"{name} asks 19")
        asked = [m.content for m in tree.path_to(last.id) if m.role == "user"]
        assert asked == [f"{name} asks {number}" for number in range(20)]
    assert conversation.count == 120
    store.close()


def test_a_file_begun_anew_owes_nothing_to_one_that_another_window_holds(path):
    grower = python(GROWER, path)
    try:
        assert grower.stdout and grower.stdout.readline() == "ready\n"
        path.unlink()
        store = Store(path)
        assert store.notices == []
        assert contents(store, talk(store, *SAID)) == list(SAID)
    finally:
        grower.terminate()
        grower.communicate()
    later = Store(path)
    assert [one.count for one in later.conversations()] == [2]
    store.close()
    later.close()


# Trouble with the file


@pytest.fixture
def impatient(monkeypatch) -> None:
    monkeypatch.setattr(store_file, "PATIENCE_MS", 50)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of this process, which has no more rights than any user."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    was = os.geteuid()
    if was == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    yield folder
    folder.chmod(0o700)
    os.seteuid(was)
    shutil.rmtree(folder)


def test_a_full_disk_is_a_sentence_and_what_was_committed_stays(store):
    conversation = talk(store, *SAID)
    store._file._writer.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StoreError, match="the disk is full"):
        store.add(conversation, question("x" * 100_000))
    assert contents(store, conversation) == list(SAID)
    store._file._writer.execute("PRAGMA max_page_count = 100000")
    store.add(conversation, question("x" * 100_000))
    assert len(contents(store, conversation)) == 3


def test_a_locked_store_is_a_sentence_and_can_still_be_read(impatient, path):
    store = Store(path)
    conversation = talk(store, *SAID)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked by another program"):
        store.add(conversation, question("Now?"))
    assert contents(store, conversation) == list(SAID)
    other.execute("ROLLBACK")
    other.close()
    store.add(conversation, question("Now?"))
    store.close()


def test_a_store_that_is_locked_for_a_moment_is_waited_for(store, path):
    conversation = talk(store, *SAID)
    locker = python(
        "import sqlite3, sys, time\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('BEGIN IMMEDIATE'); print('locked', flush=True); time.sleep(0.3)",
        path,
    )
    assert locker.stdout and locker.stdout.readline() == "locked\n"
    store.add(conversation, question("Now?"))
    locker.communicate()


def test_a_file_that_can_only_be_read_can_be_read(unprivileged):
    path = unprivileged / "specfit.db"
    store = Store(path)
    conversation = talk(store, *SAID)
    store.close()
    path.chmod(0o400)
    store = Store(path)
    assert contents(store, conversation) == list(SAID)
    assert store.search("rayleigh")
    with pytest.raises(StoreError, match="can only be read"):
        store.add(conversation, question("Now?"))
    store.close()


def test_a_folder_that_cannot_be_written_is_a_sentence(unprivileged):
    unprivileged.chmod(0o500)
    with pytest.raises(StoreError, match="Permission denied"):
        Store(unprivileged / "data" / "specfit.db")


def test_a_store_is_nobody_elses_to_read(store, path):
    talk(store, *SAID)
    files = list(path.parent.iterdir())
    assert len(files) == 3
    assert not any(file.stat().st_mode & 0o077 for file in [*files, path.parent])


@pytest.mark.parametrize(
    "garbage", [b"this was no database" * 1000, b"SQLite format 3\0" + b"?" * 5000]
)
def test_a_damaged_file_is_moved_aside_and_a_new_one_begun(path, garbage):
    path.parent.mkdir()
    path.write_bytes(garbage)
    store = Store(path)
    (aside,) = (file for file in path.parent.iterdir() if "corrupt" in file.name)
    assert aside.read_bytes() == garbage
    assert aside.name.startswith("specfit.db.corrupt-20")
    (notice,) = store.notices
    assert aside.name in notice
    assert contents(store, talk(store, *SAID)) == list(SAID)
    store.close()


def test_a_file_that_is_found_damaged_later_is_moved_aside_then(path):
    store = Store(path)
    conversation = talk(store, *SAID, "x" * 50_000)
    store.close()
    store, window = Store(path), Store(path)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    for one in (store, window):
        with pytest.raises(StoreError, match="damaged"):
            one.messages(conversation)
        assert contents(one, talk(one, *SAID)) == list(SAID)
    kept = {file.name.split("-shm")[0].split("-wal")[0] for file in path.parent.iterdir()}
    assert len(kept) == 2
    assert path.name in kept
    later = Store(path)
    assert [one.count for one in later.conversations()] == [2, 2]
    later.close()
    store.close()
    window.close()


def test_threads_that_find_the_same_damage_move_the_file_aside_once(path):
    store = Store(path)
    conversation = talk(store, "x" * 50_000)
    store.close()
    store = Store(path)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(StoreError, match="damaged"), store._file.reading() as db:
        with pytest.raises(sqlite3.DatabaseError) as damage:
            db.execute("SELECT content FROM message").fetchall()
        db, waiting = sqlite3.connect(":memory:"), store._file._read_lock
        waiting.release()  # another thread comes to it first
        with pytest.raises(StoreError, match="damaged"):
            store.messages(conversation)
        talk(store, *SAID)
        waiting.acquire()
        raise damage.value
    assert [one.count for one in store.conversations()] == [2]
    store.close()


def test_a_byte_that_the_disk_got_wrong_costs_no_more_than_itself(store, path):
    conversation = talk(store, *SAID)
    db = sqlite3.connect(path)
    db.execute("UPDATE message SET content = cast(x'48ff69' AS TEXT), meta = '{'")
    db.commit()
    db.close()
    assert contents(store, conversation) == ["H\ufffdi", "H\ufffdi"]


@pytest.mark.parametrize("deleted", ["specfit.db", "specfit.db*"])
def test_a_file_that_was_deleted_is_noticed_and_begun_anew(store, path, deleted):
    conversation = talk(store, *SAID)
    for file in path.parent.glob(deleted):
        file.unlink()
    another = Store(path)  # while the first window still has the old one open
    assert another.conversations() == []
    assert contents(another, talk(another, "other")) == ["other"]
    with pytest.raises(StoreError, match="deleted or replaced"):
        store.add(conversation, question("Now?"))
    assert contents(store, talk(store, *SAID)) == list(SAID)
    another.close()
    later = Store(path)
    assert len(later.conversations()) == 2
    later.close()


def test_a_deleted_folder_that_cannot_come_back_yet_is_tried_again(store, path):
    shutil.rmtree(path.parent)
    path.parent.write_text("in the way")
    for _ in range(2):
        with pytest.raises(StoreError, match="data"):
            talk(store, *SAID)
    path.parent.unlink()
    with pytest.raises(StoreError, match="deleted or replaced"):
        talk(store, *SAID)
    assert contents(store, talk(store, *SAID)) == list(SAID)


def test_a_newer_version_is_refused_and_left_alone(store, path):
    conversation = talk(store, *SAID)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="written by a newer SpecFit"):
        Store(path)
    assert contents(store, conversation) == list(SAID)


def test_another_programs_database_is_refused(path):
    path.parent.mkdir()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (value)")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="another program's"):
        Store(path)
    assert [file.name for file in path.parent.iterdir() if "corrupt" in file.name] == []


def test_an_older_version_is_brought_to_the_newest_whole_or_not_at_all(store, path):
    conversation = talk(store, *SAID)
    db = sqlite3.connect(path, isolation_level=None)
    broken = (*MIGRATIONS, ["ALTER TABLE message ADD COLUMN stars", "no such statement"])
    with pytest.raises(sqlite3.OperationalError):
        migrate(db, broken)
    assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    migrate(db, (*MIGRATIONS, ["ALTER TABLE message ADD COLUMN stars INTEGER DEFAULT 5"]))
    assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    assert db.execute("SELECT content, stars FROM message").fetchall() == [
        (text, 5) for text in SAID
    ]
    db.close()
    assert contents(store, conversation) == list(SAID)


# Files


def branched(store: Store) -> Session:
    session = Session(store, "Be kind.")
    session.keep_values({"temp": 0.5})
    for text, status in (("One.", "complete"), ("Two, with \x1b[31m red.", "stopped")):
        if session.path[-1].role == "assistant":
            session.regenerate()
        else:
            session.ask("Count\nplease.")
        session.begin_answer()
        session.grow(text)
        session.finish(status, {"model": "tiny"})
    return session


def test_markdown_shows_the_branch_and_no_escape_sequences(store):
    session = branched(store)
    assert to_markdown(session.title, session.path) == (
        "# Count\n\n## System prompt\n\nBe kind.\n\n## You\n\nCount\nplease.\n\n"
        "## tiny\n\nTwo, with ␛[31m red.\n\n*(stopped)*\n"
    )


def test_json_brings_all_branches_and_importing_it_twice_adds_nothing(store, tmp_path):
    session = branched(store)
    text = to_json(session.current)
    other = Store(tmp_path / "other.db")
    conversation = from_json(other, text)
    assert from_json(other, text) == conversation
    assert from_json(store, text) == session.conversation
    assert session.conversation is not None
    for one, number in ((other, conversation), (store, session.conversation)):
        assert len(one.conversations()) == 1
        assert len(one.messages(number)) == 4

    def kept(one: Store, number: int) -> list[tuple[object, ...]]:
        return [
            (m.key, m.role, m.content, m.status, m.created, m.meta) for m in one.messages(number)
        ]

    assert kept(other, conversation) == kept(store, session.conversation)
    copy = OpenConversation.load(other, conversation)
    assert (copy.title, copy.meta) == ("Count", {"temp": 0.5})
    assert [m.content for m in copy.tree.path()] == [m.content for m in session.path]
    assert to_json(copy) == text
    other.close()


def edited(text: str, *where: object, value: object) -> str:
    record = json.loads(text)
    inner = record
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = value
    return json.dumps(record)


def test_bad_json_is_a_sentence_and_adds_nothing(store, tmp_path):
    text = to_json(branched(store).current)
    other = Store(tmp_path / "other.db")
    bad = [
        "",
        "[" * 100_000,
        "[]",
        "{}",
        text[: len(text) // 2],
        edited(text, "version", value=2),
        edited(text, "messages", value=[]),
        edited(text, "messages", value=None),
        edited(text, "origin", value=3),
        edited(text, "messages", 0, value=None),
        edited(text, "messages", 1, "role", value="tool"),
        edited(text, "messages", 1, "status", value="growing"),
        edited(text, "messages", 1, "content", value=None),
        edited(text, "messages", 1, "created", value=10**400),
        edited(text, "messages", 1, "created", value="now"),
        edited(text, "messages", 1, "parent", value=["?"]),
        edited(text, "messages", 1, "parent", value="unknown"),
        edited(text, "messages", 1, "meta", value=[]),
        edited(text, "messages", 1, "key", value=None),
    ]
    for one in bad:
        with pytest.raises(StoreError) as told:
            from_json(other, one)
        assert "\n" not in str(told.value)
    assert other.conversations() == []
    other.close()
