"""What the engine is asked, and what it says of its command line, in the chat's terms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .entry import AppError
from .keys import Key, key_name, keys_of
from .store.turns import model_messages
from .thinking import stripped

if TYPE_CHECKING:
    from specfit.backend import Engine

    from .store import Message
    from .store.turns import ModelMessage

# Of the context, what the oldest turns are left out for.
ROOM_FOR_ANSWER = 1 / 4


def fitting_messages(engine: Engine, path: Sequence[Message]) -> tuple[list[ModelMessage], int]:
    """A branch as the model is to see it, with room for an answer; how many of its oldest turns
    were left out for that."""
    room = engine.ctx - int(engine.ctx * ROOM_FOR_ANSWER)
    return model_messages(path, stripped, engine.count_tokens, room)


def refusal(engine: Engine, messages: Sequence[ModelMessage], error: Exception) -> Exception:
    """Why `messages` are not answered: if they are too long, what to do about it; else `error`."""
    tokens = engine.count_tokens(messages)
    if tokens < engine.ctx:
        return error
    return AppError(too_long(messages, tokens, engine.ctx, engine.model.info.context_length))


def too_long(messages: Sequence[ModelMessage], tokens: int, ctx: int, trained: int) -> str:
    """trained: what the model was made for, or 0. Turns before the last are left out by then."""
    system = messages[0]["role"] == "system"
    parts = "This message and the system prompt take" if system else "This message takes"
    shorten = "Shorten one of them" if system else "Shorten it"
    told = f"{parts} {tokens} tokens, and the context holds {ctx}. {shorten}"
    larger = 1 << (4 * tokens // 3).bit_length()
    if trained:
        larger = min(larger, trained)
    if larger > max(ctx, tokens):
        told += f", or leave and go on with specfit-chat --continue -c {larger}"
    return f"{told}."


def notice(told: str, keys: Iterable[Key]) -> str:
    """A notice of the engine's."""
    chosen_by = [*map(key_name, keys_of("model", keys)), "/model"][0]
    return told.replace(" (-md)", f"; {chosen_by} chooses one")
