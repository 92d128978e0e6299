"""What the model reads of a branch, and what the branch is called."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Sequence

from .values import GROWING, Message

TITLE_CHARS = 60
_JOINER = "\u200d"
# Where an answer may be cut: before words, and within what has no spaces.
_PART = re.compile(r"\S{1,20}")

ModelMessage = dict[str, str]


def system_of(path: Sequence[Message]) -> str:
    """The system prompt: the last one of the branch."""
    return next((one.content for one in reversed(path) if one.role == "system"), "")


def model_messages(
    path: Sequence[Message],
    strip: Callable[[str], str],
    count: Callable[[list[ModelMessage]], int] | None,
    room: int,
) -> tuple[list[ModelMessage], int]:
    """See `Session.model_messages`."""
    messages, dropped, _ = seen_messages(path, strip, count, room)
    return messages, dropped


def seen_messages(
    path: Sequence[Message],
    strip: Callable[[str], str],
    count: Callable[[list[ModelMessage]], int] | None,
    room: int,
) -> tuple[list[ModelMessage], int, int | None]:
    """The same, and the oldest message of which the model sees something, by id; None if it sees
    all. Longer histories never take fewer tokens.

    Where even the turn before the last question is too long, as after an answer that ran into the
    end of the context, its question and the end of its answer stay: else there would be nothing
    that "go on" could mean. It counts as left out.
    """
    said = _said(path, strip)
    turns = [[{"role": one.role, "content": text} for one, text in turn] for turn in said]
    system = system_of(path)
    opening = [{"role": "system", "content": system}] if system else []

    def fits(turns: list[list[ModelMessage]]) -> bool:
        return count is None or count(opening + _joined(turns)) <= room

    last = max(0, len(turns) - 1)
    dropped = 0
    if not fits(turns):
        dropped = bisect_left(range(last), True, min(1, last), key=lambda n: fits(turns[n:]))
    kept = turns[dropped:]
    if dropped and dropped == last:
        kept = _with_end(turns[last - 1], lambda end: fits([end, *kept])) + kept
    first = said[-len(kept)][0][0].id if dropped else None
    return opening + _joined(kept), dropped, first


def _with_end(
    turn: list[ModelMessage], fits: Callable[[list[ModelMessage]], bool]
) -> list[list[ModelMessage]]:
    """The turn with as much of its answer's end as fits; nothing if none does, or it has none."""
    *question, answer = turn
    text = answer["content"]
    if not question or answer["role"] != "assistant":
        return []

    def end(start: int) -> list[ModelMessage]:
        return [*question, {"role": "assistant", "content": f"…{text[start:]}"}]

    starts = [part.start() for part in _PART.finditer(text)][1:]
    at = bisect_left(starts, True, key=lambda start: fits(end(start)))
    return [end(start) for start in starts[at : at + 1]]


def _said(path: Sequence[Message], strip: Callable[[str], str]) -> list[list[tuple[Message, str]]]:
    """Questions with what was answered, and what the model reads of each; what is empty or still
    growing is left out."""
    turns: list[list[tuple[Message, str]]] = []
    for one in path:
        if one.role == "system" or one.status == GROWING:
            continue
        content = strip(one.content) if one.role == "assistant" else one.content
        if not content.strip():
            continue
        if one.role == "user" or not turns:
            turns.append([])
        turns[-1].append((one, content))
    return turns


def _joined(turns: list[list[ModelMessage]]) -> list[ModelMessage]:
    """The messages of turns; two of a role in a row become one, since templates want them to
    alternate (a question whose answer came to nothing is followed by the next)."""
    found: list[ModelMessage] = []
    for message in (one for turn in turns for one in turn):
        if found and found[-1]["role"] == message["role"]:
            content = f"{found[-1]['content']}\n\n{message['content']}"
            found[-1] = {"role": message["role"], "content": content}
        else:
            found.append(message)
    return found


def title_of(text: str) -> str:
    """The first line that says something, cut at a word where it is long."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    words = " ".join(line[: 10 * TITLE_CHARS].split())
    if len(words) <= TITLE_CHARS:
        return words
    end = words.rfind(" ", TITLE_CHARS // 2, TITLE_CHARS)
    return words[: end if end > 0 else _between_characters(words, TITLE_CHARS - 1)] + "…"


def _between_characters(text: str, end: int) -> int:
    """The last place up to `end` that parts no character from its marks."""
    while end > 1 and (
        unicodedata.combining(text[end])
        or unicodedata.category(text[end]) in ("Mn", "Me", "Mc", "Cf", "Sk")
        or text[end - 1] == _JOINER
    ):
        end -= 1
    return end
