"""The comparison of modes as a table that fits a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from .bench_result import ModeResult


def results_table(results: Sequence[ModeResult], baseline: str) -> Table:
    """One row a mode. Means per cycle; times in milliseconds."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("\nmode", no_wrap=True)
    for heading in (
        "\ntok/s",
        f"vs\n{baseline}",
        "accept.\nlength",
        "\nrows",
        "\nunion",
        "draft\nms",
        "plan\nms",
        "verify\nms",
        "obs.\nms",
        "cycle\npred.",
        "ms\nmeas.",
        "same\ntext",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(*_row(result))
    return table


def _row(result: ModeResult) -> list[str]:
    means = result.means
    return [
        result.mode,
        f"{result.tokens_per_second:.1f}",
        "-" if result.ratio is None else f"{result.ratio:.2f}x",
        f"{means.mean_acceptance_length:.2f}",
        f"{means.rows_per_cycle:.1f}",
        f"{means.union_per_layer:.1f}" if means.union_per_layer else "-",  # dense, or not observed
        f"{means.draft_ms:.1f}",
        f"{means.plan_ms:.1f}",
        f"{means.verify_ms:.1f}",
        f"{means.observe_ms:.1f}",
        f"{means.predicted_cycle_ms:.1f}",
        f"{means.measured_cycle_ms:.1f}",
        f"{result.same_text:.0%}",
    ]
