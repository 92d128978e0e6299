"""How every command starts and ends: one sentence on stderr for what the user can put right.

Exit codes: 0 done, 2 something the user can put right, 130 interrupted, 141 the reader of our
output went away. Anything else is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from .plain_text import shown
from .start import unimported

USER_ERROR = 2
INTERRUPTED = 128 + signal.SIGINT
READER_GONE = 128 + 13  # SIGPIPE


class AppError(Exception):
    """What the user asked for cannot be done; the message says why, in one sentence."""


def run(command: click.Command, name: str) -> NoReturn:
    """Runs `command` with the process's arguments and exits with its code.

    Not by `command.main`, which would answer interrupts and closed pipes in its own way.
    """
    code: int | None
    _ready_streams()
    try:
        with command.make_context(
            name, sys.argv[1:], default_map=_settings_for(command, name)
        ) as context:
            code = command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as leaving:  # after --help
        code = leaving.exit_code
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            say("")  # closes the line that the terminal wrote ^C on
        code = INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        code = READER_GONE
    except Exception as error:
        sentence = user_sentence(error)
        if sentence is None:
            raise
        say(f"{name}: {shown(sentence)}")  # files that are no good have a say in it
        code = USER_ERROR
    sys.exit(code or 0)


def _settings_for(command: click.Command, name: str) -> dict[str, Any]:
    """Defaults of a command's options, from the user's settings; --help needs none, and the doctor
    is to say what is wrong with them."""
    if name == "specfit-doctor" or {"-h", "--help"} & set(sys.argv[1:]):
        return {}
    from .settings import read_settings, settings_path

    return read_settings(settings_path()).options(name.removeprefix("specfit-"), command)


def user_sentence(error: BaseException) -> str | None:
    """What to tell the user about `error`; None if it is not something that they can put right."""
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, UnicodeEncodeError):
        return "the text given is not valid UTF-8; write it in UTF-8, or set LC_ALL=C.UTF-8"
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return f"{error.filename}: {reason}" if error.filename is not None else reason
    if isinstance(error, ImportError):
        return unimported(error)
    if isinstance(error, (AppError, *_engine_errors())):
        return " ".join(str(error).split())
    return None


@contextmanager
def about(what: str | Path) -> Iterator[None]:
    """Names `what` in an OSError that comes out of the block; a closed pipe stays itself."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise AppError(f"{what}: {error.strerror or error}") from error


def say(text: str) -> None:
    """A line for the user on stderr, never an error of its own."""
    with suppress(OSError):  # nobody may be listening, and there is nobody else to tell
        click.echo(text, err=True)


def _engine_errors() -> tuple[type[BaseException], ...]:
    """The engine's error types, if it was loaded at all: importing it takes a second."""
    known = (("specfit.backend", "SpecfitError"), ("specfit.models", "ModelFileError"))
    return tuple(
        getattr(sys.modules[module], name)
        for module, name in known
        if hasattr(sys.modules.get(module), name)
    )


def _ready_streams() -> None:
    """Streams that are always there and take any text.

    One that is closed becomes /dev/null, before a file of ours takes its number. What an output's
    encoding lacks becomes "?".
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def nobody_listens() -> bool:
    """Whether stdout was closed when the program began."""
    return sys.stdout.name == os.devnull


def _drop_stdout() -> None:
    """Points stdout at nothing, so that the interpreter's last flush does not complain."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
