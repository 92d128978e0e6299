"""How far a batch is, on stderr: a bar for people, lines for logs, lines of JSON for scripts."""

from __future__ import annotations

import json
import sys
import threading
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

# Seconds between two lines, and between two of JSON.
EVERY, JSON_EVERY = 30.0, 1.0


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

    @property
    def so_far(self) -> str:
        """Lines, and those that failed now, in words."""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.skipped + self.done} of {self.total} lines{failed}"

    @property
    def pace(self) -> str:
        """In words, with the time that is left."""
        eta = self.eta_seconds
        left = f", {in_words(eta)} left" if eta else ""
        return f"{self.tokens_per_second:.1f} tokens/s{left}"

    def in_words(self) -> str:
        return f"{self.so_far}, {self.pace}"

    def in_the_end(self) -> str:
        """The last words of a run."""
        took, rate = in_words(self.clock() - self.began), self.tokens_per_second
        return f"{self.so_far}, {self.generated} tokens in {took}, {rate:.1f} tokens/s"

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
        return Text(f"{counts.pace}{failed}")


def in_words(seconds: float) -> str:
    """A time as people say it, in its two largest units."""
    whole = round(seconds)
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for (name, size), (next_name, next_size) in pairwise(units):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {name}" + (f" {rest} {next_name}" if rest else "")
    return f"{whole} s"


def begin(counts: Counts, *, as_json: bool) -> None:
    """Says what there is to do, before the model is loaded, where there is no bar to show it."""
    if as_json or sys.stderr.isatty():
        return
    left = counts.total - counts.skipped
    before = f"; {counts.skipped} were done before" if counts.skipped else ""
    say(f"{left} {'line' if left == 1 else 'lines'} to answer{before}")


def all_done(counts: Counts, *, as_json: bool) -> None:
    """Says that there is nothing to do."""
    say(counts.as_json() if as_json else f"nothing to do: {counts.so_far} were done before")


@contextmanager
def shown(counts: Counts, *, as_json: bool) -> Iterator[Callable[[], None]]:
    """Shows the counts within the block; yields what to call when they have changed."""
    if as_json:
        say(counts.as_json())
        with _told(JSON_EVERY, counts.as_json, counts.as_json):
            yield lambda: None
        return
    if not sys.stderr.isatty():
        with _told(EVERY, counts.in_words, counts.in_the_end):
            yield lambda: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), _Rate(counts))
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as bar:
        task = bar.add_task("", total=counts.total, completed=counts.skipped)
        yield lambda: bar.update(task, completed=counts.skipped + counts.done)


@contextmanager
def _told(every: float, line: Callable[[], str], last: Callable[[], str]) -> Iterator[None]:
    """Says `line` every so many seconds, however long answers take, and `last` in the end."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(every):
            say(line())

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
        say(last())
