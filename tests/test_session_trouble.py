"""Nothing that was said is lost, whatever happens to the store or to the process."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storecases import Clock, answer, kept, said, turn

from specfit.app.saving import RETRY_S
from specfit.app.session import Session
from specfit.app.store import (
    Store,
    StoreError,
    writers,
)


def fill_disk(store: Store, full: bool = True) -> None:
    pages = store._file._writer.execute("PRAGMA page_count").fetchone()[0]
    store._file._writer.execute(f"PRAGMA max_page_count = {pages if full else 100_000}")


# Trouble


def test_a_full_disk_is_told_once_and_everything_is_saved_when_there_is_room(session, store, clock):
    turn(session, "Hi", "One")
    fill_disk(store)
    session.ask("And? " * 2000)
    session.begin_answer()
    session.grow("Two " * 2000)
    trouble = session.take_trouble()
    assert trouble is not None and "the disk is full" in trouble
    session.finish()
    assert session.take_trouble() is None
    assert not session.is_saved
    assert [len(text) for text in said(session)] == [2, 3, 10_000, 8000]
    fill_disk(store, False)
    clock.now += RETRY_S
    session.rename("Anew")
    assert session.is_saved
    assert kept(session) == said(session)
    assert session.take_trouble() == "Everything is saved again."


def test_growth_waits_quietly_for_a_store_that_is_locked(session, store, clock, path, monkeypatch):
    monkeypatch.setattr("specfit.app.store.store.SHORT_PATIENCE_MS", 1)
    session.ask("Hi")
    session.begin_answer()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    session.grow("One " * 100)
    assert session.take_trouble() is None
    assert not session.is_saved
    other.execute("ROLLBACK")
    other.close()
    clock.now += 0.5
    session.grow("more")
    assert session.is_saved


@pytest.fixture
def locked(path, store, monkeypatch) -> Iterator[sqlite3.Connection]:
    """Another program that holds the file, and patience that is soon at its end."""
    monkeypatch.setattr("specfit.app.store.file.PATIENCE_MS", 50)
    monkeypatch.setattr(store._file, "_patience_ms", 50)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    yield other
    other.close()


def test_what_was_said_while_the_store_was_locked_is_saved_by_trying_again(
    session, store, clock, locked
):
    turn(session, "Hi", "One")
    assert "locked" in (session.take_trouble() or "")
    session.retry()
    locked.execute("ROLLBACK")
    session.retry()
    assert not session.is_saved  # too early
    clock.now += RETRY_S
    session.retry()
    assert session.is_saved
    assert kept(session) == ["Hi", "One"]
    assert session.take_trouble() == "Everything is saved again."
    session.retry()
    assert session.take_trouble() is None


def test_trying_again_does_not_wait(session, store, clock, locked, monkeypatch):
    session.ask("Hi")
    monkeypatch.setattr("specfit.app.store.file.PATIENCE_MS", 60_000)
    monkeypatch.setattr(store._file, "_patience_ms", 60_000)
    for busy in (True, False):
        if busy:
            store._file._write_lock.acquire()
        clock.now += RETRY_S
        began = time.monotonic()
        session.retry()
        assert time.monotonic() - began < 30
        if busy:
            store._file._write_lock.release()
    assert not session.is_saved


def test_a_store_that_is_read_only_is_told_once(session, store, path, clock, monkeypatch):
    turn(session, "Hi", "One")
    monkeypatch.setattr("specfit.app.store.file._is_writable", lambda *_, **__: False)
    store._file.read_only = True
    turn(session, "And?", "Two")
    trouble = session.take_trouble() or ""
    assert trouble.endswith("is read-only: what is said now is not kept.")
    clock.now += RETRY_S
    session.retry()
    assert session.take_trouble() is None
    monkeypatch.undo()
    clock.now += RETRY_S
    session.retry()
    assert session.take_trouble() == "Everything is saved again."
    assert kept(session) == ["Hi", "One", "And?", "Two"]


def test_a_conversation_that_could_not_be_saved_is_not_lost_by_leaving_it(session, store, clock):
    turn(session, "Hi", "One")
    first = session.conversation
    fill_disk(store)
    turn(session, "And?", "Two " * 5000)
    session.new()
    turn(session, "Other", "Three " * 5000)
    session.open(first)
    assert said(session)[2] == "And?"
    session.new()
    assert session.close() is not None
    fill_disk(store, False)
    assert session.close() is None
    assert {one.title: one.count for one in store.conversations()} == {"Hi": 4, "Other": 2}


def test_a_store_that_was_deleted_gets_the_open_conversation_anew(session, store, path):
    turn(session, "Hi", "One")
    session.ask("And?")
    session.begin_answer()
    session.grow("Two")
    for file in path.parent.glob("specfit.db*"):
        file.unlink()
    session.finish()
    later = Store(path)
    assert [one.count for one in later.conversations()] == [4]
    later.close()
    assert "deleted or replaced" in (session.take_trouble() or "")


def test_a_damaged_store_gets_the_open_conversation_anew(session, store, path):
    turn(session, "Hi", "One " * 5000)
    store._file._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * (path.stat().st_size - 100))
    with pytest.raises(StoreError, match="damaged"):
        store.messages(session.conversation)
    assert store.conversations() == []
    another = Session(store)
    turn(another, "Something", "else")
    turn(session, "And?", "Two")
    assert session.is_saved
    assert kept(session) == said(session)
    assert kept(another) == ["Something", "else"]


def test_without_a_store_the_conversation_is_in_memory(clock):
    session = Session(None, "Be kind.", clock=clock)
    turn(session, "Hi", "One")
    session.regenerate()
    answer(session, "Two")
    session.new()
    assert session.close() is None
    assert session.take_trouble() is None


# Killed

KILLED = """
import sys, time
from pathlib import Path
from specfit.app.session import Session
from specfit.app.store import Store
session = Session(Store(Path(sys.argv[1])))
session.ask("Hi")
session.begin_answer()
while True:
    session.grow("word " * 50)
    print(len(session.path[-1].content), flush=True)
    time.sleep(0.001)
"""


def test_a_killed_chat_leaves_what_it_had_answered(path):
    chat = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert chat.stdout is not None
    for _ in range(20):
        grown = int(chat.stdout.readline())
    chat.send_signal(signal.SIGKILL)
    chat.communicate()
    store = Store(path)
    session = Session(store)
    session.open(store.conversations()[0].id)
    question, cut = session.path
    assert question.content == "Hi"
    assert cut.status == "cut"
    assert cut.content.startswith("word " * (grown // 5))
    assert session.regenerate()
    store.close()


# Any order of things

TEXTS = st.sampled_from(["a", "b", "a\n", ""])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), TEXTS),
        st.tuples(st.just("answer"), st.lists(TEXTS, max_size=2)),
        st.tuples(st.just("take_back"), st.none()),
        st.tuples(st.just("regenerate"), st.integers(0, 9)),
        st.tuples(st.just("edit"), st.tuples(st.integers(0, 9), TEXTS)),
        st.tuples(st.just("switch"), st.tuples(st.integers(0, 9), st.sampled_from([-1, 1]))),
        st.tuples(st.just("system"), TEXTS),
        st.tuples(st.sampled_from(["new", "reopen", "kill", "fail", "repair"]), st.none()),
    ),
    max_size=25,
)


class Chat:
    """A session that is driven at random, and the histories that were finished in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.finished: set[tuple[tuple[str, str], ...]] = set()
        self.begin()

    def begin(self) -> None:
        self.store = Store(self.path)
        self.session = Session(self.store, clock=Clock())
        if found := self.store.conversations(limit=1):
            self.session.open(found[0].id)

    def note(self) -> None:
        path = self.session.path
        self.finished.add(tuple((message.role, message.content) for message in path))

    def step(self, name: str, value: object) -> None:
        session, path = self.session, self.session.path
        if name == "ask":
            session.ask(value)
        elif name == "answer" and path and path[-1].role == "user":
            answer(session, *value)
            self.note()
        elif name == "take_back" and path and path[-1].role == "user":
            session.begin_answer()
            session.take_back()
        elif name == "regenerate" and path and session.regenerate(path[value % len(path)].id):
            answer(session, "a")
            self.note()
        elif name == "edit" and (asked := [one for one in path if one.role == "user"]):
            session.edit(asked[value[0] % len(asked)].id, value[1])
            answer(session, "b")
            self.note()
        elif name == "switch" and path:
            session.switch_branch(path[value[0] % len(path)].id, value[1])
        elif name == "system":
            session.set_system(value)
        elif name == "new":
            session.new()
        elif name == "fail":
            self.store._file._writer.execute("PRAGMA query_only = ON")
        elif name == "repair":
            self.store._file._writer.execute("PRAGMA query_only = OFF")
        elif name in ("reopen", "kill"):
            self.restart(killed=name == "kill")

    def restart(self, killed: bool) -> None:
        """All is saved first; a process that is killed is in the middle of an answer."""
        self.store._file._writer.execute("PRAGMA query_only = OFF")
        assert self.session.close() is None
        if killed and self.session.path and self.session.path[-1].role == "user":
            self.session.begin_answer()
            self.session.grow("cut " * 60)
        self.store.close()
        self.begin()


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_whatever_happens_every_finished_text_can_be_reached(
    steps: list[tuple[str, object]],
) -> None:
    alive = writers.is_alive
    writers.is_alive = lambda _writer: False
    try:
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            chat = Chat(Path(folder) / "specfit.db")
            for name, value in steps:
                chat.step(name, value)
            chat.restart(killed=False)
            check(chat)
            chat.store.close()
    finally:
        writers.is_alive = alive


def check(chat: Chat) -> None:
    """Every finished history is a path, keys name histories, and branches can be walked."""
    reached = set()
    for conversation in chat.store.conversations():
        messages = {one.id: one for one in chat.store.messages(conversation.id)}
        histories = {}
        for one in messages.values():
            above = () if one.parent is None else histories[one.parent]
            histories[one.id] = (*above, (one.role, one.content))
            assert one.status != "growing"
        by_key = {one.key: histories[one.id] for one in messages.values()}
        assert len(by_key) == len(set(by_key.values())) == len(messages)
        reached |= set(by_key.values())
        session = Session(chat.store)
        for one in messages.values():
            session.open(conversation.id, one.id)
            assert one in session.path
            position, of = session.branch(one.id)
            assert 1 <= position <= of
    assert chat.finished <= reached
