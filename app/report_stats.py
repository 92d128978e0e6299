"""Speeds of modes against each other, from rounds in which they answered the same prompts.

A mode's speed over some rounds is all their tokens over all their seconds, and over several kinds
of prompts the speed of a text that has as many tokens of each kind. Ratios are of such speeds, over
the rounds in which both modes took part. Their standard errors are the jackknife's: every round is
left out once, kind by kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from specfit.planner.tree import FloatArray

from .bench_audit import Audit, Estimate, Predictions, audit
from .report_store import Round, Timed


def speed(rounds: Sequence[Round], mode: str) -> float | None:
    """Tokens per second; None if nothing was decoded."""
    tables = [_table(kind, mode) for kind in _by_kind(_with(rounds, mode))]
    token_s = _token_s([table.sum(axis=0) for table in tables])
    return 1 / token_s if token_s else None


def ratio(rounds: Sequence[Round], mode: str, base: str) -> Estimate | None:
    """Speed of `mode` against that of `base`; None without a round of both. The error is infinite
    where a kind has a single one."""
    both = [round_ for round_ in _with(rounds, mode, base) if _decoded(round_, mode, base)]
    kinds = _by_kind(both)
    mine, other = [_table(kind, mode) for kind in kinds], [_table(kind, base) for kind in kinds]
    mine_sums, other_sums = [t.sum(axis=0) for t in mine], [t.sum(axis=0) for t in other]
    if not kinds:
        return None
    value = _token_s(other_sums) / _token_s(mine_sums)
    variance = 0.0
    for at, kind in enumerate(kinds):
        n = len(kind)
        if n < 2:
            return Estimate(value, math.inf)
        without = [
            _token_s([*other_sums[:at], other_sums[at] - other[at][i], *other_sums[at + 1 :]])
            / _token_s([*mine_sums[:at], mine_sums[at] - mine[at][i], *mine_sums[at + 1 :]])
            for i in range(n)
        ]
        variance += (n - 1) * float(np.var(without))
    return Estimate(value, variance**0.5)


def doubted(error: float, n: int) -> float:
    """A standard error that was estimated from so few as `n` rounds, so much larger that twice it
    covers as often as twice a well-known one: about as Student's distribution has it."""
    return error * (1 + 6 / (n - 1) ** 2) if n > 1 else math.inf


def times(rounds: Sequence[Round], mode: str) -> int:
    """Rounds in which `mode` took part."""
    return len(_with(rounds, mode))


def runs_of(rounds: Sequence[Round], mode: str) -> list[Timed]:
    return [round_.runs[mode] for round_ in _with(rounds, mode)]


def predicted(cells: Sequence[Sequence[Timed]]) -> Audit:
    """How good predictions were over the runs of one mode in several cells.

    Times are taken relative to their cell's mean cycle, so that a slow placement's cycles weigh no
    more than others'. Cycles of an answer are alike, so means and their errors are of answers.
    """
    found = [
        _scaled([Predictions.of_reports(run.cycles) for run in runs if run.cycles])
        for runs in cells
    ]
    together = [one for cell in found for one in cell]
    if not together:
        return audit(Predictions.of_reports([]))
    whole = Predictions.together(together)
    by_answer = Predictions(
        _sums([one.cycle_ms for one in together]),
        _sums([one.committed for one in together]),
        _sums([one.union for one in together if len(one.union)]),
    )
    means = audit(by_answer)
    return Audit(
        cycles=len(whole.cycle_ms),
        cycle_ms=means.cycle_ms,
        one_cycle_ms=audit(whole).one_cycle_ms,
        committed=means.committed,
        union=means.union,
    )


def _scaled(parts: list[Predictions]) -> list[Predictions]:
    """With cycle times in units of their mean."""
    if not parts:
        return []
    unit = float(np.concatenate([part.cycle_ms for part in parts])[:, 1].mean())
    return [Predictions(part.cycle_ms / unit, part.committed, part.union) for part in parts]


def _sums(parts: Sequence[FloatArray]) -> FloatArray:
    return np.array([part.sum(axis=0) for part in parts]).reshape(-1, 2)


def _with(rounds: Sequence[Round], *modes: str) -> list[Round]:
    return [round_ for round_ in rounds if all(mode in round_.runs for mode in modes)]


def _decoded(round_: Round, *modes: str) -> bool:
    return all(round_.runs[mode].decoded for mode in modes)


def _by_kind(rounds: Sequence[Round]) -> list[list[Round]]:
    ordered = sorted(rounds, key=lambda round_: round_.kind)
    return [list(group) for _, group in groupby(ordered, key=lambda round_: round_.kind)]


def _table(rounds: Sequence[Round], mode: str) -> FloatArray:
    """float64 [round, 2]: tokens decoded, and seconds."""
    runs = [round_.runs[mode] for round_ in rounds]
    return np.array([[run.decoded, run.report.seconds] for run in runs], np.float64)


def _token_s(sums: Sequence[FloatArray]) -> float:
    """Seconds a token, kinds weighing alike; 0 if a kind has no token."""
    if not sums or any(tokens <= 0 for tokens, _ in sums):
        return 0.0
    return float(np.mean([seconds / tokens for tokens, seconds in sums]))
