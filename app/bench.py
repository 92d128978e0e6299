"""specfit-bench: what each speculation mode brings, on your prompts and your machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .bench_result import ModeResult, baseline_index, summarise
from .bench_runs import Runner
from .entry import AppError, about, run
from .interrupts import Interrupts
from .options import (
    ModelChoice,
    SamplingChoice,
    model_options,
    parse_spec,
    predict_option,
    sampling_options,
    token_limit,
)
from .prompts import Prompt, read_prompts

if TYPE_CHECKING:
    from specfit.backend import Engine, Sampling, Spec

FIXED_SEED = 1
DEFAULT_MODES = "off,chain:3,eagle3:31,specfit"
# Columns of the table where nothing says how wide the output may be.
WIDTH_OF_A_FILE = 120


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--prompts",
    "source",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Prompts as specfit-batch reads them.",
)
@click.option(
    "--modes",
    default=DEFAULT_MODES,
    show_default=True,
    metavar="MODE,MODE,…",
    help="Speculation modes: off, chain:K, eagle3[:TOTAL[:DEPTH[:K]]], count, specfit[:ratio].",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    metavar="R",
    help="Times that every prompt is answered under every mode. Default: 1.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="Write the results there too; an existing file is replaced.",
)
@model_options
@sampling_options
@predict_option(128, "128")
def bench(
    source: Path,
    modes: str,
    repeat: int,
    json_path: Path | None,
    choice: ModelChoice,
    sampling_choice: SamplingChoice,
    predict: int,
) -> None:
    """Compare speculation modes: every prompt under every mode, in turn, on one loaded model.

    Ratios are medians over prompts and repeats of each run's tokens per second against those of
    off (of the first mode, if off is not among them) on the same prompt in the same repeat. The
    seed is fixed unless -s says otherwise.
    """
    specs = parse_modes(modes)
    prompts = _sound_prompts(source)
    if json_path is not None:
        _check_writable(json_path)

    from rich.console import Console

    from .bench_table import results_table
    from .loading import loaded_engine

    names = [str(spec) for spec in specs]
    drafting = any(spec.drafts for spec in specs)
    with Interrupts() as interrupts, loaded_engine(choice, interrupts, drafting=drafting) as engine:
        sampling = sampling_choice.over(engine.recommended_sampling)
        if sampling_choice.seed is None:
            sampling = replace(sampling, seed=FIXED_SEED)
        runner = Runner(engine, sampling, token_limit(predict), interrupts)
        runner.check_room(prompts)
        runs = runner.compare(prompts, specs, repeat)
        about_it = _metadata(engine, choice, sampling, source, len(prompts), predict, repeat)
    results = summarise(names, runs)
    baseline = names[baseline_index(names)]
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH_OF_A_FILE)
    console.print(_one_line(about_it), markup=False, highlight=False, soft_wrap=True)
    console.print(results_table(results, baseline))
    if json_path is not None:
        _write_json(json_path, results, about_it | {"baseline": baseline})


def parse_modes(text: str) -> list[Spec]:
    """The modes of a comma-separated list; raises SpecfitError for one that is unknown."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise AppError(f"--modes {text!r} names an empty mode; separate modes by single commas")
    return [parse_spec(name) for name in names]


def _sound_prompts(path: Path) -> list[Prompt]:
    """The prompts of `path`; raises AppError if a line is unsound or there is none."""
    lines = read_prompts(path)
    prompts = [line for line in lines if isinstance(line, Prompt)]
    for line in lines:
        if not isinstance(line, Prompt):
            raise AppError(f"{path}: {line.error}")
    if not prompts:
        raise AppError(f"{path} holds no prompts")
    return prompts


def _metadata(
    engine: Engine,
    choice: ModelChoice,
    sampling: Sampling,
    source: Path,
    prompts: int,
    predict: int,
    repeat: int,
) -> dict[str, Any]:
    """What was compared."""
    from .machine import machine_name

    return {
        "machine": machine_name(),
        "model": engine.description,
        "model_file": None if choice.model is None else str(choice.model),
        "cost_profile": choice.cost_profile,
        "sampling": asdict(sampling),
        "prompts_file": str(source),
        "prompts": prompts,
        "predict": predict,
        "repeat": repeat,
    }


def _one_line(about_it: dict[str, Any]) -> str:
    sampling = about_it["sampling"]
    profile = about_it["cost_profile"] or "this machine"
    return (
        f"{about_it['machine']} | {about_it['model']} | {about_it['prompts']} x "
        f"{about_it['prompts_file']}, -n {about_it['predict']}, repeat {about_it['repeat']} | "
        f"temperature {sampling['temp']:g}, seed {sampling['seed']} | costs of {profile}"
    )


def _check_writable(path: Path) -> None:
    """Raises AppError if no file can be made beside or at `path`."""
    with about(path):
        if path.exists():
            path.open("ab").close()
        else:
            path.open("xb").close()
            path.unlink()


def _write_json(path: Path, results: Sequence[ModeResult], about_it: dict[str, Any]) -> None:
    """Writes the results; a write that fails leaves an older file as it was."""
    text = json.dumps({"modes": [r.as_json() for r in results], **about_it}, indent=1) + "\n"
    with about(path):
        if path.exists() and not path.is_file():  # a pipe or a device
            path.write_text(text)
            return
        part = path.with_name(f"{path.name}.part")
        try:
            part.write_text(text)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def main() -> None:
    """Entry point of `specfit-bench`."""
    run(bench, "specfit-bench")
