"""specfit-scale-model: a small model in a larger shape, for what a large one costs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .bench_out import check_replaceable, replaced_option
from .entry import AppError, about, run

if TYPE_CHECKING:
    from rich.progress import Progress

    from specfit.models.scaling.routing import RoutingStats

_PATH = click.Path(path_type=Path)
_SIZE = click.IntRange(min=1)
_PRESETS = ("qwen3-30b-a3b",)
_TYPES = ("F16", "Q8_0", "Q4_K_M")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@replaced_option
@click.option(
    "--source",
    metavar="F16.gguf",
    type=_PATH,
    help="The small model, a qwen3moe. Default: the bundled one.",
)
@click.option("--shape", "preset", type=click.Choice(_PRESETS), help="All sizes of this model.")
@click.option("--layers", type=_SIZE, help="Layers. Sizes not given are the source's own.")
@click.option("--embd", type=_SIZE, help="Width of the hidden state.")
@click.option("--heads", type=_SIZE, help="Attention heads.")
@click.option("--kv-heads", type=_SIZE, help="Key/value heads.")
@click.option("--expert-ff", type=_SIZE, help="Units of an expert.")
@click.option("--vocab", type=_SIZE, help="Tokens.")
@click.option(
    "--type",
    "file_type",
    type=click.Choice(_TYPES),
    default="F16",
    help="How weights are stored. Default: F16.",
)
@click.option(
    "--head",
    metavar="FOLDER",
    type=_PATH,
    help="An EAGLE-3 head of the source, to be scaled with it.",
)
@click.option("--head-out", metavar="FOLDER", type=_PATH, help="Where to write that.")
def scale_model(
    out: Path,
    source: Path | None,
    preset: str | None,
    file_type: str,
    head: Path | None,
    head_out: Path | None,
    **sizes: int | None,
) -> None:
    """Write a small model in a larger shape: its answers stay the same, and cost what a model of
    that shape costs.

    Layers are added that compute but change nothing; their experts are chosen as those of
    Qwen3-30B-A3B are. The same arguments give the same bytes.
    """
    if (head is None) != (head_out is None):
        raise AppError("--head and --head-out go together")

    from specfit.models import bundled_model
    from specfit.models.scaling.head import scaled_head
    from specfit.models.scaling.scale import write_scaled
    from specfit.models.scaling.shape import SHAPES, Shape, changed
    from specfit.models.scaling.source import SourceModel

    check_replaceable(out)
    if head_out is not None and not head_out.parent.is_dir():
        raise AppError(f"{head_out} cannot be made: there is no folder {head_out.parent}")
    model = SourceModel(source or bundled_model())
    shape = changed(SHAPES[preset] if preset else Shape.of(model), sizes)
    if head is not None and head_out is not None and head_out.exists() and head_out.samefile(head):
        raise AppError(f"{head_out} is the head itself; give another folder to write to")
    # Refused before the model, which may take minutes, is written.
    larger_head = None if head is None else scaled_head(model, head, shape)
    with _bar() as bar, about(out):
        task = bar.add_task("", total=None)
        written = write_scaled(
            model,
            out,
            shape,
            file_type,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    click.echo(f"{out}: {written.n_bytes / 1e9:.2f} GB")
    if larger_head is not None and head_out is not None:
        with about(head_out):
            larger_head.write(head_out)
        click.echo(f"{head_out}: its draft head")
    click.echo(routing_table(written.routing, written.silent, model.n_used), nl=False)


def routing_table(routing: Sequence[RoutingStats], silent: Sequence[bool], n_used: int) -> str:
    """How the written layers route: means, and lowest and highest layer."""
    added = [stats for stats, is_added in zip(routing, silent, strict=True) if is_added]
    own = [stats for stats, is_added in zip(routing, silent, strict=True) if not is_added]
    lines = ["experts of 4 tokens | shared by adjacent tokens | that take 90 % of uses\n"]
    groups = (("the source's layers", own), ("added layers", added), ("all", routing))
    for name, layers in groups:
        if layers:
            columns = (
                _spread([stats.union4 for stats in layers]),
                _spread([stats.shared for stats in layers]) + f" of {n_used}",
                _spread([float(stats.covering) for stats in layers]),
            )
            lines.append(f"{name} ({len(layers)}): {' | '.join(columns)}\n")
    return "".join(lines)


def _spread(values: Sequence[float]) -> str:
    mean = sum(values) / len(values)
    return f"{mean:.1f} ({min(values):.1f} to {max(values):.1f})"


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    return Progress(
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )


def main() -> None:
    """Entry point of `specfit-scale-model`."""
    run(scale_model, "specfit-scale-model")
