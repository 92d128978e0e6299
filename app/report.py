"""specfit-report: what SpecFit brings on this machine, measured cell by cell, as a page."""

from __future__ import annotations

import importlib.util
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from .bench_out import check_writable, refuse_foreign, refuse_overwriting
from .entry import AppError, about, run, say
from .interrupts import Interrupts
from .options import ModelChoice
from .report_plan import (
    BEGINS,
    DEFAULT_MODES,
    Budget,
    Placement,
    Plan,
    default_placements,
    parse_placements,
    parse_report_modes,
    read_kinds,
)
from .report_store import PROFILES, RESULTS, Store

# What writing the page takes, with a picture.
WRITING_S = 10.0
_FILE = click.Path(path_type=Path)
_OPTIONS = [
    click.argument("folder", type=_FILE),
    click.option("-m", "--model", type=_FILE, metavar="FILE",
                 help="GGUF model; without it, the small model that comes with SpecFit."),
    click.option("-md", "--model-draft", type=_FILE, metavar="PATH",
                 help="EAGLE-3 head of that model: a GGUF file, a folder, or a safetensors file."),
    click.option("--prompts", "sources", multiple=True, metavar="KIND=FILE",
                 help="Prompts of a kind, as specfit-batch reads them; may be given several times. "
                 "Without any, nothing is measured and the page is written anew."),
    click.option("--placement", "placements", multiple=True, metavar="NAME=OPTIONS",
                 help="Where the model lies: VARIABLE=VALUE …, then options as specfit-bench takes "
                 "them (-ngl, --n-cpu-moe, -t …), -c for each mode (default: what the longest "
                 "prompt and answer need), and -n; may be given several times. Default on a GPU "
                 "build: experts on the CPU with 16 threads and with 8, half of the layers' "
                 "experts there, streamed, all on the GPU; else: cpu."),
    click.option("--modes", default=DEFAULT_MODES, show_default=True, metavar="MODE,MODE,…",
                 help="Speculation modes, off among them."),
    click.option("-n", "--predict", type=click.IntRange(min=2), metavar="N",
                 help="Tokens of an answer. Default: so many that a prompt under all modes takes "
                 "about 40 seconds, 32 to 128."),
    click.option("--minutes", type=click.FloatRange(min=0), metavar="M",
                 help="Begin nothing that would not end in this time. Default: until every ratio "
                 "to off is known to 0.03, or no prompt is left."),
    click.option("--llama-bench", "bench", type=_FILE, metavar="PATH",
                 help="llama.cpp's llama-bench, to be run in every placement too."),
    click.option("--llama-server", "server", type=_FILE, metavar="PATH",
                 help="llama.cpp's llama-server, to answer some of the prompts in every placement "
                 "with the same head (--spec-type draft-eagle3)."),
    click.option("--trace", "traces", multiple=True, type=_FILE, metavar="FILE",
                 help="A recording of specfit-bench --trace, to be replayed under the costs "
                 "measured in every placement; may be given several times."),
    click.option("--about", "about_path", type=_FILE, metavar="FILE",
                 help="Text on the model for the page, such as what specfit-scale-model printed."),
    click.option("-o", "--output", "out", type=_FILE, default=Path("docs/benchmarks.md"),
                 show_default=True, metavar="PAGE.md",
                 help="The page; with matplotlib, a picture of its name ending in .png beside it."),
]  # fmt: skip


def _report_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        option(command)
    return command


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@_report_options
def report(
    folder: Path,
    model: Path | None,
    model_draft: Path | None,
    sources: tuple[str, ...],
    placements: tuple[str, ...],
    modes: str,
    predict: int | None,
    minutes: float | None,
    bench: Path | None,
    server: Path | None,
    traces: tuple[Path, ...],
    about_path: Path | None,
    out: Path,
) -> None:
    """Measure modes in several placements of a model, and write a page about it.

    FOLDER keeps what was measured: the same command goes on where it was stopped, by Ctrl-C or
    anything else, and the page is written of what there is.
    """
    begun = time.monotonic()
    named = [Path(source.partition("=")[2]) for source in sources]
    inputs = [
        path for path in (model, model_draft, about_path, bench, server, *traces, *named) if path
    ]
    picture = out.with_suffix(".png")
    refuse_overwriting(inputs, [out, picture])
    if out.suffix != ".md":
        raise AppError(f"-o {out}: the page is Markdown; its name must end in .md")
    choice = ModelChoice(model, model_draft, None, False, None, None, None, None)
    kinds = read_kinds(sources)
    if kinds and model is not None and model_draft is None:
        raise AppError(f"-m {model} needs -md, the draft head of that model")
    names = parse_report_modes(modes)
    about_it = ""
    if about_path is not None:
        with about(about_path):
            about_it = about_path.read_text(encoding="utf-8", errors="replace")
    given = parse_placements(placements, choice)
    with about(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    check_writable(out)
    refuse_foreign(out, BEGINS.encode())

    from .report_beside import Beside, gguf_head
    from .report_measure import check_same, measure, settings_of
    from .report_plain import check_llama_bench
    from .report_replay import replay_all, trace_files
    from .report_server import check_llama_server

    if folder.exists() and not folder.is_dir():
        raise AppError(f"{folder} is no folder; name one for the results")
    if bench is not None:
        check_llama_bench(bench)
    if server is not None:
        check_llama_server(server)
    recorded = trace_files(traces)
    plan, beside = Plan((), kinds, names), Beside()
    if kinds:
        plan = Plan(_with_tokens(given or _usual(choice), predict), kinds, names)
        for placement in plan.placements:
            settings_of(placement)
        beside = Beside(bench, None if server is None else (server, gguf_head(choice)))
    elif not (folder / RESULTS).exists():
        raise AppError(f"{folder} holds no results to write of; give --prompts KIND=FILE")
    deadline = None if minutes is None else begun + 60 * minutes - WRITING_S
    budget = Budget(deadline)
    command = _command_line(click.get_current_context().params)
    failed: dict[str, str] = {}
    with Store(folder) as store:
        check_same(plan, store.results)
        if not (kinds or store.results.rounds):
            raise AppError(f"{folder} holds no whole round to write of; give --prompts KIND=FILE")
        try:
            with Interrupts() as interrupts:
                failed = measure(plan, store, beside, command, budget, interrupts)
            measured = dict.fromkeys(visit["placement"] for visit in store.results.visits)
            replay_all(recorded, store, list(measured), command, budget)
        except KeyboardInterrupt:
            say(f"{folder} keeps what was measured; the same command goes on from there")
            raise
        finally:
            written = bool(store.results.visits)
            if written:
                _write(store, about_it, out, picture)
    if kinds and not (store.results.rounds or failed or minutes is None):
        raise AppError(
            f"--minutes {minutes:g} is too short to measure anything in; the same command with "
            "more goes on"
        )
    if written:
        click.echo(f"{out}: written of {len(store.results.rounds)} rounds")
    if failed:
        raise AppError("; ".join(f"{name} was not measured: {why}" for name, why in failed.items()))


def _usual(choice: ModelChoice) -> tuple[Placement, ...]:
    """The default placements for this build of llama.cpp and this model."""
    import psutil

    from specfit.models import bundled_model
    from specfit.models.gguf_info import read_gguf_info

    from .report_process import sees_gpu

    info = read_gguf_info(choice.model or bundled_model())
    try:
        cores = len(psutil.Process().cpu_affinity())
    except (AttributeError, psutil.Error):  # macOS has no affinity
        cores = psutil.cpu_count() or 1
    return parse_placements(default_placements(sees_gpu(), cores, info.n_layers), choice)


def _with_tokens(placements: Sequence[Placement], predict: int | None) -> tuple[Placement, ...]:
    return tuple(replace(one, tokens=one.tokens or predict) for one in placements)


def _command_line(given: Mapping[str, Any]) -> str:
    """The command for the page: files by their names alone, and nothing that changes no figure."""
    words = ["specfit-report", "FOLDER"]
    files = {"-m": "model", "-md": "model_draft", "--llama-bench": "bench"}
    for option, name in (files | {"--llama-server": "server"}).items():
        words += [option, given[name].name] if given[name] is not None else []
    for source in given["sources"]:
        kind, _, path = source.partition("=")
        words += ["--prompts", f"{kind}={Path(path).name}"]
    for placement in given["placements"]:
        words += ["--placement", placement]
    words += ["--modes", given["modes"]] if given["modes"] != DEFAULT_MODES else []
    words += ["-n", str(given["predict"])] if given["predict"] is not None else []
    for trace in given["traces"]:
        words += ["--trace", trace.name]
    return shlex.join(words)


def _write(store: Store, about_it: str, out: Path, picture: Path) -> None:
    """The page of what there is, and where it can be drawn its picture."""
    from .bench_out import write_text
    from .report_page import page, read_profiles

    drawn = False
    if store.results.rounds and importlib.util.find_spec("matplotlib") is not None:
        from .report_picture import draw_report

        draw_report(store.results, picture)
        drawn = True
    profiles = read_profiles(store.folder / PROFILES)
    write_text(out, page(store.results, profiles, about_it, picture.name if drawn else None))


def main() -> None:
    """Entry point of `specfit-report`."""
    run(report, "specfit-report")
