"""The process that chat templates are followed in: lines of JSON, there and back.

    {"template": "…", "values": {"messages": […], …}}  ->  {"text": "…"} or {"wrong": "…"}

Its arguments are the most seconds of CPU time for a template, of which no more is heard then, the
most bytes of memory, and the most characters. It is run by its path, so that it imports nothing
but this.
"""

from __future__ import annotations

import functools
import json
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
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


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    """As Hugging Face's transformers compile them."""
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


def followed(template: str, values: Mapping[str, Any]) -> str:
    """What the template makes of `values`. Raises whatever it likes: it is a program."""
    text = _compiled(template).render(values)
    text.encode()  # half a character is no text
    return text


def answer(request: str, most: int) -> str:
    """The line that answers a line. most: characters."""
    try:
        text = followed(**json.loads(request))
        wrong = "" if len(text) <= most else f"makes {len(text):,} characters of these messages"
        return json.dumps({"wrong": wrong} if wrong else {"text": text})
    except MemoryError:
        wrong = "asks for more memory than a template may have"
    except Refusal as refusal:
        wrong = f"refuses these messages: {_short(refusal)}"
    except Exception as error:
        wrong = f"fails with these messages ({type(error).__name__}: {_short(error)})"
    return json.dumps({"wrong": wrong})


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:MOST_SAID]


def main() -> None:
    seconds, size, most = map(int, sys.argv[1:])
    with suppress(ValueError, OSError):  # what is allowed already may be less
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    for request in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        line = answer(request, most)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(line, flush=True)


if __name__ == "__main__":
    main()
