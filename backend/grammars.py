"""Grammars (llama.cpp's GBNF) and JSON schemas, tried before anything is written by them."""

from __future__ import annotations

import functools

from specfit.models import bundled_model

from .confined import Confined, Ended
from .errors import SpecfitError

# llama.cpp reads grammars by recursion: much deeper ones overflow its stack.
LONGEST, DEEPEST = 200_000, 2000
# Sound grammars take thousandths of a second.
SECONDS, BYTES = 3, 1 << 29

process = Confined(
    "try_grammar.py",
    bundled_model(),
    seconds=SECONDS,
    size=BYTES,
    environment={"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""},  # none is needed
)


def check_grammar(grammar: str) -> None:
    """Raises SpecfitError if llama.cpp does not take it, or only in more time or memory than a
    grammar can be worth; no model is needed."""
    if wrong := _wrong_with(grammar):
        raise SpecfitError(wrong)


@functools.lru_cache(maxsize=64)
def _wrong_with(grammar: str) -> str:
    if "\0" in grammar or not grammar.strip():
        return "the grammar is empty, or holds a NUL character"
    if len(grammar) > LONGEST or _depth(grammar) > DEEPEST:
        return f"the grammar is longer than {LONGEST} characters, or nested deeper than {DEEPEST}"
    try:
        grammar.encode()
        wrong = process.ask(grammar=grammar)["wrong"]
    except UnicodeEncodeError:
        return "the grammar holds half of a character"
    except Ended as end:
        return f"the grammar {end}; make it simpler"
    # llama.cpp names a place by what stands there.
    place = " its end" if wrong.endswith(" at") else ""
    return f"not a GBNF grammar: {wrong}{place}" if wrong else ""


def grammar_of_schema(schema: object) -> str:
    """The GBNF of a JSON schema, by llama.cpp's rules. Raises SpecfitError for one that has none:
    remote references are not followed."""
    try:
        answer = process.ask(schema=schema)
    except RecursionError:
        raise SpecfitError("the JSON schema is nested too deeply") from None
    except Ended as end:
        raise SpecfitError(f"the JSON schema {end}; make it simpler") from None
    if "grammar" not in answer:
        raise SpecfitError(f"the JSON schema {answer['wrong']}")
    return answer["grammar"]


def _depth(grammar: str) -> int:
    depth = deepest = 0
    for char in grammar:
        if char == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif char == ")":
            depth = max(0, depth - 1)
    return deepest
