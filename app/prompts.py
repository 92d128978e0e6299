"""Prompts from JSON Lines: what `specfit-batch` and `specfit-bench` read.

A line is an object with an "id" and either a "prompt" or "messages"; other keys are ignored. A
line that is not so becomes a BadLine, which names it by number: one slip must not cost the rest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .entry import about

STANDARD_INPUT = Path("-")
LONGEST = 1 << 25
ROLES = ("system", "user", "assistant", "tool")

Message = dict[str, str]
Id = str | int


@dataclass(frozen=True)
class Prompt:
    """One request; `number` is its line, counted from 1."""

    number: int
    id: Id
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be run: its id, if that could be read, and what is wrong with it."""

    number: int
    id: Id | None
    error: str


def read_prompts(path: Path) -> list[Prompt | BadLine]:
    """All lines of `path` ("-" is standard input); blank ones are skipped.

    Raises AppError if the file cannot be read.
    """
    with about("standard input" if path == STANDARD_INPUT else path):
        data = sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes()
    lines = enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
    return [parse_line(line, number) for number, line in lines if line.strip()]


def parse_line(line: bytes, number: int) -> Prompt | BadLine:
    """One line of a prompts file."""
    known_id: Id | None = None
    try:
        record = parse_object(line)
        known_id = id_of(record)
        return Prompt(number, known_id, tuple(messages_of(record)))
    except LineError as error:
        return BadLine(number, known_id, f"line {number}: {error}")


class LineError(Exception):
    """What is wrong with a line."""


def check_length(line: bytes) -> None:
    """Raises LineError for a line that no context holds: it would be copied many times."""
    if len(line) > LONGEST:
        raise LineError(f"longer than {LONGEST >> 20} MiB")


def parse_object(line: bytes) -> dict[str, object]:
    check_length(line)
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise LineError("not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise LineError(f"not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # numbers or nesting beyond all reason
        raise LineError(f"not JSON that can be read: {error}") from error
    if not isinstance(record, dict):
        raise LineError('not a JSON object with an "id" and a "prompt" or "messages"')
    return record


def id_of(record: dict[str, object]) -> Id:
    if "id" not in record:
        raise LineError('"id" is missing')
    found = record["id"]
    if isinstance(found, str):
        return whole_text(found, '"id"')
    if isinstance(found, int) and not isinstance(found, bool):
        return found
    raise LineError('"id" must be a text or a whole number')


def messages_of(record: dict[str, object]) -> Iterator[Message]:
    if "prompt" in record and "messages" in record:
        raise LineError('has both "prompt" and "messages"; give one')
    if "prompt" in record:
        yield {"role": "user", "content": filled_text(record["prompt"], '"prompt"')}
        return
    if "messages" not in record:
        raise LineError('has neither "prompt" nor "messages"')
    messages = record["messages"]
    if not isinstance(messages, list) or not messages:
        raise LineError('"messages" must be a list with at least one message')
    for index, message in enumerate(messages):
        yield _message(message, f'"messages"[{index}]')


def _message(message: object, where: str) -> Message:
    if not isinstance(message, dict):
        raise LineError(f'{where} must be an object with "role" and "content"')
    role = message.get("role")
    if role not in ROLES:
        raise LineError(f'{where}: "role" must be one of {", ".join(ROLES)}')
    content = message.get("content")
    if not isinstance(content, str):
        raise LineError(f'{where}: "content" must be a text')
    return {"role": role, "content": whole_text(content, f'{where}: "content"')}


def filled_text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise LineError(f"{where} must be a text that is not empty")
    return whole_text(value, where)


def whole_text(text: str, where: str) -> str:
    """`text`, which JSON's escapes may have made of half a character that no file can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise LineError(f"{where} holds half of a surrogate pair") from error
    return text
