"""The store keeps trees of messages, and finds them, for several windows at once."""

from __future__ import annotations

import signal
import sqlite3

import pytest
from counting import counted
from storecases import SAID, contents, python, question, talk

from specfit.app.store import (
    Message,
    OpenConversation,
    Store,
    search,
    writers,
)


def an_answer(text: str, parent: int, status: str = "complete") -> Message:
    return Message(0, parent, "assistant", text, status)


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
    growing = store.add(conversation, an_answer("", asked, "growing"))
    store.grow(growing, SAID[1][:5])
    assert store.finish(growing, SAID[1], "stopped") == given
    assert contents(store, conversation) == list(SAID)
    assert store.conversation(conversation).leaf == given


def test_what_was_once_completed_stays_complete(store):
    conversation = talk(store, "Hi")
    asked = store.messages(conversation)[0].id
    rows = {
        store.add(conversation, an_answer("Hello", asked, status))
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
    with counted() as calls:
        assert len(OpenConversation.load(store, conversation).tree.messages) == 2000
    assert calls.n < 2000 * 60


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
    searched.add(kept, an_answer("needle three", row, "growing"))
    searched.delete(gone)
    assert [hit.conversation for hit in searched.search("needle")] == [kept]
    assert [hit.conversation for hit in searched.search("ne")] == [kept]


def test_a_long_history_is_indexed_in_parts(store, monkeypatch):
    monkeypatch.setattr(search, "BATCH", 3)
    talk(store, *(f"needle {number}" for number in range(10)))
    assert len(store.search("needle")) == 10
    assert [hit.snippet for hit in store.search("needle", limit=2)] == ["needle 9", "needle 8"]


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
