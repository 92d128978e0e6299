"""Conversations leave as Markdown and JSON, and come back from JSON once."""

from __future__ import annotations

import json

import pytest
from storecases import turn

from specfit.app.session import Session
from specfit.app.store import (
    OpenConversation,
    Store,
    StoreError,
    import_json,
    to_json,
    to_markdown,
)


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
    conversation = import_json(other, text)[0]
    assert import_json(other, text)[0] == conversation
    assert import_json(store, text)[0] == session.conversation
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


def test_an_import_says_how_much_was_new(store, tmp_path):
    session = branched(store)
    text = to_json(session.current)
    other = Store(tmp_path / "other.db")
    conversation, added = import_json(other, text)
    assert added == 4
    assert import_json(other, text) == (conversation, 0)
    turn(session, "And?", "Three.")
    assert import_json(other, to_json(session.current)) == (conversation, 2)
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
            import_json(other, one)
        assert "\n" not in str(told.value)
    assert other.conversations() == []
    other.close()
