"""The picture of a report: predictions of each mode over all placements, and all speeds."""

from __future__ import annotations

from pathlib import Path

from .bench_audit import Predictions
from .bench_plot import Bars, draw
from .report_plan import OFF, PLAIN
from .report_stats import ratio, runs_of
from .report_store import Results
from .report_words import SERVED, modes_of


def draw_report(results: Results, path: Path) -> None:
    """Raises AppError if the file cannot be written."""
    modes = [mode for mode in modes_of(results.rounds) if mode != OFF]
    drafting = [mode for mode in modes if mode not in (PLAIN, *SERVED)]
    series = {
        mode: Predictions.of_reports(
            cycle for run in runs_of(results.rounds, mode) for cycle in run.cycles
        )
        for mode in drafting
    }
    groups = {}
    for name in dict.fromkeys(round_.placement for round_ in results.rounds):
        found = [ratio(results.rounds_of(name), mode, OFF) for mode in modes]
        groups[name] = [0.0 if one is None else one.value for one in found]
    title = f"{results.visits[-1]['settings']['model'][0]} on {results.visits[-1]['machine']}"
    draw(path, title, series, Bars(modes, groups, OFF))
