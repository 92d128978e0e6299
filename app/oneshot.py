"""One question, one answer on stdout, without the chat."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from .entry import say
from .interrupts import Interrupts
from .plain_text import shown
from .thinking import Split, ThinkingSplitter

if TYPE_CHECKING:
    from specfit.backend import Generation, Report


def print_answer(generation: Generation, interrupts: Interrupts) -> Report:
    """Streams the answer to stdout and ends it with a newline; what the model thinks before it
    goes to stderr, if that is a terminal.

    On a terminal control characters are shown instead of obeyed; a file or a pipe gets the text
    as it is. Ctrl-C ends the answer after the present cycle and raises KeyboardInterrupt. That the
    context was full is said on stderr.
    """
    interrupts.on_interrupt = generation.stop
    on_terminal = sys.stdout.isatty()
    splitter = ThinkingSplitter(opened=generation.opens_thinking)
    thinking = answer = ""  # the last of each

    def write(part: Split) -> None:
        nonlocal thinking, answer
        if part.thinking and sys.stderr.isatty():
            click.secho(shown(part.thinking), err=True, nl=False, dim=True)
        if part.answer:
            if thinking and not answer and sys.stderr.isatty():
                say("\n" if not thinking.endswith("\n") else "")
            sys.stdout.write(shown(part.answer) if on_terminal else part.answer)
            sys.stdout.flush()
        thinking, answer = part.thinking or thinking, part.answer or answer

    for piece in generation:
        write(splitter.feed(piece))
    write(splitter.finish())
    if not answer.endswith("\n"):
        sys.stdout.write("\n")
        sys.stdout.flush()
    interrupts.on_interrupt = None
    interrupts.check()
    if thinking and not answer:
        say("The model did not come to an end of its thinking; -n and -c give it more room.")
    if generation.filled_context:
        say("The answer was cut off where the context ends; -c makes it longer.")
    return generation.report
