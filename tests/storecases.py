"""Conversations for the tests of the store and of the session."""

from __future__ import annotations

import subprocess
import sys

from specfit.app.session import Session
from specfit.app.store import Message, Store

SAID = ("Why is the sky blue?", "Because of Rayleigh scattering.")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def question(text: str, parent: int | None = None) -> Message:
    return Message(0, parent, "user", text)


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


def answer(session: Session, *pieces: str, status: str = "complete") -> Message:
    session.begin_answer()
    for piece in pieces:
        session.grow(piece)
    return session.finish(status)


def turn(session: Session, question: str, text: str) -> tuple[Message, Message]:
    return session.ask(question), answer(session, text)


def said(session: Session) -> list[str]:
    return [message.content for message in session.path]


def kept(session: Session) -> list[str]:
    """What a window would show that opened the conversation now."""
    assert session.store is not None and session.conversation is not None
    other = Session(session.store)
    other.open(session.conversation)
    return said(other)
