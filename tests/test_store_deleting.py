"""What was deleted is not in any file any more, and a closed store is one file."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from flowcases import Scripted, setup_of
from storecases import SAID, contents, talk

from specfit.app.session import Session
from specfit.app.store import Store, Unsent
from specfit.app.tui import ChatApp, run_chat

SECRET = "rhododendron"
LONG = " ".join([SECRET] * 2000)  # over many pages


def files_with(folder: Path, text: str) -> list[str]:
    found = folder.rglob("*")
    return [one.name for one in found if one.is_file() and text.encode() in one.read_bytes()]


def tables(path: Path) -> set[str]:
    db = sqlite3.connect(path)
    found = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    db.close()
    return found


@pytest.mark.parametrize("said", [SECRET, LONG])
def test_a_deleted_conversation_is_in_no_file(store, path, said):
    kept = talk(store, *SAID)
    conversation = talk(store, said, f"About the {said}.")
    assert store.search(SECRET)
    row = store.keep_unsent(None, conversation, Unsent(f"{SECRET} again"))
    store.keep_unsent(row, conversation, Unsent(f"{SECRET} again"), held=False)
    assert files_with(path.parent, SECRET)
    store.delete(conversation)
    assert files_with(path.parent, SECRET) == []
    assert "words" not in tables(path)
    assert store.search("Rayleigh") and not store.search(SECRET)
    store.close()
    assert files_with(path.parent, SECRET) == []
    again = Store(path)
    assert contents(again, kept) == list(SAID)
    again.close()


def test_what_another_window_still_reads_is_gone_once_it_has_closed(store, path):
    conversation = talk(store, SECRET)
    other = sqlite3.connect(path)
    other.execute("BEGIN")
    assert other.execute("SELECT count(*) FROM message").fetchone() == (1,)
    store.delete(conversation)
    other.close()
    store.close()
    assert files_with(path.parent, SECRET) == []


def test_the_index_stays_where_it_has_nothing_of_what_goes(store, path):
    talk(store, *SAID)
    assert store.search("sky")
    store.delete(talk(store, SECRET))
    assert "words" in tables(path)


def test_a_closed_store_is_one_file_that_can_be_copied(store, path, tmp_path):
    conversation = talk(store, *SAID)
    store.close()
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    shutil.copyfile(path, tmp_path / "copy.db")
    copy = Store(tmp_path / "copy.db")
    assert contents(copy, conversation) == list(SAID)
    copy.close()


def test_a_chat_that_is_left_closes_its_store(store, path, monkeypatch):
    setup = setup_of(Scripted("Yes.").load, Session(store))
    monkeypatch.setattr(ChatApp, "run", lambda _: talk(store, *SAID))
    run_chat(setup)
    assert [one.name for one in path.parent.iterdir()] == [path.name]
