"""Whatever happens to the store's file is a sentence, and what was committed stays."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from storecases import SAID, contents, python, question, talk

from specfit.app.store import (
    ReadOnly,
    Store,
    StoreError,
)
from specfit.app.store import file as store_file
from specfit.app.store.schema import MIGRATIONS, migrate

NOBODY = 65534


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
    with pytest.raises(StoreError, match="is read-only"):
        store.add(conversation, question("Now?"))
    store.close()


@pytest.mark.parametrize("file_mode", [0o600, 0o400])
@pytest.mark.parametrize("killed", [False, True])
def test_a_store_where_nothing_can_be_written_can_be_read(unprivileged, file_mode, killed):
    path = unprivileged / "data" / "specfit.db"
    store = Store(path)
    conversation = talk(store, *SAID)
    if killed:
        for file in path.parent.iterdir():
            shutil.copy(file, unprivileged / f"{file.name}.copy")
    store.close()
    if killed:
        for file in unprivileged.glob("*.copy"):
            file.rename(path.parent / file.stem)
    path.chmod(file_mode)
    path.parent.chmod(0o500)
    store = Store(path)
    try:
        assert [one.id for one in store.conversations()] == [conversation]
        assert contents(store, conversation) == list(SAID)
        assert store.search("rayleigh")
        if not killed:  # else the companions are there
            assert store.read_only
            with pytest.raises(ReadOnly, match="is read-only: what is said now is not kept"):
                store.add(conversation, question("Now?"))
        path.chmod(0o600)
        path.parent.chmod(0o700)
        store.add(conversation, question("Now?"))
        assert not store.read_only
    finally:
        path.parent.chmod(0o700)
    store.close()
    later = Store(path)
    assert len(later.conversations()) == 1
    later.close()


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o600, 0o500), (0o400, 0o700)])
def test_a_store_of_an_older_version_can_be_read_where_it_cannot_be_written(
    unprivileged, file_mode, folder_mode
):
    path = unprivileged / "data" / "specfit.db"
    path.parent.mkdir()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    migrate(db, MIGRATIONS[:1])
    db.close()
    path.chmod(file_mode)
    path.parent.chmod(folder_mode)
    store = Store(path)
    try:
        assert store.conversations() == []
        with pytest.raises(StoreError):
            store.take_unsent(None)
    finally:
        path.parent.chmod(0o700)
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
