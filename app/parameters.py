"""How answers of one conversation are made: sampling, length, thinking, speculation.

A conversation keeps its own values. What it leaves open follows the model, also after a switch to
another one. Values are judged by the very types of the command line's options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from .entry import AppError
from .options import (
    NO_LIMIT,
    RANDOM_SEED,
    SamplingChoice,
    parse_spec,
    predict_option,
    sampling_options,
    token_limit,
)

if TYPE_CHECKING:
    from specfit.backend import Sampling

Value = float | int | str | bool | None


@dataclass(frozen=True)
class Parameters:
    """The values of a conversation.

    temp, top_k, top_p, min_p: None is what the model's makers recommend.
    seed: None draws one for every answer. max_tokens: None is no limit but the context.
    thinking: None leaves it to the model's template. spec: the speculation mode, as for --spec.
    """

    temp: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    thinking: bool | None = None
    spec: str = "specfit"

    @classmethod
    def given(cls, sampling: SamplingChoice, predict: int, spec: str) -> Parameters:
        """What the command line asks for."""
        return cls(
            temp=sampling.temp,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=None if sampling.seed == RANDOM_SEED else sampling.seed,
            max_tokens=token_limit(predict),
            spec=spec,
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Parameters:
        """From what `as_dict` gave; unknown keys and values that make no sense are left out."""
        known: dict[str, Any] = {}
        for field in fields(cls):
            value = values.get(field.name)
            if value is None:
                continue
            if field.name == "thinking":
                if isinstance(value, bool):
                    known["thinking"] = value
            elif not isinstance(value, bool):
                try:
                    known[field.name] = read_value(field.name, str(value))
                except AppError:
                    continue
        return cls(**known)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def over(self, recommended: Sampling) -> Sampling:
        """The recommended sampling with the conversation's values in its place."""
        return SamplingChoice(self.temp, self.top_k, self.top_p, self.min_p, self.seed).over(
            recommended
        )


@click.command()
@sampling_options
@predict_option(NO_LIMIT, "no limit")
def _command_line(**_values: object) -> None:
    """Never run: it is asked for the types of its options."""


_TYPES = {option.name: option.type for option in _command_line.params}
_OPTION = {"max_tokens": "predict"}


def read_value(name: str, text: str) -> Value:
    """The value of the field `name` that `text` writes; nothing is the field's default.

    Raises AppError with what is wanted instead. Not for `thinking`, which nobody types.
    """
    text = text.strip()
    if name == "spec":
        if text:
            parse_spec(text)
        return text or Parameters.spec
    if not text:
        return None
    kind = _TYPES[_OPTION.get(name, name)]
    try:
        value: float | int = kind.convert(text, None, None)
    except click.BadParameter:
        raise AppError(f"{text!r} will not do: {_wanted(kind)}") from None
    if name == "seed" and value == RANDOM_SEED:
        return None
    return token_limit(int(value)) if name == "max_tokens" else value


def written(value: Value) -> str:
    """A value as its field shows it; reading it again gives the same."""
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else str(value)
    return "" if value is None else str(value)


def _wanted(kind: click.ParamType[Any]) -> str:
    if isinstance(kind, click.IntRange):
        return f"give a whole number from {kind.min} to {kind.max}"
    if isinstance(kind, click.FloatRange) and kind.max is not None:
        return f"give a number from {kind.min:g} to {kind.max:g}"
    return "give a number, 0 or more"
