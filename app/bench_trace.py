"""specfit-bench --trace: records answers, so that any plan can be tried on them afterwards."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .entry import AppError, about
from .interrupts import Interrupts
from .prompts import Prompt

if TYPE_CHECKING:
    from specfit.backend import Engine, Sampling


@dataclass(frozen=True)
class Recorded:
    """What came into a trace file."""

    texts: int
    steps: int


def record_prompts(
    engine: Engine,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    max_tokens: int | None,
    path: Path,
    interrupts: Interrupts,
) -> Recorded:
    """Records an answer to every prompt, into `path`, whatever was there before.

    Ctrl-C leaves a valid, shorter trace. Raises AppError for a model that cannot be traced
    or a file that cannot be written, KeyboardInterrupt on Ctrl-C.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from specfit.backend.trace_file import TraceWriter
    from specfit.backend.tracing import record
    from specfit.planner.trace import Trace

    from .machine import machine_name

    info = engine.model.info
    if engine.lines[0].drafter is None or (info.n_experts and engine.context.observer is None):
        raise AppError("--trace needs a draft head, and a look at the experts of a model with any")
    limit = engine.ctx if max_tokens is None else max_tokens
    header = Trace(
        n_layers=info.n_layers,
        n_experts=info.n_experts,
        n_used=info.n_experts_used,
        about={
            "model": engine.description,
            "machine": machine_name(),
            "sampling": asdict(sampling),
        },
        texts=(),
    )
    texts = steps = 0
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = sys.stderr.isatty()
    with (
        about(path),
        TraceWriter(path, header) as writer,
        Progress(*columns, console=Console(stderr=True), disable=not shown) as bar,
    ):
        task = bar.add_task("", total=len(prompts) * limit)

        def goes_on() -> bool:
            bar.advance(task)
            return not interrupts.pending

        for number, prompt in enumerate(prompts, 1):
            text = record(engine, str(prompt.id), prompt.messages, sampling, limit, goes_on)
            if text.steps:
                writer.add(text)
                texts, steps = texts + 1, steps + len(text.steps)
            interrupts.check()
            bar.update(task, completed=number * limit)  # an answer may end early
    return Recorded(texts, steps)
