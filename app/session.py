"""The conversation that is open: what the chat does with it, kept in the store as it happens.

Nothing here knows of the screen or the engine. Where the store fails, the conversation goes on in
memory and is saved as soon as the store works again. One thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from .saving import Saving
from .store import Message, OpenConversation, Store, StoreError, Tree
from .store.turns import ModelMessage, model_messages, system_of, title_of
from .store.values import COMPLETE, GROWING, STOPPED

SAVE_EVERY_S = 0.5
SAVE_EVERY_CHARS = 200


@dataclass(frozen=True)
class _Turn:
    """What `take_back` needs. at: the question, by id. before: the leaf that was looked at.
    question: None if it is not to be taken back."""

    at: int | None
    before: int | None
    question: Message | None = None
    is_new: bool = False


class Session:
    """store: None keeps nothing. system: the system prompt of the first conversation.

    clock: seconds, for when to save; now: seconds since the epoch, for when something was said.
    """

    def __init__(
        self,
        store: Store | None,
        system: str = "",
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self._clock, self._now = clock, now
        self._saving = Saving(store, clock)
        self._answer: int | None = None
        self._turn: _Turn | None = None
        self.parted = False  # whether another window had gone on from where the last question is
        self._saved_at, self._unsaved_chars = float("-inf"), 0
        self._open = OpenConversation(Tree())
        self.set_system(system)

    # What there is

    @property
    def path(self) -> tuple[Message, ...]:
        """The branch that is looked at, root first."""
        return self._tree.path()

    @property
    def turns(self) -> tuple[Message, ...]:
        """The branch without its system prompts: nothing was said where there are none."""
        return tuple(one for one in self.path if one.role != "system")

    @property
    def conversation(self) -> int | None:
        """Its id in the store; None before it is there."""
        return self._open.row

    @property
    def current(self) -> OpenConversation:
        """For `to_json`."""
        return self._open

    @property
    def title(self) -> str:
        return self._open.title

    @property
    def values(self) -> Mapping[str, Any]:
        """What is kept with the conversation: its parameters, its model."""
        return self._open.meta

    @property
    def system(self) -> str:
        """The system prompt: the last one of the branch."""
        return system_of(self.path)

    @property
    def is_answering(self) -> bool:
        return self._answer is not None

    @property
    def is_saved(self) -> bool:
        """Whether the store has everything."""
        return self._saving.is_done(self._open)

    def branch(self, message: int) -> tuple[int, int]:
        """(2, 3): the second of three that follow the same message."""
        siblings = self._tree.siblings(message)
        return siblings.index(message) + 1, len(siblings)

    def take_trouble(self) -> str | None:
        """What the user should be told of the store and has not been told, in sentences."""
        return self._saving.take_news()

    # Turns

    def ask(self, text: str) -> Message:
        """Adds a question below what is looked at, saved when this returns."""
        self._settle()
        return self._ask(text, self._tree.leaf)

    def edit(self, message: int, text: str) -> Message:
        """Asks otherwise: a question beside `message`."""
        self._settle()
        return self._ask(text, self._tree.messages[message].parent)

    def regenerate(self, message: int | None = None) -> bool:
        """Goes back to the question of an answer, by default the last one, to answer it anew.

        False if there is no question.
        """
        self._settle()
        before = self._tree.leaf
        above = self._tree.path_to(before if message is None else message)
        question = next((one for one in reversed(above) if one.role == "user"), None)
        if question is None:
            return False
        self._tree.look_at(question.id)
        self._turn = _Turn(question.id, before)
        return True

    def begin_answer(self) -> Message:
        """Begins the answer to the question that is looked at."""
        self._settle()
        leaf = self._tree.leaf
        if self._turn is None or self._turn.at != leaf:
            self._turn = _Turn(leaf, leaf)
        answer = self._tree.add(self._message("assistant", "", leaf, GROWING))
        self._answer = answer.id
        self._tree.look_at(answer.id)
        self._open.changed(answer.id)
        self._save(force=True)
        self._saved_at, self._unsaved_chars = self._clock(), 0
        return answer

    def grow(self, piece: str) -> None:
        """Adds to the answer; saves it now and then."""
        answer = self._tree.messages[self._answering()]
        self._tree.put(replace(answer, content=answer.content + piece))
        self._unsaved_chars += len(piece)
        waited = self._clock() - self._saved_at
        if self._unsaved_chars and (
            waited >= SAVE_EVERY_S or self._unsaved_chars >= SAVE_EVERY_CHARS
        ):
            self._open.changed(answer.id)
            self._save()
            self._saved_at, self._unsaved_chars = self._clock(), 0

    def finish(self, status: str = COMPLETE, meta: Mapping[str, Any] | None = None) -> Message:
        """Ends the answer, saved when this returns. An answer that was given before is that one."""
        answer = replace(self._tree.messages[self._answering()], status=status, meta=meta or {})
        self._answer = None
        twin = self._tree.twin(answer)
        if twin is not None:
            self._tree.remove(answer.id)
            self._open.removed(answer.id)
            better = status == COMPLETE != twin.status
            answer = replace(answer, id=twin.id) if better else twin
        self._tree.put(answer)
        self._open.changed(answer.id)
        self._tree.look_at(answer.id)
        self._save(force=True)
        return answer

    def take_back(self, *, question_too: bool = True) -> str | None:
        """Takes an answer without any text away and returns its question, taken away as well
        unless it is to stay as the last thing said.

        None if the question was answered before: then all is as it was.
        """
        self._remove(self._answering())
        self._answer = None
        return self._unask(question_too=question_too)

    def withdraw(self) -> str | None:
        """Takes the question that was asked last, and not answered yet, away and returns it."""
        return None if self._turn is None else self._unask()

    def switch_branch(self, message: int, step: int) -> bool:
        """Looks at the branch of the next (+1) or last (-1) sibling; False if there is none."""
        self._settle()
        siblings = self._tree.siblings(message)
        index = siblings.index(message) + step
        if not 0 <= index < len(siblings):
            return False
        self._tree.look_at(self._tree.end_of(siblings[index]))
        self._save()
        return True

    def set_system(self, text: str) -> None:
        """Sets the system prompt for what is asked from now on."""
        self._settle()
        if text == self.system:
            return
        last = self._tree.leaf
        if last is not None and self._tree.messages[last].role == "system":
            self._tree.look_at(self._tree.messages[last].parent)
            if not self._tree.has_children(last):
                self._remove(last)
        if text != self.system:
            prompt = self._tree.add(self._message("system", text, self._tree.leaf))
            self._tree.look_at(prompt.id)
            self._open.changed(prompt.id)
        self._save()

    # Conversations

    def new(self, system: str = "") -> None:
        """Begins a conversation. The store gets it with the first question."""
        self._settle()
        self._save(force=True)
        self._saving.leave(self._open)
        self._begin(OpenConversation(Tree()))
        self.set_system(system)

    def open(self, conversation: int, message: int | None = None) -> None:
        """Opens one of the store, at the branch of `message`. Raises StoreError; all stays then."""
        if self.store is None:
            raise StoreError("conversations are not kept")
        self._settle()
        self._save(force=True)
        found = self._saving.waiting(conversation, self._open)
        found = found or OpenConversation.load(self.store, conversation, message)
        self._saving.leave(self._open)
        self._begin(found)

    def rename(self, title: str) -> None:
        self._open.title = title_of(title)
        self._save()

    def keep_values(self, values: Mapping[str, Any]) -> None:
        """Replaces what is kept with the conversation."""
        self._open.meta = dict(values)
        self._save()

    def save(self) -> str | None:
        """Saves what can be saved, of a growing answer what was saved of it last. Returns why not
        all could, if so."""
        self._save(force=True)
        return None if self.is_saved else self._saving.trouble

    def close(self) -> str | None:
        """The same, at the end: the answer that is under way is ended. The store remains open."""
        self._settle()
        return self.save()

    def retry(self) -> None:
        """Saves what could not be saved before; to be called about every second while not
        `is_saved`. Waits next to nothing for other windows."""
        self._saving.retry(self._open)

    # For the engine

    def model_messages(
        self,
        strip: Callable[[str], str] = str,
        count: Callable[[list[ModelMessage]], int] | None = None,
        room: int = 0,
    ) -> tuple[list[ModelMessage], int]:
        """The branch for the engine, and how many of its oldest turns were left out to fit.

        strip: takes the thinking out of an answer. count: tokens of messages; None leaves nothing
        out. room: the most tokens. The system prompt and the last question always stay.
        """
        return model_messages(self.path, strip, count, room)

    # Inside

    @property
    def _tree(self) -> Tree:
        return self._open.tree

    def _begin(self, conversation: OpenConversation) -> None:
        self._open = conversation
        self._answer = self._turn = None

    def _ask(self, text: str, parent: int | None) -> Message:
        met = self._meet(parent)
        known = len(self._tree.messages)
        question = self._tree.add(self._message("user", text, parent))
        is_new = len(self._tree.messages) > known
        self._turn = _Turn(question.id, self._tree.leaf, question, is_new)
        self.parted = met and is_new
        self._tree.look_at(question.id)
        self._open.changed(question.id)
        self._open.title = self._open.title or title_of(text)
        self._save(force=True)
        return question

    def _meet(self, parent: int | None) -> bool:
        """Whether other windows have gone on from there since, whose messages are here then."""
        with suppress(StoreError):  # it cannot be known now, and both are kept anyway
            return self.store is not None and self._open.meet(self.store, parent)
        return False

    def _unask(self, *, question_too: bool = True) -> str | None:
        turn, self._turn = self._turn, None
        assert turn is not None
        self._tree.look_at(turn.before)
        question = turn.question
        if question is not None and not question_too:
            self._tree.look_at(question.id)
        elif question is not None and turn.is_new and not self._tree.has_children(question.id):
            self._remove(question.id)
            if not any(one.role == "user" for one in self._tree.messages.values()):
                self._open.title = ""
        self._save()
        return None if question is None else question.content

    def _message(
        self, role: str, content: str, parent: int | None, status: str = COMPLETE
    ) -> Message:
        return Message(0, parent, role, content, status, self._now())

    def _remove(self, message: int) -> None:
        self._tree.remove(message)
        self._open.removed(message)

    def _answering(self) -> int:
        if self._answer is None:
            raise RuntimeError("no answer was begun")
        return self._answer

    def _settle(self) -> None:
        """An answer that nobody ended was stopped."""
        if self._answer is not None:
            self.finish(STOPPED)

    def _save(self, *, force: bool = False) -> None:
        self._saving.save(self._open, force=force)
