"""specfit-convert-head: a published draft head as a GGUF file."""

from __future__ import annotations

from pathlib import Path

import click

from .bench_out import check_replaceable, replaced_option
from .entry import AppError, about, run

_PATH = click.Path(path_type=Path)
_TYPES = ("F32", "F16", "Q8_0")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("head", type=_PATH)
@click.option(
    "-m",
    "--model",
    metavar="TARGET.gguf",
    type=_PATH,
    required=True,
    help="The model that the head was made for.",
)
@replaced_option
@click.option(
    "--type",
    "file_type",
    type=click.Choice(_TYPES, case_sensitive=False),
    default="F16",
    help="How matrices are stored. Default: F16.",
)
def convert_head(head: Path, model: Path, out: Path, file_type: str) -> None:
    """Write the EAGLE-3 head in HEAD, a folder as published, as a GGUF file, which -md takes, and
    llama-server for --spec-type draft-eagle3.

    What is given a published head converts it by itself, and keeps the file.
    """
    from specfit.models.convert_head import convert_head as convert
    from specfit.models.gguf_info import read_gguf_info

    check_replaceable(out)
    info = read_gguf_info(model)
    if out.exists() and out.samefile(model):
        raise AppError(f"{out} is the model itself; give another name to write to")
    with about(out):
        convert(head, info, out, file_type)
    click.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    """Entry point of `specfit-convert-head`."""
    run(convert_head, "specfit-convert-head")
