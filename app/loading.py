"""Loading the engine from a command line: progress on a terminal, Ctrl-C, notices."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from .entry import say, user_sentence
from .hub_fetch import fetched
from .interrupts import Interrupts
from .options import ModelChoice
from .plan_table import plan_table

if TYPE_CHECKING:
    from specfit.backend import Engine

# How long loading and measuring may take without a word.
MEASURING_S = 20.0
SLOW = (
    "measuring what decodes cost here, as the first start of a model does; where other programs "
    "are at work, fewer threads (-t) make this and everything after it much faster"
)


@contextmanager
def loaded_engine(
    choice: ModelChoice,
    interrupts: Interrupts,
    *,
    drafting: bool,
    lines: int | None = 1,
    steady: bool = False,
) -> Iterator[Engine]:
    """An engine for the block, closed after it.

    drafting: whether any generation will draft. lines: texts at once; None finds out how many.
    steady: it gives the same text to the same prompt. Notices go to stderr.
    What -hf and -hfd name is downloaded first. Raises SpecfitError or ModelFileError if it cannot
    be loaded, AppError if it cannot be had, KeyboardInterrupt on Ctrl-C.
    """
    engine = _load(fetched(choice), interrupts, drafting, lines, steady)
    try:
        with engine:
            for notice in engine.notices:
                say(notice)
            yield engine
            trouble = engine.trouble()
            if trouble is not None:
                say(trouble)
    finally:
        if engine.not_kept:
            say(engine.not_kept)


def _load(
    choice: ModelChoice, interrupts: Interrupts, drafting: bool, lines: int | None, steady: bool
) -> Engine:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("Loading the model"), BarColumn())
    shown = sys.stderr.isatty()
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=None)  # a moving bar, until there is something to measure
        told_at = time.monotonic() + MEASURING_S

        def advance(fraction: float) -> bool:
            nonlocal told_at
            bar.update(task, total=1.0, completed=fraction)
            if LOADED < fraction < 1 and time.monotonic() > told_at:
                told_at = math.inf
                say(SLOW)
            return not interrupts.pending

        options = choice.load_options(drafting=drafting, lines=lines)
        from specfit.backend import Engine
        from specfit.backend.loading import LOADED, plan_load
        from specfit.backend.steady import SteadyEngine, fixed

        options = fixed(options) if steady else options
        kind = SteadyEngine if steady else Engine
        try:
            plan = plan_load(options)
            if plan.machine.gpus or options.vram_budget is not None:
                say(plan_table(plan))
            engine = kind.load(replace(options, plan=plan), progress=advance)
        except Exception as error:
            if user_sentence(error) is not None:
                interrupts.check()  # cancelled by the user: not an error to explain
            raise
    if interrupts.pending:
        engine.close()
        raise KeyboardInterrupt
    return engine
