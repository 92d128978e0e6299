"""Results in a file whose old content lasts until the new one is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .entry import AppError, about

replaced_option = click.option(
    "-o",
    "--output",
    "out",
    metavar="OUT.gguf",
    type=click.Path(path_type=Path),
    required=True,
    help="File to write; an existing GGUF file is replaced.",
)


def check_replaceable(path: Path) -> None:
    """Raises AppError if no GGUF file can take the place of `path`: another takes it by its name,
    so it must not be a device."""
    if path.is_dir():
        raise AppError(f"{path} is a folder; give the name of a file")
    if path.exists() and not path.is_file():
        raise AppError(f"{path} is no file, and would be replaced by one; give another name")
    check_writable(path)
    refuse_foreign(path, b"GGUF")


def refuse_foreign(path: Path, begins: bytes) -> None:
    """Raises AppError if a file is there that does not begin as those do which may be replaced."""
    if path.is_file():
        with about(path), path.open("rb") as file:
            found = file.read(len(begins))
        if found and found != begins:
            raise AppError(f"{path} holds something else already; give another name, or remove it")


def check_writable(path: Path) -> None:
    """Raises AppError if no file can be made beside or at `path`."""
    if path == Path("-"):
        raise AppError("results do not go to standard output; give the name of a file")
    with about(path):
        if path.exists():
            path.open("ab").close()
        else:
            path.open("xb").close()
            path.unlink()


def refuse_overwriting(inputs: Sequence[Path | str], outputs: Sequence[Path | None]) -> None:
    """Raises AppError if an output is an input, or two outputs are one file."""
    taken = {_identity(Path(path)) for path in inputs}
    for path in outputs:
        if path is not None and (path.is_file() or not path.exists()):
            if _identity(path) in taken:
                raise AppError(f"{path} is named twice: it would be overwritten")
            taken.add(_identity(path))


def _identity(path: Path) -> object:
    """The same for all names of a file."""
    try:
        stat = path.stat()
        return stat.st_dev, stat.st_ino
    except OSError:
        return path.resolve()


def write_json(path: Path, record: dict[str, Any]) -> None:
    write_text(path, json.dumps(record, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes `text`; a write that fails leaves an older file as it was."""
    with about(path):
        if path.exists() and not path.is_file():  # a pipe or a device
            path.write_text(text, encoding="utf-8")
            return
        part = path.with_name(f"{path.name}.part")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
