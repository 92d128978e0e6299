"""The jobs of specfit-bench: comparing modes on a loaded model, recording a trace with one, and
replaying a trace, for which no model is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .bench_out import check_writable, write_json
from .entry import AppError
from .interrupts import Interrupts
from .options import ModelChoice, SamplingChoice, parse_spec, token_limit
from .prompts import Prompt, read_prompts

if TYPE_CHECKING:
    from rich.console import Console

    from specfit.backend import Engine, Sampling, Spec

FIXED_SEED = 1
# Columns of the table where nothing says how wide the output may be.
WIDTH_OF_A_FILE = 120


@dataclass(frozen=True)
class Outputs:
    """Where results go besides the terminal."""

    json_path: Path | None
    plot_path: Path | None

    def check(self) -> None:
        """Raises AppError if one cannot be made, before long work."""
        if self.plot_path is not None:
            from .bench_plot import check_plot

            check_plot(self.plot_path)
        for path in (self.json_path, self.plot_path):
            if path is not None:
                check_writable(path)


def compare(
    source: Path,
    specs: list[Spec],
    repeat: int,
    choice: ModelChoice,
    sampling_choice: SamplingChoice,
    predict: int,
    outputs: Outputs,
    *,
    audit: bool,
) -> None:
    """Answers every prompt under every mode and tells what that took."""
    prompts = sound_prompts(source)
    outputs.check()

    from .bench_compare import compared, metadata, one_line
    from .bench_plot import Bars, draw
    from .bench_runs import Runner
    from .bench_table import audit_table, results_table

    drafting = any(spec.drafts for spec in specs)
    with _engine(choice, sampling_choice, drafting=drafting) as (engine, sampling, interrupts):
        runner = Runner(engine, sampling, token_limit(predict), interrupts)
        runner.check_room(prompts)
        runs = runner.compare(prompts, specs, repeat)
        about_it = metadata(engine, choice, sampling, source, len(prompts), predict, repeat)
    found = compared(specs, runs, about_it)
    console = _console()
    title = one_line(about_it)
    console.print(title, markup=False, highlight=False, soft_wrap=True)
    console.print(results_table(found.results, found.baseline))
    if audit:
        console.print(audit_table(found.audits))
    if outputs.json_path is not None:
        write_json(outputs.json_path, found.as_json())
    if outputs.plot_path is not None:
        ratios = [result.ratio or 0.0 for result in found.results]
        bars = Bars([result.mode for result in found.results], {"": ratios}, found.baseline)
        draw(outputs.plot_path, title, found.predictions, bars)


def compare_lines(
    source: Path,
    names: list[str],
    repeat: int,
    choice: ModelChoice,
    sampling_choice: SamplingChoice,
    predict: int,
    outputs: Outputs,
) -> None:
    """Answers all prompts under every mode, as many at once as that says; tells how fast."""
    from .bench_lines import lines_table, parse_lines_modes, run_passes, summarise_passes

    modes = parse_lines_modes(names)
    prompts = sound_prompts(source)
    outputs.check()

    from .bench_compare import metadata, one_line
    from .bench_runs import Runner

    wanted = [mode.lines for mode in modes]
    lines = None if None in wanted else max(lines or 1 for lines in wanted)
    drafting = any(mode.spec.drafts for mode in modes)
    loading = _engine(choice, sampling_choice, drafting=drafting, lines=lines)
    with loading as (engine, sampling, interrupts):
        limit = token_limit(predict)
        Runner(engine, sampling, limit, interrupts).check_room(prompts)
        rounds = run_passes(engine, prompts, modes, sampling, limit, repeat, interrupts)
        about_it = metadata(engine, choice, sampling, source, len(prompts), predict, repeat)
    found = summarise_passes(modes, rounds)
    console = _console()
    console.print(one_line(about_it), markup=False, highlight=False, soft_wrap=True)
    console.print(lines_table(found))
    if outputs.json_path is not None:
        write_json(outputs.json_path, {"modes": [one.as_json() for one in found], **about_it})


def trace(
    source: Path,
    trace_path: Path,
    choice: ModelChoice,
    sampling_choice: SamplingChoice,
    predict: int,
) -> None:
    """Records an answer to every prompt."""
    if predict == 0:
        raise AppError("-n 0 leaves nothing to record")
    prompts = sound_prompts(source)
    if trace_path.is_file() and trace_path.stat().st_size:
        raise AppError(f"{trace_path} is there already; give another name, or remove it")
    check_writable(trace_path)

    from .bench_runs import Runner
    from .bench_trace import record_prompts

    with _engine(choice, sampling_choice, drafting=True) as (engine, sampling, interrupts):
        limit = token_limit(predict)
        Runner(engine, sampling, limit, interrupts).check_room(prompts)
        recorded = record_prompts(engine, prompts, sampling, limit, trace_path, interrupts)
    click.echo(f"{trace_path}: {recorded.steps} tokens of {recorded.texts} answers")


def replay(
    path: Path,
    modes: str | None,
    choice: ModelChoice,
    residency: str | None,
    outputs: Outputs,
    *,
    ablate: bool,
) -> None:
    """Takes modes through a recording, of `choice` by its drafters and under its cost profile.

    Imports no model code: that takes seconds.
    """
    # Workers take a core each; numpy reads this when it is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from .bench_plot import Bars, draw
    from .bench_replay import parse_replay_modes, replay_trace, title_of
    from .bench_replay_table import ablation_table, replay_table
    from .bench_residency import hits_table, parse_shares

    if residency is not None and choice.cost_profile is not None:
        raise AppError("--residency has its own costs; leave --cost-profile out")
    shares = () if residency is None else parse_shares(residency)
    drafters = choice.drafters
    names = parse_replay_modes(None if modes is None else mode_names(modes), drafters)
    outputs.check()
    found = replay_trace(
        path, names, choice.cost_profile, ablate=ablate, shares=shares, drafters=drafters
    )
    console = _console()
    title = title_of(path, found)
    console.print(title, markup=False, highlight=False, soft_wrap=True)
    if found.hits:
        console.print(hits_table(found.hits))
        console.print()
    console.print(replay_table(found))
    if ablate:
        console.print()
        console.print(ablation_table(found))
    if outputs.json_path is not None:
        write_json(outputs.json_path, found.as_json())
    if outputs.plot_path is not None:
        groups = {p.profile: [mode.ratio for mode in p.modes] for p in found.profiles}
        draw(outputs.plot_path, title, found.series(), Bars(names, groups, found.baseline))


def fit(path: Path, choice: ModelChoice) -> None:
    """Learns from a recording what to expect of a pair of models."""
    from specfit.backend.memory import memory_path
    from specfit.models import bundled_head, bundled_model

    from .bench_fit import fit as fitted
    from .bench_fit import quality_table
    from .hub_fetch import fetched

    choice = fetched(choice)
    if (choice.model is None) != (choice.model_draft is None):
        raise AppError("a pair of models is named by -m and -md (or -hf and -hfd) together")
    model, head = choice.model or bundled_model(), choice.model_draft or bundled_head()
    for part in (model, head):
        if not part.exists():
            raise AppError(f"{part} does not exist")
    memory = memory_path(model, head)
    quality = fitted(path, model, memory)
    console = _console()
    console.print(quality_table(quality))
    console.print(f"kept for this pair in {memory}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _engine(
    choice: ModelChoice, sampling_choice: SamplingChoice, *, drafting: bool, lines: int | None = 1
) -> Iterator[tuple[Engine, Sampling, Interrupts]]:
    """A loaded engine, what to sample by, and what notes Ctrl-C."""
    from .loading import loaded_engine

    with (
        Interrupts() as interrupts,
        loaded_engine(choice, interrupts, drafting=drafting, lines=lines) as engine,
    ):
        sampling = sampling_choice.over(engine.recommended_sampling)
        if sampling_choice.seed is None:
            sampling = replace(sampling, seed=FIXED_SEED)
        yield engine, sampling, interrupts


def parse_modes(text: str) -> list[Spec]:
    """The modes of a comma-separated list; raises AppError for one that is unknown."""
    return [parse_spec(name) for name in mode_names(text)]


def mode_names(text: str) -> list[str]:
    """Raises AppError for one that is empty or named twice."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise AppError(f"--modes {text!r} names an empty mode; separate modes by single commas")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise AppError(f"--modes names {twice} twice")
    return names


def mode_and_lines(name: str) -> tuple[str, int]:
    """MODE or MODE@N, N texts at a time; 0 for what is no number."""
    mode, sign, lines = name.partition("@")
    if not sign:
        return mode, 1
    return mode, int(lines) if lines.isascii() and lines.isdigit() and len(lines) < 4 else 0


def sound_prompts(path: Path) -> list[Prompt]:
    """The prompts of `path`; raises AppError if a line is unsound or there is none."""
    lines = read_prompts(path)
    prompts = [line for line in lines if isinstance(line, Prompt)]
    for line in lines:
        if not isinstance(line, Prompt):
            raise AppError(f"{path}: {line.error}")
    if not prompts:
        raise AppError(f"{path} holds no prompts")
    return prompts


def _console() -> Console:
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=WIDTH_OF_A_FILE)
