"""The options of `specfit-batch` alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click

from .batch_lines import Kind, Reading, Template
from .batch_parameters import checked_grammar, grammar_of
from .batch_records import Format
from .entry import AppError, about
from .prompts import LineError


@dataclass(frozen=True)
class BatchChoice:
    """parallel: lines at once; None finds out how many.

    Raises click.UsageError for options that contradict each other.
    """

    form: Format
    kind: Kind
    system: str | None
    template: str | None
    parallel: int | None
    deterministic: bool
    retry_errors: bool
    completions: int
    stop: tuple[str, ...]
    json_progress: bool
    grammar: str | None
    grammar_file: Path | None
    json_schema: str | None
    json_schema_file: Path | None
    logprobs: int | None

    def __post_init__(self) -> None:
        if self.deterministic and self.parallel is not None and self.parallel > 1:
            raise click.UsageError("--deterministic answers one line at a time; leave -np out.")
        shapes = (self.grammar, self.grammar_file, self.json_schema, self.json_schema_file)
        if sum(shape is not None for shape in shapes) > 1:
            raise click.UsageError("Of grammars and JSON schemas give one.")
        if not all(self.stop):
            raise click.UsageError('--stop "" would end every answer before it begins.')

    @property
    def one_grammar(self) -> str | None:
        """The GBNF that answers keep to. Raises AppError for one that llama.cpp does not take."""
        grammar, schema = self.grammar, self.json_schema
        if self.grammar_file is not None:
            grammar = _content(self.grammar_file)
        if self.json_schema_file is not None:
            schema = _content(self.json_schema_file)
        try:
            if schema is not None:
                return grammar_of(json.loads(schema), "--json-schema")
            return None if grammar is None else checked_grammar(grammar, "--grammar")
        except LineError as error:
            raise AppError(str(error)) from error
        except (ValueError, RecursionError) as error:
            raise AppError(f"--json-schema: not JSON: {error}") from error

    @property
    def reading(self) -> Reading:
        """Raises AppError for a template that cannot be filled."""
        template = None if self.template is None else Template(self.template)
        return Reading(self.kind, self.system or None, template)

    @property
    def lines(self) -> int | None:
        """Lines at once."""
        return 1 if self.deterministic else self.parallel


def _content(path: Path) -> str:
    with about(path):
        data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise AppError(f"{path} is not UTF-8 text") from None
