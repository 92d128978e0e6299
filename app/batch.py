"""specfit-batch: answers to a file of prompts, one JSON line each.

What is written is always whole lines: each answer is one write, synced to the disk, and a write
that fails half way (a full disk) is taken back. The same command goes on where it was stopped.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .batch_choice import BatchChoice
from .batch_parameters import MOST_COMPLETIONS, MOST_LOGPROBS, Parameters
from .entry import AppError, run
from .option_types import MOST_LINES
from .options import (
    NO_LIMIT,
    ModelChoice,
    SamplingChoice,
    model_options,
    parse_spec,
    predict_option,
    sampling_options,
    spec_option,
)
from .prompts import STANDARD_INPUT


class _Lines(click.IntRange):
    """A number of lines; None is "auto"."""

    name = "number"

    def __init__(self) -> None:
        super().__init__(1, MOST_LINES)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if value == "auto" else super().convert(value, param, ctx)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="IN", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "-o",
    "--output",
    metavar="OUT.jsonl",
    type=click.Path(path_type=Path),
    required=True,
    help="File for the answers. One that is there is gone on with: what this model has answered "
    "with these parameters is not answered again.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["specfit", "openai"]),
    default="specfit",
    help="Form of the answers; openai: that of OpenAI's Batch API.",
)
@click.option(
    "--input",
    "kind",
    type=click.Choice(["auto", "json", "text"]),
    default="auto",
    help='Form of the lines. Default: JSON if any of them begins with "{", else text.',
)
@click.option("--system", metavar="TEXT", help="System message of lines that bring none.")
@click.option(
    "--template",
    metavar="TEXT",
    help='Prompt made of a line\'s fields, such as "Translate: {text}"; "{{" is a brace.',
)
@click.option(
    "-np",
    "--parallel",
    type=_Lines(),
    metavar="N|auto",
    default="auto",
    help="Lines answered at once. Default: as many as are fastest here.",
)
@click.option(
    "--deterministic",
    is_flag=True,
    help="The same text, to the byte, in every run on this machine: one line at a time, by a "
    "planner that learns nothing.",
)
@click.option("--retry-errors", is_flag=True, help="Do the lines that failed again.")
@click.option(
    "--completions",
    type=click.IntRange(1, MOST_COMPLETIONS),
    metavar="N",
    default=1,
    help="Answers to every line.",
)
@click.option(
    "--stop",
    multiple=True,
    metavar="TEXT",
    help="Ends an answer before this text; may be given more than once.",
)
@click.option("--grammar", metavar="GBNF", help="Grammar that answers keep to.")
@click.option(
    "--grammar-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The same, from a file.",
)
@click.option("-j", "--json-schema", metavar="SCHEMA", help="JSON schema that answers keep to.")
@click.option(
    "-jf",
    "--json-schema-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The same, from a file.",
)
@click.option(
    "--logprobs",
    type=click.IntRange(0, MOST_LOGPROBS),
    metavar="N",
    help="Tell the log probability of every token, and of the N likeliest beside it.",
)
@click.option(
    "--json-progress",
    is_flag=True,
    help="Progress on stderr as lines of JSON, at most one a second.",
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
    **options: Any,
) -> None:
    """Answer every line of IN ("-": standard input).

    A line is {"id": …, "prompt": "…"}, {"id": …, "messages": [{"role": …, "content": …}, …]}, a
    request of OpenAI's Batch API, or plain text. Its answer goes to OUT.jsonl as {"key", "id",
    "text", "finish_reason", "seed", "usage", "speculation"}, as soon as it is finished. A line that
    fails gives {"key", "id", "error"}; the others are answered all the same, and the exit code
    is 2. What a line says of temperature, top_k, top_p, min_p, seed, max_tokens, stop, n, grammar,
    json_schema, logprobs, top_logprobs and system goes before the options.
    """
    if output == STANDARD_INPUT:
        raise AppError(f"-o {output}: answers go to a file, which a stopped run goes on with")
    wanted = BatchChoice(**options)
    if wanted.deterministic and choice.prompt_cache is not None:
        raise click.UsageError(
            "--deterministic begins from an empty cache; leave --prompt-cache out."
        )
    mode = parse_spec(spec)
    flags = Parameters(
        **asdict(sampling_choice),
        max_tokens=predict,
        stop=wanted.stop,
        n=wanted.completions,
        grammar=wanted.one_grammar,
        top_logprobs=wanted.logprobs,
    )
    found = wanted.reading.lines(source)
    if not found:
        where = "standard input" if source == STANDARD_INPUT else source
        raise AppError(f"{where} holds no line to answer")

    from .batch_work import answer_all

    failed = answer_all(found, source, output, wanted, choice, flags, mode)
    if failed:
        lines = "line" if len(found) == 1 else "lines"
        raise AppError(f'{failed} of {len(found)} {lines} failed; {output} says why under "error"')


def main() -> None:
    """Entry point of `specfit-batch`."""
    run(batch, "specfit-batch")
