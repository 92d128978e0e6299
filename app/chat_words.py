"""What the engine is asked, and what it says of its command line, in the chat's terms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .entry import AppError
from .keys import Key, key_name, keys_of
from .store import Message
from .store.turns import seen_messages
from .store.values import COMPLETE, GROWING
from .thinking import stripped

if TYPE_CHECKING:
    from specfit.backend import Engine

    from .store.turns import ModelMessage

# Of the context, what the oldest turns are left out for.
ROOM_FOR_ANSWER = 1 / 4
# Stands for the question that is not asked yet.
NEXT = Message(-1, None, "user", "?")


def fitting_messages(
    engine: Engine, path: Sequence[Message]
) -> tuple[list[ModelMessage], int | None]:
    """A branch as the model is to see it, with room for an answer; the oldest message that it sees
    something of, by id, if turns were left out for that."""
    room = engine.ctx - int(engine.ctx * ROOM_FOR_ANSWER)
    messages, _, first = seen_messages(path, stripped, engine.count_tokens, room)
    return messages, first


@dataclass(frozen=True)
class Seen:
    """What the next request takes of a branch. path: of it, what is not left out; first: the
    message that this begins with, by id, None if nothing is left out; tokens: of the prompt."""

    path: tuple[Message, ...]
    first: int | None
    tokens: int


def seen_of(engine: Engine, path: Sequence[Message]) -> Seen:
    """The one measure of how full the context is: what would be sent of `path` behind which
    another question comes; an answer that is growing counts as far as it is there."""
    path = [replace(one, status=COMPLETE) if one.status == GROWING else one for one in path]
    is_answered = (
        bool(path) and path[-1].role == "assistant" and bool(stripped(path[-1].content).strip())
    )
    asked = [*path, NEXT] if is_answered else path
    messages, first = fitting_messages(engine, asked)
    messages = messages[:-1] if is_answered else messages
    at = next((n for n, one in enumerate(asked) if one.id == first), 0)
    kept = (one for n, one in enumerate(path) if n >= at or one.role == "system")
    return Seen(tuple(kept), first, engine.count_tokens(messages) if messages else 0)


def refusal(engine: Engine, messages: Sequence[ModelMessage], error: Exception) -> Exception:
    """Why `messages` are not answered: if they are too long, what to do about it; else `error`."""
    tokens = engine.count_tokens(messages)
    if tokens < engine.ctx:
        return error
    return AppError(too_long(messages, tokens, engine.ctx, engine.model.info.context_length))


def too_long(messages: Sequence[ModelMessage], tokens: int, ctx: int, trained: int) -> str:
    """trained: what the model was made for, or 0. Turns before the last are left out by then."""
    from specfit.backend.rope import larger_context

    system = messages[0]["role"] == "system"
    parts = "This message and the system prompt take" if system else "This message takes"
    shorten = "Shorten one of them" if system else "Shorten it"
    told = f"{parts} {tokens} tokens, and the context holds {ctx}. {shorten}"
    larger = larger_context(tokens, ctx, trained)
    if larger is not None:
        told += f", or leave and go on with specfit-chat --continue -c {larger}"
    return f"{told}."


def notice(told: str, keys: Iterable[Key]) -> str:
    """A notice of the engine's."""
    chosen_by = [*map(key_name, keys_of("model", keys)), "/model"][0]
    return told.replace(" (-md)", f"; {chosen_by} chooses one")


def with_home(path: Path) -> str:
    """The whole path, the user's folder as ~."""
    whole = path.resolve()
    with suppress(ValueError, RuntimeError):  # elsewhere; no home
        return f"~/{whole.relative_to(Path.home().resolve())}"
    return str(whole)
