"""What a comparison of modes found: sums, means and paired ratios out of single runs.

A run is one prompt answered under one mode in one repeat. Modes are compared on the same prompt
and repeat: the ratio of two neighbouring runs is blind to how hard the prompt is and to what else
the machine was doing, and the median of those ratios to the odd disturbance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specfit.backend import CycleMeans, CycleReport, Report


@dataclass(frozen=True)
class Run:
    """One answer. mode: index into the modes compared; prompt, repeat: which pairing it is in;
    cycles: in order."""

    mode: int
    prompt: int
    repeat: int
    report: Report
    cycles: Sequence[CycleReport] = ()


@dataclass(frozen=True)
class ModeResult:
    """All runs of one mode.

    tokens: generated, in all. seconds: decoding only; the first token of each run belongs to the
    prompt, and tokens_per_second leaves it out. ttft_ms: mean time to that first token.
    same_text: share of prompts with the baseline's text. ratio: median over prompts and repeats of
    tokens per second against the baseline's; None if no run decoded anything.
    means: per cycle, over all cycles.
    """

    mode: str
    tokens: int
    seconds: float
    tokens_per_second: float
    ratio: float | None
    same_text: float
    ttft_ms: float
    cycles: int
    means: CycleMeans

    def as_json(self) -> dict[str, Any]:
        record = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "means"}
        return record | asdict(self.means)


def baseline_index(modes: Sequence[str]) -> int:
    """The mode that others are compared with: `off` if it is there, else the first."""
    return modes.index("off") if "off" in modes else 0


def summarise(modes: Sequence[str], runs: Sequence[Run]) -> list[ModeResult]:
    """One result for each of `modes`, in order; every mode must have run on every pairing."""
    base = {(r.prompt, r.repeat): r.report for r in runs if r.mode == baseline_index(modes)}
    return [
        _summarise(mode, [run for run in runs if run.mode == index], base)
        for index, mode in enumerate(modes)
    ]


def _summarise(mode: str, runs: Sequence[Run], base: dict[tuple[int, int], Report]) -> ModeResult:
    reports = [run.report for run in runs]
    seconds = sum(report.seconds for report in reports)
    decoded = sum(report.tokens_per_second * report.seconds for report in reports)
    pairs = [(run.report, base[run.prompt, run.repeat]) for run in runs]
    ratios = [
        mine.tokens_per_second / other.tokens_per_second
        for mine, other in pairs
        if mine.tokens_per_second and other.tokens_per_second
    ]
    return ModeResult(
        mode=mode,
        tokens=sum(report.completion_tokens for report in reports),
        seconds=seconds,
        tokens_per_second=decoded / seconds if seconds else 0.0,
        ratio=median(ratios) if ratios else None,
        same_text=fmean(mine.text == other.text for mine, other in pairs),
        ttft_ms=fmean(report.ttft_ms for report in reports),
        cycles=sum(report.cycles for report in reports),
        means=over_all_cycles(reports),
    )


def over_all_cycles(reports: Sequence[Report]) -> CycleMeans:
    """The means over the cycles of all `reports`, of which there is at least one."""
    from specfit.backend import CycleMeans

    weights = [report.cycles for report in reports]
    if not any(weights):
        return reports[0].means
    return CycleMeans(
        **{
            field.name: fmean([getattr(r.means, field.name) for r in reports], weights)
            for field in fields(CycleMeans)
        }
    )
