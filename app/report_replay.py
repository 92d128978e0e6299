"""Replays of recorded traces under the costs that a report has measured, each done once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specfit.backend.trace_file import read_trace
from specfit.planner.tree import DRAFTERS

from .bench_replay import MODES, replay_trace
from .entry import AppError, say
from .report_plan import Budget, digest
from .report_store import Store


@dataclass(frozen=True)
class TraceFile:
    """size: in bytes, by which a trace that was recorded anew is told."""

    path: Path
    size: int

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".gz").removesuffix(".jsonl")


def trace_files(paths: Sequence[Path]) -> list[TraceFile]:
    """Raises AppError or SpecfitError for one that cannot be read, or two of one name."""
    found = []
    for path in paths:
        read_trace(path)
        found.append(TraceFile(path, path.stat().st_size))
    names = [trace.name for trace in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise AppError(f"--trace names two files called {twice}")
    return found


def replay_all(
    traces: Sequence[TraceFile],
    store: Store,
    placements: Sequence[str],
    command: str,
    budget: Budget,
) -> None:
    """All modes on every trace by all drafters, under every placement's measured costs, into the
    store.

    A replay that would not end in time, as far as one before it tells, is not begun.
    """
    took_s = 0.0
    for trace in traces:
        for placement in placements:
            profile = store.profile_path(placement)
            if not profile.exists():
                continue
            costs = profile.read_text(encoding="utf-8")
            key = digest([trace.name, trace.size, costs, MODES, DRAFTERS])
            if any(one["key"] == key for one in store.results.replays):
                continue
            if not budget.has(took_s):
                return
            begun = budget.clock()
            found = replay_trace(trace.path, MODES, str(profile), ablate=False)
            took_s = budget.clock() - begun
            sampling = found.about.get("sampling")
            store.add(
                {
                    "record": "replay",
                    "key": key,
                    "trace": trace.name,
                    "profile": placement,
                    "texts": found.texts,
                    "steps": found.steps,
                    "temp": float(sampling["temp"]) if isinstance(sampling, dict) else 0.0,
                    "command": command,
                    "modes": [mode.as_json() for mode in found.profiles[0].modes],
                }
            )
            say(f"{trace.name} under {placement}: replayed in {took_s:.0f} s")
