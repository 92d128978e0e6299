"""The store's values and errors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from specfit.app.entry import AppError

ROLES = ("system", "user", "assistant")
COMPLETE, STOPPED, LENGTH, CUT, GROWING = "complete", "stopped", "length", "cut", "growing"
STATUSES = (COMPLETE, STOPPED, LENGTH, CUT, GROWING)

Meta = Mapping[str, Any]


class NotThere(AppError):
    """A message that was meant is not in the conversation that is open."""


class StoreError(AppError):
    """The store cannot do what it was asked for; the message says why, in one sentence."""


class Gone(StoreError):
    """The row that was meant is not there, or not as it was left: another window deleted it, or the
    file was replaced. What is in memory can be saved anew."""


class Locked(StoreError):
    """Another program holds the file longer than was waited for."""


class ReadOnly(StoreError):
    """The file, or where it lies, cannot be written."""


@dataclass(frozen=True)
class Message:
    """A message and the one that it follows.

    created: seconds since the epoch. key: of the whole history that ends here, in the store; None
    while it grows. meta: model, parameters, statistics, whatever JSON holds.
    """

    id: int
    parent: int | None
    role: str
    content: str
    status: str = COMPLETE
    created: float = 0.0
    key: str | None = None
    meta: Meta = field(default_factory=dict)


@dataclass(frozen=True)
class Conversation:
    """origin: the same on every machine that the conversation is brought to. leaf: the message that
    was last looked at. count: its messages, those of all branches. shown: what was said in the
    branch that was last looked at, in messages."""

    id: int
    origin: str
    title: str
    leaf: int | None
    created: float
    updated: float
    count: int
    meta: Meta
    shown: int = 0


@dataclass(frozen=True)
class Hit:
    """A message that was searched for. match: where in `snippet` the first word was found.
    created: seconds since the epoch."""

    conversation: int
    title: str
    message: int
    role: str
    snippet: str
    match: tuple[int, int]
    created: float = 0.0


@dataclass(frozen=True)
class Unsent:
    """What is written in the input. edited: `message` written anew; `text` is what was written
    before that, or all there is. prompts: system prompts that are being written, by name."""

    text: str = ""
    edited: str = ""
    message: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.text.strip() or self.edited.strip() or self.prompts)


def key_of(parent_key: str | None, role: str, content: str) -> str:
    """Names a history by its contents: the parent's key stands for all that came before."""
    return hashlib.sha256(f"{parent_key or ''}\n{role}\n{content}".encode()).hexdigest()


def meta_of(text: str) -> Meta:
    """What was written as JSON; a byte that the disk got wrong must not cost the conversation."""
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    return {}


def storable(text: str) -> str:
    """`text` without halves of surrogate pairs, which UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")
