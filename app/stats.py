"""The numbers of an answer, in the words that all commands use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specfit.backend import Report


def statistics(report: Report, mode: str) -> str:
    """One line: how fast the answer came, and what a cycle was like (means over its cycles)."""
    means = report.means
    parts = [mode, f"{report.tokens_per_second:.1f} tok/s"]
    if report.cycles:
        parts += [
            f"acceptance length {means.mean_acceptance_length:.2f}",
            f"rows {means.rows_per_cycle:.1f}",
        ]
        if means.union_per_layer > 0:  # dense models have no experts; nor does an unobserved answer
            parts.append(f"union {means.union_per_layer:.1f}")
    return " · ".join(parts)
