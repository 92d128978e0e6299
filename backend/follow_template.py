"""Follows chat templates, as Hugging Face's transformers do; run by `confined_process`."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

MOST_SAID = 300


class Refusal(Exception):
    """What a template says of messages that it does not take."""


class _Generation(jinja2.ext.Extension):
    """Hugging Face's {% generation %} … {% endgeneration %}, which mean nothing here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def answerer(most: str) -> Callable[[Mapping[str, Any]], dict[str, str]]:
    """most: characters that a template may make."""
    return lambda request: _answer(request["template"], request["values"], int(most))


def _answer(template: str, values: Mapping[str, Any], most: int) -> dict[str, str]:
    """What the template makes of the values. It is a program, and may raise anything."""
    try:
        text = _compiled(template).render(values)
        text.encode()  # half a character is no text
    except MemoryError:
        raise
    except Refusal as refusal:
        return {"wrong": f"refuses these messages: {_short(refusal)}"}
    except Exception as error:
        reason = f"{type(error).__name__}: {_short(error)}"
        return {"wrong": f"fails with these messages ({reason})"}
    if len(text) > most:
        return {"wrong": f"makes {len(text):,} characters of these messages"}
    return {"text": text}


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        loader=jinja2.BaseLoader(),
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _refuse(message: object) -> NoReturn:
    raise Refusal(str(message))


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes what HTML would take for tags."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:MOST_SAID]
