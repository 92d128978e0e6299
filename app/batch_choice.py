"""The options of `specfit-batch` alone."""

from __future__ import annotations

from dataclasses import dataclass

import click

from .batch_lines import Kind, Reading, Template
from .batch_records import Format


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

    def __post_init__(self) -> None:
        if self.deterministic and self.parallel is not None and self.parallel > 1:
            raise click.UsageError("--deterministic answers one line at a time; leave -np out.")
        if not all(self.stop):
            raise click.UsageError('--stop "" would end every answer before it begins.')

    @property
    def reading(self) -> Reading:
        """Raises AppError for a template that cannot be filled."""
        template = None if self.template is None else Template(self.template)
        return Reading(self.kind, self.system or None, template)

    @property
    def lines(self) -> int | None:
        """Lines at once."""
        return 1 if self.deterministic else self.parallel
