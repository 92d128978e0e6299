"""The numbers of an answer, in the words that all commands use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specfit.backend import Report

GAP = " · "
# Where a report counts what was looked up: the second of the drafters.
LOOKUP = 1


def statistics(report: Report, mode: str) -> str:
    """One line: how fast the answer came, and what a cycle was like (means over its cycles)."""
    means = report.means
    parts = [mode, f"{report.tokens_per_second:.1f} tok/s"]
    if report.cycles:
        parts += [
            f"{means.mean_acceptance_length:.2f} tokens a step (acceptance length)",
            f"{means.rows_per_cycle:.1f} tokens checked in each (rows)",
        ]
        if looked_up := report.accepted_by[LOOKUP]:
            parts.append(f"{looked_up} of {report.accepted} drafts from the text before (n-grams)")
        if means.hit_rate is not None:
            parts.append(f"{means.hit_rate:.0%} of expert uses in the GPU's cache")
        elif (
            means.union_per_layer > 0
        ):  # dense models have no experts; nor does an unobserved answer
            parts.append(f"{means.union_per_layer:.1f} experts a layer (union)")
    if report.completion_tokens:
        parts.append(f"first token in {report.ttft_ms / 1e3:.2f} s")
    if report.reused_tokens:
        parts.append(f"{report.reused_tokens} of {report.prompt_tokens} prompt tokens reused")
    return GAP.join(parts)


def kept_statistics(meta: Mapping[str, Any]) -> str:
    """The same of an answer from the store, as far as it is kept; "" if nothing is."""
    speed, length = meta.get("tokens_per_second"), meta.get("acceptance_length")
    parameters = meta.get("parameters")
    if not isinstance(speed, int | float):
        return ""
    parts = [f"{speed:.1f} tok/s"]
    if isinstance(parameters, dict) and isinstance(parameters.get("spec"), str):
        parts.insert(0, parameters["spec"])
    if isinstance(length, int | float):
        parts.append(f"{length:.2f} tokens a step (acceptance length)")
    return GAP.join(parts)
