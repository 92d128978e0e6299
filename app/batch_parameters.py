"""How a line is to be answered: what it asks for itself, over the flags, over the model's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from .option_types import MAX_INT
from .options import MAX_SEED, NO_LIMIT
from .prompts import Id, LineError, filled_text

if TYPE_CHECKING:
    from specfit.backend import Sampling

MOST_COMPLETIONS, MOST_LOGPROBS, NO_LOGPROBS = 128, 20, -1
# Beyond it every token is as likely as every other.
HOTTEST = 1000


@dataclass(frozen=True)
class Parameters:
    """None leaves a value to whoever comes next.

    seed: -1, of the flags only, draws one. max_tokens: -1 is no limit but the context. n:
    completions of a line. grammar: GBNF that answers keep to. top_logprobs: how many of the
    likeliest tokens are told beside each that is drawn; -1 tells nothing.
    """

    temp: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    n: int | None = None
    grammar: str | None = None
    top_logprobs: int | None = None

    def over(self, other: Parameters) -> Parameters:
        """These values, and where there is none the other's."""
        return Parameters(**(_given(other) | _given(self)))

    def sampling(self, recommended: Sampling, seed: int) -> Sampling:
        given = {name: getattr(self, name) for name in ("temp", "top_k", "top_p", "min_p")}
        changes = {name: value for name, value in given.items() if value is not None}
        return replace(recommended, **changes, seed=seed)

    @property
    def token_limit(self) -> int | None:
        """As the engine takes it."""
        return None if self.max_tokens in (None, NO_LIMIT) else self.max_tokens

    @property
    def noting(self) -> int | None:
        """Log probabilities to tell, as the engine takes it."""
        return None if self.top_logprobs == NO_LOGPROBS else self.top_logprobs

    @property
    def completions(self) -> int:
        return self.n or 1


NOTHING = Parameters()


def _given(parameters: Parameters) -> dict[str, Any]:
    values = {field.name: getattr(parameters, field.name) for field in fields(parameters)}
    return {name: value for name, value in values.items() if value is not None}


def parameters_of(record: Mapping[str, object], where: Callable[[str], str]) -> Parameters:
    """The parameters that a line gives; other keys, and those that are null, are passed over.

    where: how an error names a key. Raises LineError.
    """
    found: dict[str, Any] = {}
    named: dict[str, str] = {}
    for key, (name, read) in _KEYS.items():
        if (value := record.get(key)) is None:
            continue
        if name in found:
            raise LineError(f"has both {where(named[name])} and {where(key)}; give one")
        found[name], named[name] = read(value, where(key)), key
    wanted = found.pop("logprobs", None)
    if wanted is False:
        found["top_logprobs"] = NO_LOGPROBS
    elif wanted:
        found.setdefault("top_logprobs", 0)
    elif "top_logprobs" in found:
        raise LineError(f"{where('top_logprobs')} goes with {where('logprobs')}: true")
    return Parameters(**found)


def _number(least: float, most: float) -> Callable[[object, str], float]:
    def read(value: object, where: str) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value <= most:  # type: ignore[operator]
            raise LineError(f"{where} must be a number from {least:g} to {most:g}")
        return float(value)  # type: ignore[arg-type]

    return read


def _whole(least: int, most: int) -> Callable[[object, str], int]:
    def read(value: object, where: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise LineError(f"{where} must be a whole number from {least} to {most}")
        return value

    return read


def _stop(value: object, where: str) -> tuple[str, ...]:
    texts = value if isinstance(value, list) else [value]
    return tuple(filled_text(text, where) for text in texts)


def _bool(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise LineError(f"{where} must be true or false")
    return value


def _grammar(value: object, where: str) -> str:
    return checked_grammar(filled_text(value, where), where)


def _schema(value: object, where: str) -> str:
    return grammar_of(value, where)


def _format(value: object, where: str) -> str | None:
    """OpenAI's `response_format`."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return grammar_of({"type": "object"}, where)
    schema = value.get("json_schema") if isinstance(value, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict) or "schema" not in schema:
        raise LineError(f'{where} must be of type "text", "json_object", or "json_schema" with one')
    return grammar_of(schema["schema"], where)


def grammar_of(schema: object, where: str) -> str:
    """The GBNF of a JSON schema. Raises LineError."""
    from specfit.backend import SpecfitError
    from specfit.backend.grammars import grammar_of_schema

    try:
        grammar = grammar_of_schema(schema)
    except SpecfitError as error:
        raise LineError(f"{where}: {error}") from error
    return checked_grammar(grammar, where)


def checked_grammar(grammar: str, where: str) -> str:
    """Raises LineError if llama.cpp does not take it."""
    from specfit.backend import SpecfitError
    from specfit.backend.grammars import check_grammar

    try:
        check_grammar(grammar)
    except SpecfitError as error:
        raise LineError(f"{where}: {error}") from error
    return grammar


_KEYS: dict[str, tuple[str, Callable[[object, str], Any]]] = {
    "temperature": ("temp", _number(0, HOTTEST)),
    "temp": ("temp", _number(0, HOTTEST)),
    "top_k": ("top_k", _whole(0, MAX_INT)),
    "top_p": ("top_p", _number(0, 1)),
    "min_p": ("min_p", _number(0, 1)),
    "seed": ("seed", _whole(0, MAX_SEED)),
    "max_tokens": ("max_tokens", _whole(NO_LIMIT, MAX_INT)),
    "max_completion_tokens": ("max_tokens", _whole(NO_LIMIT, MAX_INT)),
    "stop": ("stop", _stop),
    "n": ("n", _whole(1, MOST_COMPLETIONS)),
    "grammar": ("grammar", _grammar),
    "json_schema": ("grammar", _schema),
    "response_format": ("grammar", _format),
    "logprobs": ("logprobs", _bool),
    "top_logprobs": ("top_logprobs", _whole(0, MOST_LOGPROBS)),
}
KEYS = frozenset(_KEYS)


def derived_seed(seed: int, line: Id, completion: int) -> int:
    """A completion's seed: the first 4 bytes, the highest first, of the SHA-256 of the JSON text
    `[seed, id, completion]` with ", " between and all but ASCII escaped.

    So a line has the same one wherever it stands in the file, and whatever was answered before.
    """
    return int.from_bytes(_digest([seed, line, completion])[:4], "big")


def seeds_of(line: Id, own: int | None, run_seed: int, completions: int) -> list[int]:
    """The seeds of a line's completions. own: what the line itself gives; the first completion has
    it as it is."""
    seed = run_seed if own is None else own
    seeds = [derived_seed(seed, line, completion) for completion in range(completions)]
    return seeds if own is None else [own, *seeds[1:]]


def key_of(*what: object) -> str:
    """A record's key: a hash of what its answer depends on, which JSON must know."""
    return _digest(what).hex()[:32]


def _digest(what: Iterable[object]) -> bytes:
    return hashlib.sha256(json.dumps(list(what)).encode()).digest()
