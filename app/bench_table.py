"""The comparison of modes as tables that fit a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from .bench_audit import Audit, Estimate
from .bench_result import ModeResult


def headed(names: Iterable[str], numbers: Iterable[str]) -> Table:
    """An empty table with columns of these headings."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for heading in names:
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def results_table(results: Sequence[ModeResult], baseline: str) -> Table:
    """One row a mode. Means per cycle; times in milliseconds."""
    table = headed(
        ["\nmode"],
        (
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
        ),
    )
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


def audit_table(audits: Mapping[str, Audit]) -> Table:
    """One row a mode: how far predictions were off, with standard errors."""
    table = headed(
        ["\npredictions of"],
        (
            "drafted\ncycles",
            "mean cycle\ntime off by",
            "one cycle's\n|error|",
            "committed\noff by",
            "union\noff by",
            "R² of\nverify",
        ),
    )
    for name, one in audits.items():
        table.add_row(
            name,
            str(one.cycles),
            _estimate(one.cycle_ms, "+"),
            _estimate(one.one_cycle_ms),
            _estimate(one.committed, "+"),
            _estimate(one.union, "+"),
            "-" if one.verify_fit is None else f"{one.verify_fit:.3f}",
        )
    return table


def _estimate(estimate: Estimate | None, sign: str = "") -> str:
    if estimate is None:
        return "-"
    return f"{estimate.value:{sign}.1%} ±{estimate.error:.1%}"
