"""What `specfit-batch` answers: JSON lines in our words or in OpenAI's, and lines of plain text."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .batch_parameters import KEYS, NOTHING, Parameters, parameters_of
from .entry import AppError, about, say
from .plain_text import shown
from .prompts import (
    LONGEST,
    STANDARD_INPUT,
    Id,
    LineError,
    Message,
    check_length,
    filled_text,
    id_of,
    messages_of,
    parse_object,
    whole_text,
)

Kind = Literal["auto", "json", "text"]

ENDPOINT = "/v1/chat/completions"
# Of a chat completion: what says nothing about the answer; and what asks for something that is not
# done here, unless it has the value that asks for nothing.
_IGNORED = {
    *("model", "messages", "user", "metadata", "store", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "stream_options", "parallel_tool_calls"),
}
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "stream": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
}


@dataclass(frozen=True)
class Request:
    """One line to answer; `number` is its line, counted from 1. asked: what it asks for itself."""

    number: int
    id: Id
    messages: tuple[Message, ...]
    asked: Parameters = NOTHING


@dataclass(frozen=True)
class Unsound:
    """A line that cannot be answered: its id, if that could be read, and what is wrong with it."""

    number: int
    id: Id | None
    wrong: str
    line: bytes

    @property
    def error(self) -> str:
        return f"line {self.number}: {self.wrong}"


def tell_shared_ids(found: Sequence[Request | Unsound]) -> None:
    """Tells of ids that several lines have: who joins answers by id would miss all but one."""
    counts = Counter(line.id for line in found if line.id is not None)
    ids = [json.dumps(one, ensure_ascii=False)[:40] for one, count in counts.items() if count > 1]
    if ids:
        some = ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
        say(shown(f"several lines have the same id ({some}); each of them is answered"))


class Template:
    """A prompt with {fields} of the line in it; {{ and }} are braces. No more than that: a name
    may hold anything but braces. A field that is no text is written as JSON.

    Raises AppError for a brace that stands alone, and for a template without fields.
    """

    def __init__(self, text: str) -> None:
        self._parts = re.split(r"(\{\{|\}\}|\{[^{}]+\})", text)
        if alone := next((part for part in self._parts[::2] if set("{}") & set(part)), None):
            brace = next(char for char in alone if char in "{}")
            raise AppError(
                f'--template: a "{brace}" stands alone; write "{brace * 2}" for one, or {{field}}'
            )
        self.fields = {part[1:-1] for part in self._parts[1::2] if part not in ("{{", "}}")}
        if not self.fields:
            raise AppError("--template names no {field} of the lines: every prompt would be alike")

    def filled(self, fields: Mapping[str, object]) -> str:
        """Raises LineError for a field that the line lacks."""
        if missing := sorted(self.fields - fields.keys()):
            raise LineError(lacking(missing[0]))
        text = "".join(_part(part, fields) for part in self._parts)
        return whole_text(text, "the filled template")


def lacking(field: str) -> str:
    """What is wrong with a line that has no such field."""
    return f'has no "{field}", which the template names'


def _part(part: str, fields: Mapping[str, object]) -> str:
    if part in ("{{", "}}"):
        return part[0]
    if not part.startswith("{"):
        return part
    value = fields[part[1:-1]]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Reading:
    """How lines are read. system: for lines that bring no system message."""

    kind: Kind = "auto"
    system: str | None = None
    template: Template | None = None

    def lines(self, path: Path) -> list[Request | Unsound]:
        """All lines of `path` ("-" is standard input); blank ones are passed over.

        Raises AppError if the file cannot be read, or is text of another encoding, and if no line
        has a field that the template names.
        """
        with about("standard input" if path == STANDARD_INPUT else path):
            data = sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes()
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise AppError(f"{path} is UTF-16 text; write it in UTF-8")
        raw = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        lines = [(line, number) for number, line in enumerate(raw, 1) if line.strip()]
        # A text of prompts seldom has a line that begins so; a file of JSON lines always has.
        as_json = any(line.lstrip().startswith(b"{") for line, _ in lines)
        if self.kind != "auto":
            as_json = self.kind == "json"
        read = self.json_line if as_json else self.text_line
        found = [read(line, number) for line, number in lines]
        for field in self.template.fields if self.template is not None else ():
            lacks = [isinstance(one, Unsound) and one.wrong == lacking(field) for one in found]
            if lacks and all(lacks):
                raise AppError(f'--template: no line has "{field}"')
        return found

    def json_line(self, line: bytes, number: int) -> Request | Unsound:
        known_id: Id | None = None
        try:
            record = parse_object(line)
            if "custom_id" in record or "body" in record:
                known_id = _custom_id(record)
                messages, asked = self._openai(record)
            else:
                known_id = id_of(record)
                messages, asked = self._own(record)
            return Request(number, known_id, self._with_system(messages), asked)
        except LineError as error:
            return Unsound(number, known_id, str(error), line[:LONGEST])

    def text_line(self, line: bytes, number: int) -> Request | Unsound:
        """A prompt that is a line of text; its id is the line's number."""
        try:
            check_length(line)
            prompt = line.decode("utf-8").strip()
            if self.template is not None:
                prompt = self.template.filled({"id": number, "prompt": prompt})
        except UnicodeDecodeError:
            return Unsound(number, number, "not UTF-8 text", line)
        except LineError as error:
            return Unsound(number, number, str(error), line[:LONGEST])
        return Request(number, number, self._with_system([_user(prompt)]))

    def _own(self, record: dict[str, object]) -> tuple[list[Message], Parameters]:
        used: set[str] = set()
        if self.template is not None:
            if "messages" in record:
                raise LineError('has "messages", which a template cannot be filled into')
            used = self.template.fields
            messages = [_user(self.template.filled(record))]
        else:
            messages = list(messages_of(record))
        # What the template writes into the prompt is data, whatever it is called.
        left = {key: value for key, value in record.items() if key not in used}
        if left.get("system") is not None:
            if messages[0]["role"] == "system":
                raise LineError('has both "system" and a system message; give one')
            messages.insert(0, _system(filled_text(left["system"], '"system"')))
        return messages, parameters_of(left, lambda key: f'"{key}"')

    def _openai(self, record: dict[str, object]) -> tuple[list[Message], Parameters]:
        if self.template is not None:
            raise LineError("is an OpenAI request, which a template cannot be filled into")
        if record.get("method", "POST") != "POST":
            raise LineError('"method" must be "POST"')
        if record.get("url", ENDPOINT) != ENDPOINT:
            raise LineError(f'"url" must be "{ENDPOINT}"')
        body = record.get("body")
        if not isinstance(body, dict):
            raise LineError('"body" must be an object')
        for key, value in body.items():
            if key in KEYS or key in _IGNORED or value is None:
                continue
            if key not in _NEUTRAL:
                raise LineError(f'"body": {json.dumps(key)[:80]} is no parameter known here')
            if value not in _NEUTRAL[key]:
                raise LineError(f'"body": "{key}" is not supported')
        if "messages" not in body:
            raise LineError('"body": "messages" is missing')
        plain = {"messages": _plain(body["messages"])}
        return list(messages_of(plain)), parameters_of(body, lambda key: f'"body": "{key}"')

    def _with_system(self, messages: list[Message]) -> tuple[Message, ...]:
        if self.system is None or messages[0]["role"] == "system":
            return tuple(messages)
        return (_system(self.system), *messages)


def _custom_id(record: dict[str, object]) -> Id:
    found = record.get("custom_id")
    if not isinstance(found, str):
        raise LineError('"custom_id" must be a text')
    return whole_text(found, '"custom_id"')


def _plain(messages: object) -> object:
    """Messages with contents of text parts as one text, and developers as the system."""
    if not isinstance(messages, list):
        return messages
    return [_plain_message(one) if isinstance(one, dict) else one for one in messages]


def _plain_message(message: dict[str, object]) -> dict[str, object]:
    changed = dict(message)
    if changed.get("role") == "developer":
        changed["role"] = "system"
    parts = changed.get("content")
    if isinstance(parts, list) and all(_is_text_part(part) for part in parts):
        changed["content"] = "".join(part["text"] for part in parts)
    return changed


def _is_text_part(part: object) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _system(text: str) -> Message:
    return {"role": "system", "content": text}
