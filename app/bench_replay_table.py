"""A replay as tables of at most 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from .bench_replay_result import ProfileReplay, Replayed, TraceReplay
from .bench_table import headed


def replay_table(found: TraceReplay) -> Table:
    """One row a mode; one profile in detail, of several the throughput of each."""
    if len(found.profiles) == 1:
        return _in_detail(found.profiles[0], found.baseline)
    rows = [profile.modes for profile in found.profiles]
    return _side_by_side(f"against {found.baseline}", found, rows, found.baseline)


def ablation_table(found: TraceReplay) -> Table:
    """One row a part of specfit that was switched off, one column a profile."""
    rows = [profile.parts for profile in found.profiles]
    return _side_by_side("specfit without", found, rows, None)


def _side_by_side(
    heading: str, found: TraceReplay, columns: Sequence[Sequence[Replayed]], baseline: str | None
) -> Table:
    """Ratios; of the baseline its tokens per second."""
    table = headed([heading], [profile.profile for profile in found.profiles])
    for row in zip(*columns, strict=True):
        cells = [
            f"{one.tokens_per_second:.1f}/s" if one.mode == baseline else f"{one.ratio:.3f}x"
            for one in row
        ]
        table.add_row(row[0].mode, *cells)
    return table


def _in_detail(profile: ProfileReplay, baseline: str) -> Table:
    table = headed(
        ["\nmode"],
        (
            "\ntok/s",
            f"vs\n{baseline}",
            "accept.\nlength",
            "\nrows",
            "\nlev.",
            "\nunion",
            "cycles\ndraft.",
            "\nseen",
            "tokens\npred.",
            "\nmeas.",
            "union\npred.",
            "\nmeas.",
            "cycle\npred.",
            "ms\nmeas.",
        ),
    )
    for one in profile.modes:
        table.add_row(
            one.mode,
            f"{one.tokens_per_second:.2f}",
            f"{one.ratio:.3f}x",
            f"{one.mean_acceptance_length:.2f}",
            f"{one.rows_per_cycle:.1f}",
            f"{one.levels_per_cycle:.1f}",
            f"{one.union_per_layer:.1f}",
            f"{one.drafted:.0%}",
            f"{one.observed:.0%}",
            _number(one.predicted_committed, ".2f"),
            _number(one.measured_committed, ".2f"),
            _number(one.predicted_union, ".1f"),
            _number(one.measured_union, ".1f"),
            _number(one.predicted_cycle_ms, ".4g"),
            _number(one.measured_cycle_ms, ".4g"),
        )
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
