"""How far a batch is: a bar for people, lines of JSON for scripts, both on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task
from rich.text import Text

from .entry import say

# Seconds between two lines of JSON.
EVERY = 1.0


@dataclass
class Counts:
    """Lines and tokens. skipped: lines that an earlier run did. running: tells the tokens of the
    answers that are not finished."""

    total: int
    skipped: int = 0
    done: int = 0
    failed: int = 0
    tokens: int = 0
    running: Callable[[], int] = lambda: 0
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def begin(self, running: Callable[[], int]) -> None:
        """Time counts from here."""
        self.running, self.began = running, self.clock()

    def summary(self) -> dict[str, Any]:
        """Of a run that is over."""
        counts = {"answered": self.done - self.failed, "failed": self.failed}
        counts |= {"skipped": self.skipped, "lines": self.total, "tokens": self.tokens}
        return {**counts, "seconds": round(self.clock() - self.began, 1)}

    @property
    def generated(self) -> int:
        return self.tokens + self.running()

    @property
    def tokens_per_second(self) -> float:
        elapsed = self.clock() - self.began
        return self.generated / elapsed if elapsed > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Until the last line, at this run's lines a second; None before the first one."""
        if not self.done:
            return None
        left = self.total - self.skipped - self.done
        return left * (self.clock() - self.began) / self.done

    def as_json(self) -> str:
        eta = self.eta_seconds
        return json.dumps(
            {
                "done": self.done,
                "failed": self.failed,
                "skipped": self.skipped,
                "total": self.total,
                "tokens": self.generated,
                "tokens_per_second": round(self.tokens_per_second, 2),
                "eta_seconds": None if eta is None else round(eta, 1),
            }
        )


class _Rate(ProgressColumn):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    def render(self, task: Task) -> Text:
        counts = self._counts
        failed = f", {counts.failed} failed" if counts.failed else ""
        eta = counts.eta_seconds
        left = "" if eta is None else f", {in_words(eta)} left"
        return Text(f"{counts.tokens_per_second:.1f} tokens/s{left}{failed}")


def in_words(seconds: float) -> str:
    """A time as people say it, in its two largest units."""
    whole = round(seconds)
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for (name, size), (next_name, next_size) in pairwise(units):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {name}" + (f" {rest} {next_name}" if rest else "")
    return f"{whole} s"


@contextmanager
def shown(counts: Counts, *, as_json: bool) -> Iterator[Callable[[], None]]:
    """Shows the counts within the block; yields what to call when they have changed."""
    if as_json:
        said = -EVERY

        def line() -> None:
            nonlocal said
            if (now := counts.clock()) - said >= EVERY:
                said = now
                say(counts.as_json())

        line()
        try:
            yield line
        finally:
            say(counts.as_json())
        return
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), _Rate(counts))
    hidden = not sys.stderr.isatty()
    with Progress(*columns, console=console, disable=hidden, refresh_per_second=2) as bar:
        task = bar.add_task("", total=counts.total, completed=counts.skipped)
        yield lambda: bar.update(task, completed=counts.skipped + counts.done)
