"""What specfit-report has measured so far: a folder with lines that are only ever added.

`results.jsonl` has a line a visit (a placement loaded once), a line a run (one prompt under one
mode), and lines for llama-bench, for answers of llama-server, which join a round, and for replays.
A process that dies loses at most the line it was writing; a round (all runs of a prompt in a visit)
counts once it is whole.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .entry import AppError, about

if TYPE_CHECKING:
    from specfit.backend import CycleReport, Report

Record = dict[str, Any]
RESULTS, PROFILES, CACHE = "results.jsonl", "profiles", "cache"
# What JSON makes a list of.
BY = "accepted_by"


@dataclass(frozen=True)
class Timed:
    """One run. report: its text is a digest of the tokens. cycles: those that drafted."""

    mode: str
    report: Report
    cycles: Sequence[CycleReport]
    took_s: float

    @property
    def decoded(self) -> int:
        """Tokens after the first, which the prompt paid for."""
        return max(0, self.report.completion_tokens - 1) if self.report.seconds > 0 else 0

    @property
    def whole_s(self) -> float:
        """Of the answer, with all of its prompt, which a round's runs share."""
        return self.report.ttft_ms / 1e3 + self.report.seconds


@dataclass(frozen=True)
class Round:
    """A prompt under some modes, side by side. runs: by mode."""

    placement: str
    kind: str
    prompt: str
    runs: dict[str, Timed]


@dataclass
class Results:
    """All that a folder holds, in the order in which it was measured.

    visits, benches, replays, servers: as they were recorded.
    """

    visits: list[Record] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    benches: list[Record] = field(default_factory=list)
    replays: list[Record] = field(default_factory=list)
    servers: list[Record] = field(default_factory=list)

    def visits_of(self, placement: str) -> list[Record]:
        return [visit for visit in self.visits if visit["placement"] == placement]

    def rounds_of(self, placement: str, kind: str | None = None) -> list[Round]:
        return [
            round_
            for round_ in self.rounds
            if round_.placement == placement and kind in (None, round_.kind)
        ]

    def first_rounds(self, placement: str, kind: str) -> dict[str, Round]:
        """By prompt, in order. What was measured apart from rounds joins these."""
        found: dict[str, Round] = {}
        for round_ in self.rounds_of(placement, kind):
            found.setdefault(round_.prompt, round_)
        return found

    def add(self, record: Record, open_rounds: dict[tuple[str, ...], dict[str, Timed]]) -> None:
        """Takes a line in. open_rounds: runs of rounds that are not whole yet."""
        kind = record["record"]
        if kind == "visit":
            self.visits.append(record)
        elif kind == "bench":
            self.benches.append(record)
        elif kind == "replay":
            self.replays.append(record)
        elif kind == "server":
            rounds = self.first_rounds(record["placement"], record["kind"])
            rounds[record["prompt"]].runs[record["mode"]] = timed_of(record)
            self.servers.append(record)
        elif kind == "run":
            key = tuple(str(record[part]) for part in ("placement", "visit", "kind", "prompt"))
            runs = open_rounds.setdefault(key, {})
            timed = timed_of(record)
            runs[timed.mode] = timed
            if len(runs) == record["of"]:
                self.rounds.append(Round(record["placement"], record["kind"], key[3], runs))
                del open_rounds[key]


class Store:
    """The folder's files, within its `with` block for one process at a time.

    Raises AppError, naming the file, for what cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / RESULTS
        with about(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with about(self.path):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise AppError(f"{folder} is in use by another specfit-report") from error
        self.results = Results()
        self._open_rounds: dict[tuple[str, ...], dict[str, Timed]] = {}
        self._read()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def add(self, record: Record) -> None:
        """Takes a line in, on disk before it returns."""
        line = json.dumps(record).encode("ascii") + b"\n"
        with about(self.path):
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            os.fsync(self._fd)
        self.results.add(record, self._open_rounds)

    def profile_path(self, placement: str) -> Path:
        return self.folder / PROFILES / f"{placement}.json"

    def cache_of(self, placement: str) -> Path:
        """Measured costs and learned beliefs of a placement. Its own, so that none has learned from
        another's answers to the same prompts."""
        return (self.folder / CACHE / placement).resolve()

    def _read(self) -> None:
        with about(self.path):
            data = self.path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):  # the line that a dying process was writing
                os.ftruncate(self._fd, whole)
        for number, line in enumerate(data[:whole].splitlines(), 1):
            try:
                self.results.add(json.loads(line), self._open_rounds)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise AppError(f"{self.path}, line {number}, is no result of a report") from error


def record_of(timed: Timed) -> Record:
    """A run as a line, its cycles by column."""
    return {
        "record": "run",
        "mode": timed.mode,
        "took_s": round(timed.took_s, 3),
        "report": _short(asdict(timed.report)),
        "cycles": dict(_columns(timed.cycles)),
    }


def timed_of(record: Record) -> Timed:
    """Raises KeyError, TypeError or AttributeError for what `record_of` does not write."""
    from specfit.backend import CycleMeans, CycleReport, Report

    report = dict(record["report"])
    columns = record["cycles"]
    if BY in report:  # newer than the first results
        columns = {**columns, BY: map(tuple, columns.get(BY, ()))}
        report[BY] = tuple(report[BY])
    cycles = [
        CycleReport(**dict(zip(columns, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]
    means = CycleMeans(**report.pop("means"))
    return Timed(record["mode"], Report(**report, means=means), cycles, record["took_s"])


def _columns(cycles: Sequence[CycleReport]) -> Iterator[tuple[str, list[Any]]]:
    if cycles:
        for one in fields(cycles[0]):
            yield one.name, [_short(getattr(cycle, one.name)) for cycle in cycles]


def _short(value: Any) -> Any:
    """With floats of six digits: no measurement of ours is that exact."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value
