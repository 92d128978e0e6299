"""What can be read of a damaged file is brought over into the new one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from storecases import Clock, answer, contents, kept, said, talk, turn

from specfit.app.session import Session
from specfit.app.store import Message, Store, StoreError
from specfit.app.store.file import PATIENCE_MS

PAGE = 4096
LONG = "word " * 3000  # on pages of its own


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "specfit.db"


def damage(path: Path, *pages: int) -> bytes:
    """Overwrites pages, numbered from 1, and returns what the file is then."""
    with path.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * PAGE)
            file.write(b"\xff" * PAGE)
    return path.read_bytes()


def settle(store: Store) -> None:
    store._file._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def page_of(path: Path, text: str) -> int:
    """A page in the middle of a long text: another follows it."""
    data = path.read_bytes()
    return next(
        start // PAGE + 1
        for start in range(0, len(data), PAGE)
        if text.encode() in data[start : start + PAGE] and data[start : start + 4] != bytes(4)
    )


def table(path: Path, name: str) -> int:
    db = sqlite3.connect(path)
    (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    db.close()
    return int(page)


def conversations(path: Path) -> dict[str, list[str]]:
    """Three of them; the second answer of the second begins a page of its own."""
    store = Store(path)
    for name in ("a", "b", "c"):
        talk(store, *(f"{name}{n} {f'<{name}{n}>' * 4000}" for n in range(4)))
    store.search("nothing")
    found = {one.title: contents(store, one.id) for one in store.conversations()}
    store.close()
    return found


def found_in(store: Store) -> dict[str, list[str]]:
    return {one.title: contents(store, one.id) for one in store.conversations()}


def test_a_message_that_is_lost_costs_no_more_than_itself(path):
    before = conversations(path)
    lost = next(text for texts in before.values() for text in texts if text.startswith("b1"))
    damaged = damage(path, page_of(path, "<b1>" * 1000))
    store = Store(path)
    with pytest.raises(StoreError, match="3 conversations were brought over"):
        for one in store.conversations():
            store.messages(one.id)
    assert found_in(store) == {
        title: [text for text in texts if text != lost] for title, texts in before.items()
    }
    (aside,) = (
        file for file in path.parent.glob("*.corrupt-*") if not file.name.endswith(("-wal", "-shm"))
    )
    assert aside.read_bytes() == damaged
    (broken,) = (one for one in store.conversations() if one.title.startswith("b"))
    first, third, fourth = store.messages(broken.id)
    assert (first.parent, third.parent, fourth.parent) == (None, first.id, third.id)
    assert broken.leaf == fourth.id
    store.close()


@pytest.mark.parametrize("what", ["first page", "conversations", "second half"])
def test_whatever_part_is_lost_the_rest_is_kept(path, what):
    before = conversations(path)
    if what == "first page":
        damage(path, 1)
    elif what == "conversations":
        damage(path, table(path, "conversation"))
    else:
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(size // 2 + 100)
    store = Store(path)
    for _ in range(2):
        try:
            found = [contents(store, one.id) for one in store.conversations()]
        except StoreError:
            continue
    assert "damaged" in store.notices[0]
    if what == "second half":
        assert 0 < sum(map(len, found)) < 12
    else:
        assert sorted(found) == sorted(before.values())
        assert [title[:2] for title in found_in(store)] == ["c0", "b0", "a0"]
    store.close()


def test_messages_are_found_whose_pages_nothing_leads_to_but_no_deleted_ones(path):
    store = Store(path)
    deleted = talk(store, *(f"deleted {n} {LONG}" for n in range(200)))
    before = [f"text {n} " + "word " * (n % 7 * 400) for n in range(1000)]
    talk(store, *before)
    store.delete(deleted)
    store.close()
    damage(path, table(path, "message"))
    store = Store(path)
    for _ in range(2):
        try:
            (one,) = store.conversations()
            found = store.messages(one.id)
        except StoreError:
            continue
    assert [m.content for m in found] == before
    assert [m.parent for m in found] == [None, *(m.id for m in found[:-1])]
    assert "damaged" in store.notices[0]
    store.close()


def test_branches_values_and_states_are_kept(path):
    store = Store(path)
    session = Session(store, "Be kind.")
    session.keep_values({"temp": 0.5})
    turn(session, "Hi", "One")
    session.regenerate()
    answer(session, "Two", status="stopped")
    session.begin_answer()
    session.switch_branch(session.path[-1].id, 0)
    row = session.conversation
    before = [(m.role, m.content, m.status, m.created, m.key, m.meta) for m in store.messages(row)]
    store.close()
    damage(path, 1)
    store = Store(path)
    (one,) = store.conversations()
    after = [
        (m.role, m.content, m.status, m.created, m.key, m.meta) for m in store.messages(one.id)
    ]
    assert after == before
    assert (one.origin, one.title, one.meta) == (session.current.origin, "Hi", {"temp": 0.5})
    other = Session(store)
    other.open(one.id)
    assert said(other) == said(session)
    store.close()


def test_an_answer_that_is_being_written_is_left_to_its_process(path):
    store = Store(path)
    conversation = talk(store, "Hi")
    asked = store.messages(conversation)[0].id
    store.add(conversation, Message(0, asked, "assistant", "grow", "growing"))
    settle(store)
    db = sqlite3.connect(path)
    dead = (
        "INSERT INTO message (conversation, parent, role, status, writer, created, meta, content)"
    )
    db.execute(
        f"{dead} VALUES (?, ?, 'assistant', 'growing', '1 1', 1, '', 'cut')", (conversation, asked)
    )
    db.commit()
    db.close()
    store.close()
    damage(path, 1)
    store = Store(path)
    (one,) = store.conversations()
    assert [(m.content, m.status) for m in store.messages(one.id)] == [
        ("Hi", "complete"),
        ("cut", "cut"),
    ]
    store.close()


def break_while_open(store: Store, path: Path) -> None:
    """Makes another conversation and loses a page of it."""
    talk(store, LONG)
    settle(store)
    damage(path, page_of(path, LONG[:3000]))


def test_the_open_conversation_is_saved_anew_by_itself(path):
    store = Store(path)
    session = Session(store, clock=Clock())
    turn(session, "Hi", "One")
    session.begin_answer()
    session.grow("so far " * 100)
    break_while_open(store, path)
    assert session.is_saved
    with pytest.raises(StoreError, match="1 conversation was brought over"):
        store.search("word")
    assert not session.is_saved
    session.retry()
    assert session.is_saved
    assert "has been saved anew" in (session.take_trouble() or "")
    session.finish()
    assert kept(session) == said(session)
    assert len(store.conversations()) == 1
    assert session.take_trouble() is None
    store.close()


def test_a_conversation_that_is_opened_on_a_damaged_page_is_what_is_left_of_it(path):
    conversations(path)
    damage(path, page_of(path, "<b2>" * 1000))
    store = Store(path)
    session = Session(store)
    (broken,) = (one for one in store.conversations() if one.title.startswith("b"))
    session.open(broken.id)
    assert [text[:2] for text in said(session)] == ["b0", "b1", "b3"]
    assert session.is_saved
    store.close()


def test_damage_in_a_file_that_is_read_only_is_a_sentence(path):
    conversations(path)
    damage(path, page_of(path, "<b2>" * 1000))
    store = Store(path)
    store._file.read_only = True
    third, broken, first = store.conversations()
    with pytest.raises(StoreError, match="damaged, and it can only be read"):
        store.messages(broken.id)
    assert len(contents(store, first.id)) == len(contents(store, third.id)) == 4
    store.close()


def test_what_is_brought_over_waits_for_others_even_in_a_hurry(path, monkeypatch):
    conversations(path)
    damage(path, page_of(path, "<b2>" * 1000))
    store = Store(path)
    waits = []

    def bring_over(_damaged: Path, new: sqlite3.Connection) -> int:
        waits.extend(new.execute("PRAGMA busy_timeout").fetchone())
        return 0

    monkeypatch.setattr("specfit.app.store.file.bring_over", bring_over)
    with pytest.raises(StoreError, match="no conversation could be read"), store.hurried(0):
        for one in store.conversations():
            store.messages(one.id)
    assert waits == [PATIENCE_MS]
    store.close()
