"""specfit-batch: answers to a file of prompts, one JSON line each.

What is written is always whole lines: each answer is one write, synced to the disk before the next
begins, and a write that fails half way (a full disk) is taken back.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .entry import AppError, run
from .interrupts import Interrupts
from .lines_out import LinesOut
from .options import (
    NO_LIMIT,
    ModelChoice,
    SamplingChoice,
    model_options,
    parse_spec,
    predict_option,
    sampling_options,
    spec_option,
    token_limit,
)
from .prompts import BadLine, Prompt, read_prompts

if TYPE_CHECKING:
    from specfit.backend import Engine, Report, Sampling, Spec


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="IN.jsonl", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "-o",
    "--output",
    metavar="OUT.jsonl",
    type=click.Path(path_type=Path),
    required=True,
    help="File for the answers; one that has content is left alone.",
)
@model_options
@sampling_options
@spec_option
@predict_option(NO_LIMIT, "until the answer or the context ends")
def batch(
    source: Path,
    output: Path,
    choice: ModelChoice,
    sampling_choice: SamplingChoice,
    spec: str,
    predict: int,
) -> None:
    """Answer every line of IN.jsonl ("-": standard input).

    A line is {"id": …, "prompt": "…"} or {"id": …, "messages": [{"role": …, "content": …}, …]}.
    Its answer goes to OUT.jsonl as {"id", "text", "finish_reason", "usage", "speculation"}, in
    the same order. A line that fails gives {"id", "error"}; the others are answered all the same,
    and the exit code is 2.
    """
    mode = parse_spec(spec)
    requests = read_prompts(source)

    from .loading import loaded_engine

    with (
        Interrupts() as interrupts,
        LinesOut(output) as out,
        loaded_engine(choice, interrupts, drafting=mode.drafts) as engine,
    ):
        sampling = sampling_choice.over(engine.recommended_sampling)
        worker = _Worker(engine, sampling, token_limit(predict), mode, interrupts)
        failed = _answer_all(requests, worker, out)
    if failed:
        lines = "line" if failed == 1 else "lines"
        raise AppError(
            f'{failed} of {len(requests)} {lines} failed; {output} says why under "error"'
        )


class _Worker:
    """Answers single requests on one engine."""

    def __init__(
        self,
        engine: Engine,
        sampling: Sampling,
        max_tokens: int | None,
        spec: Spec,
        interrupts: Interrupts,
    ) -> None:
        self._engine = engine
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._spec = spec
        self._interrupts = interrupts

    def answer(self, request: Prompt | BadLine) -> dict[str, Any]:
        """The output record for `request`; raises KeyboardInterrupt on Ctrl-C."""
        from specfit.backend import SpecfitError

        self._interrupts.check()
        if isinstance(request, BadLine):
            return {"id": request.id, "error": request.error}
        try:
            return {"id": request.id, **_record(self._generate(request), str(self._spec))}
        except SpecfitError as error:
            return {"id": request.id, "error": str(error)}

    def _generate(self, prompt: Prompt) -> Report:
        generation = self._engine.generate(
            messages=list(prompt.messages),
            sampling=self._sampling,
            max_tokens=self._max_tokens,
            spec=self._spec,
        )
        self._interrupts.on_interrupt = generation.stop
        for _piece in generation:
            pass
        self._interrupts.on_interrupt = None
        self._interrupts.check()
        return generation.report


def _answer_all(requests: list[Prompt | BadLine], worker: _Worker, out: LinesOut) -> int:
    """Answers and writes every request in order; returns how many failed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    failed = 0
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        for request in bar.track(requests):
            record = worker.answer(request)
            out.write(record)
            failed += "error" in record
    return failed


def _record(report: Report, mode: str) -> dict[str, Any]:
    """An answer as the output file has it, less its id."""
    return {
        "text": report.text,
        "finish_reason": report.finish_reason,
        "usage": {
            "prompt_tokens": report.prompt_tokens,
            "completion_tokens": report.completion_tokens,
            "total_tokens": report.prompt_tokens + report.completion_tokens,
        },
        "speculation": {
            "mode": mode,
            "cycles": report.cycles,
            "drafted": report.drafted,
            "accepted": report.accepted,
            "mean_acceptance_length": report.means.mean_acceptance_length,
            "rows_per_cycle": report.means.rows_per_cycle,
        },
    }


def main() -> None:
    """Entry point of `specfit-batch`."""
    run(batch, "specfit-batch")
