"""Measurements that were never made, for the tests of specfit-report."""

from __future__ import annotations

import sys

from specfit.app.options import ModelChoice
from specfit.app.report_store import Round, Timed
from specfit.backend import CycleMeans, CycleReport, Report

REPORT = (sys.executable, "-c", "from specfit.app.report import main; main()")
BUNDLED = ModelChoice(None, None, None, False, None, None, None, None)
MESSAGES = ({"role": "user", "content": "Why is the sky blue?"},)


def run(mode: str, tokens: int, seconds: float, cycles: list[CycleReport] | None = None) -> Timed:
    means = CycleMeans(1.0, 1.0, measured_cycle_ms=5, verify_ms=4, plan_ms=1, measured_committed=1)
    made = Report("text", "stop", 9, tokens + 1, 1.0, seconds, tokens, 0, 0, means)
    return Timed(mode, made, cycles or [], seconds)


def rounds_of(kind: str, **seconds: list[float]) -> list[Round]:
    """Rounds of 10 decoded tokens; seconds: of each mode, by round."""
    return [
        Round(
            "here",
            kind,
            f"{kind}-{i}",
            {m: run(m, 10, s) for m, s in zip(seconds, all_, strict=True)},
        )
        for i, all_ in enumerate(zip(*seconds.values(), strict=True))
    ]


def cycle(predicted_ms: float, ms: float, committed: int, seen: bool = True) -> CycleReport:
    return CycleReport(
        context=50, rows=3, accepted=committed - 1, committed=committed, union_per_layer=12.0,
        union_observed=seen, predicted_union=11.0, draft_ms=1, plan_ms=1, verify_ms=ms - 2,
        observe_ms=0, predicted_cycle_ms=predicted_ms, measured_cycle_ms=ms,
        predicted_committed=1.5,
    )  # fmt: skip
