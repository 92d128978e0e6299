"""What the engine says of its command line, said for somebody who is in the chat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .entry import AppError
from .keys import Key, key_name, keys_of

if TYPE_CHECKING:
    from specfit.backend import Engine

    from .store.turns import ModelMessage


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
