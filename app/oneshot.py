"""One question, one answer on stdout, without the chat."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .entry import say
from .interrupts import Interrupts
from .plain_text import shown

if TYPE_CHECKING:
    from specfit.backend import Generation, Report


def print_answer(generation: Generation, interrupts: Interrupts) -> Report:
    """Streams the answer to stdout and ends it with a newline.

    On a terminal control characters are shown instead of obeyed; a file or a pipe gets the text
    as it is. Ctrl-C ends the answer after the present cycle and raises KeyboardInterrupt. That the
    context was full is said on stderr.
    """
    interrupts.on_interrupt = generation.stop
    on_terminal = sys.stdout.isatty()
    last = ""
    for piece in generation:
        last = piece or last
        sys.stdout.write(shown(piece) if on_terminal else piece)
        sys.stdout.flush()
    if not last.endswith("\n"):
        sys.stdout.write("\n")
        sys.stdout.flush()
    interrupts.on_interrupt = None
    interrupts.check()
    if generation.filled_context:
        say("The answer was cut off where the context ends; -c makes it longer.")
    return generation.report
