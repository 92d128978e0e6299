"""What a generation was and what it cost, per cycle and in the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

# Accepted drafts by drafter, as many as the planner's DRAFTERS, whose import would take a moment.
BY_NONE = (0, 0)


@dataclass(frozen=True)
class CycleReport:
    """One cycle; times in milliseconds.

    context: tokens of committed text before it.
    rows: verified tokens, roots included, of which there is one a line. padding: rows decoded
    beside them, since that was cheaper. accepted: drafts committed.
    union_per_layer: mean over layers of the experts that the rows used, layers weighing as much as
    their experts cost; 0 for a dense model; as expected where union_observed is False.
    predicted_union: the same as expected before.
    observe_ms: what reading the experts cost, a part of the measured cycle.
    predicted_cycle_ms: on this machine, whatever profile steered the plan.
    accepted_by: of the accepted drafts, those that each of DRAFTERS named; some were named by both.
    With a cache of experts unions are of what is paid for: missing experts, and as far as that
    costs, every use of them. hits, misses: pairs of a row and an expert. uploaded: bytes, begun to
    be copied into the cache behind it.
    """

    context: int
    rows: int
    accepted: int
    committed: int
    union_per_layer: float
    union_observed: bool
    predicted_union: float
    draft_ms: float
    plan_ms: float
    verify_ms: float
    observe_ms: float
    predicted_cycle_ms: float
    measured_cycle_ms: float
    predicted_committed: float
    lines: int = 1
    accepted_by: tuple[int, ...] = BY_NONE
    hits: int = 0
    misses: int = 0
    uploaded: int = 0
    padding: int = 0

    @property
    def decoded(self) -> int:
        return self.rows + self.padding

    @property
    def drafted(self) -> int:
        return self.rows - self.lines


@dataclass(frozen=True)
class CycleMeans:
    """Means per cycle. union_observed: share of the cycles whose experts were seen."""

    mean_acceptance_length: float = 0.0
    rows_per_cycle: float = 0.0
    union_per_layer: float = 0.0
    union_observed: float = 0.0
    predicted_union: float = 0.0
    draft_ms: float = 0.0
    plan_ms: float = 0.0
    verify_ms: float = 0.0
    observe_ms: float = 0.0
    predicted_cycle_ms: float = 0.0
    measured_cycle_ms: float = 0.0
    predicted_committed: float = 0.0
    measured_committed: float = 0.0
    hits: float = 0.0
    misses: float = 0.0
    uploaded: float = 0.0
    padding: float = 0.0

    @property
    def hit_rate(self) -> float | None:
        """Of the uses of experts, those that were found in the cache; None without one."""
        uses = self.hits + self.misses
        return self.hits / uses if uses else None


class CycleSums:
    """Running sums over cycles: their means at any moment, for the price of those added since."""

    def __init__(self) -> None:
        self.cycles = self.drafted = self.accepted = 0
        self.accepted_by: tuple[int, ...] = BY_NONE
        self._sums = dict.fromkeys(_AVERAGED, 0.0)

    def add(self, cycles: Sequence[CycleReport]) -> None:
        self.cycles += len(cycles)
        self.drafted += sum(cycle.drafted for cycle in cycles)
        self.accepted += sum(cycle.accepted for cycle in cycles)
        parts = (cycle.accepted_by for cycle in cycles if cycle.accepted)
        self.accepted_by = tuple(map(sum, zip(self.accepted_by, *parts, strict=True)))
        for name in self._sums:
            self._sums[name] += sum(getattr(cycle, name) for cycle in cycles)

    @property
    def means(self) -> CycleMeans:
        if not self.cycles:
            return CycleMeans()
        means = {name: total / self.cycles for name, total in self._sums.items()}
        rows, committed = means.pop("rows"), means.pop("committed")
        return CycleMeans(
            **means,
            mean_acceptance_length=committed,
            rows_per_cycle=rows,
            measured_committed=committed,
        )


# What a cycle's report and the means call by the same name, and two that they do not.
_AVERAGED = (
    *({f.name for f in fields(CycleReport)} & {f.name for f in fields(CycleMeans)}),
    "rows",
    "committed",
)


@dataclass(frozen=True)
class Report:
    """A generation, finished or so far.

    finish_reason: "stop" (end of turn or stop string), "length" or "stopped" (by the user); ""
    while it runs. seconds: decoding only, from the first token to the last. reused_tokens: of the
    prompt, those that were in the cache. accepted_by: as in `CycleReport`.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: float
    seconds: float
    cycles: int
    drafted: int
    accepted: int
    means: CycleMeans
    reused_tokens: int = 0
    accepted_by: tuple[int, ...] = BY_NONE

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first, which the prompt paid for."""
        decoded = self.completion_tokens - 1
        return decoded / self.seconds if decoded > 0 and self.seconds > 0 else 0.0
