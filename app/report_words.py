"""Who beats whom, in sentences that the measurements give.

An advantage is claimed only where it is more than two standard errors (more of few prompts), and
where specfit loses, its cycles are laid beside the winner's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .bench_audit import Estimate
from .report_plan import OFF, PLAIN, SPECFIT
from .report_server import CHAINS, SERVER, mode_of
from .report_stats import doubted, ratio, runs_of, speed
from .report_store import Record, Round

ERRORS = 2.0
SERVED = [mode_of(chain) for chain in CHAINS]


def modes_of(rounds: Sequence[Round]) -> list[str]:
    """All modes played, plain ones first, the others in the order of the command."""
    widest = max((list(round_.runs) for round_ in rounds), key=len, default=[])
    every = dict.fromkeys([*widest, *(mode for round_ in rounds for mode in round_.runs)])
    first = [mode for mode in (OFF, PLAIN) if mode in every]
    return first + sorted((mode for mode in every if mode not in first), key=_order)


def _order(mode: str) -> tuple[int, str, list[int]]:
    """Chains, trees, planners; each family by its numbers."""
    family, *numbers = mode.split(":")
    rank = {"chain": 0, "eagle3": 1, "count": 2, SPECFIT: 3, SERVER: 5}.get(family, 4)
    return rank, family, [int(number) for number in numbers if number.isdigit()]


def chains_of(rounds: Sequence[Round]) -> list[str]:
    return [mode for mode in modes_of(rounds) if mode.startswith("chain:")]


def served_in(rounds: Sequence[Round]) -> list[str]:
    return [mode for mode in modes_of(rounds) if mode in SERVED]


def others_of(rounds: Sequence[Round]) -> list[str]:
    """Modes that took turns with specfit."""
    apart = (SPECFIT, PLAIN, *SERVED)
    return [mode for mode in modes_of(rounds) if mode not in apart]


def best_of(rounds: Sequence[Round], modes: Sequence[str]) -> str | None:
    """The mode with the best ratio to off; off itself has 1."""
    found = {mode: _against_off(rounds, mode) for mode in modes}
    known = {mode: value for mode, value in found.items() if value is not None}
    return max(known, key=lambda mode: known[mode]) if known else None


def _against_off(rounds: Sequence[Round], mode: str) -> float | None:
    if mode == OFF:
        return 1.0
    found = ratio(rounds, mode, OFF)
    return None if found is None else found.value


def against_others(
    rounds: Sequence[Round], benches: Sequence[Record], placement: str
) -> list[tuple[str | None, Estimate | None]]:
    """specfit over: the best other mode, the best chain, llama-server's best (all named), the two
    trees, off, the bare loop, llama-bench."""
    found: list[tuple[str | None, Estimate | None]] = []
    for candidates in (others_of(rounds), chains_of(rounds), served_in(rounds)):
        best = best_of(rounds, candidates)
        found.append((best, None if best is None else ratio(rounds, SPECFIT, best)))
    for mode in ("eagle3:60", "eagle3:31", OFF, PLAIN):
        found.append((None, ratio(rounds, SPECFIT, mode)))
    found.append((None, _against_bench(rounds, benches, placement)))
    return found


def _against_bench(
    rounds: Sequence[Round], benches: Sequence[Record], placement: str
) -> Estimate | None:
    """Of two measurements that were not paired; the error is llama-bench's and specfit's own,
    which its ratio to off stands for."""
    here = [bench for bench in benches if bench["placement"] == placement]
    mine, spread = speed(rounds, SPECFIT), ratio(rounds, SPECFIT, OFF)
    if not here or mine is None or spread is None:
        return None
    theirs = sum(bench["tokens_per_second"] for bench in here) / len(here)
    noise = (sum(bench["error"] ** 2 for bench in here) ** 0.5) / len(here) / theirs
    value = mine / theirs
    return Estimate(value, value * ((spread.error / spread.value) ** 2 + noise**2) ** 0.5)


def verdicts(placement: str, rounds: Sequence[Round]) -> list[str]:
    """specfit against the best other mode, and where it loses, the cycles of both.

    The best one is chosen by the same figures: of modes that are alike, the luckiest.
    """
    best = best_of(rounds, others_of(rounds))
    found = None if best is None else ratio(rounds, SPECFIT, best)
    if best is None or found is None:
        return [f"`{placement}`: `specfit` was not measured."]
    both = [round_ for round_ in rounds if SPECFIT in round_.runs and best in round_.runs]
    shown = f"{found.value:.3f} ± {found.error:.3f} of `{best}`, the best other mode"
    margin = ERRORS * doubted(found.error, len(both))
    if margin == math.inf:
        return [f"`{placement}`: {shown.replace('inf', '?')}, from too few prompts to tell."]
    if found.value - margin > 1:
        return [f"`{placement}`: `specfit` wins: {shown}."]
    if found.value + margin >= 1:
        return [f"`{placement}`: no difference that we can see: {shown}."]
    cycles = ". ".join(_cycle(both, mode) for mode in (SPECFIT, best))
    return [f"`{placement}`: `specfit` loses: {shown}. {cycles}."]


def _cycle(rounds: Sequence[Round], mode: str) -> str:
    """What the mean cycle gives and takes."""
    from .bench_result import over_all_cycles

    means = over_all_cycles([run.report for run in runs_of(rounds, mode)])
    parts = [
        f"{ms:.3g} {what}"
        for what, ms in (
            ("verifying", means.verify_ms),
            ("drafting", means.draft_ms),
            ("planning", means.plan_ms),
            ("looking at experts", means.observe_ms),
        )
        if ms >= 0.005
    ]
    return (
        f"A cycle of `{mode}` gives {means.measured_committed:.2f} tokens of "
        f"{means.rows_per_cycle:.1f} rows in {means.measured_cycle_ms:.3g} ms ({', '.join(parts)})"
    )
