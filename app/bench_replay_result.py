"""What a replay found, and its means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specfit.planner.lab import ORACLE
from specfit.planner.replay import ReplayedCycle

from .bench_audit import Predictions
from .bench_residency import PolicyHits


@dataclass(frozen=True)
class Replayed:
    """What a mode made of the trace; means per cycle, times in milliseconds.

    ratio: of tokens per second, to those of the baseline. drafted, observed: shares of all cycles.
    predicted_*, measured_*: over cycles that drafted, unions per layer; None if none did.
    hits, loads: with a cache of experts, the share of uses whose expert was cached, and experts
    uploaded a token; unions are then what is paid for. None without one.
    shape: of `static`, its nodes as paths of ranks among the head's children.
    """

    mode: str
    tokens_per_second: float
    ratio: float
    tokens: int
    cycles: int
    mean_acceptance_length: float
    rows_per_cycle: float
    levels_per_cycle: float
    union_per_layer: float
    drafted: float
    observed: float
    predicted_committed: float | None
    measured_committed: float | None
    predicted_union: float | None
    measured_union: float | None
    predicted_cycle_ms: float | None
    measured_cycle_ms: float | None
    hits: float | None = None
    loads: float | None = None
    shape: tuple[tuple[int, ...], ...] | None = None

    def as_json(self) -> dict[str, Any]:
        optional = ("hits", "loads", "shape")
        return {k: v for k, v in asdict(self).items() if k not in optional or v is not None}


@dataclass(frozen=True)
class ProfileReplay:
    """modes: in the order asked for. parts: specfit with each part off, its ratio being to specfit
    as it is. predictions: of each mode's drafted cycles."""

    profile: str
    modes: tuple[Replayed, ...]
    parts: tuple[Replayed, ...]
    predictions: dict[str, Predictions]


@dataclass(frozen=True)
class TraceReplay:
    """about: of the trace's recording. drafters: that modes could draft by. hits: of policies for a
    cache of experts, if asked for."""

    about: dict[str, object]
    texts: int
    steps: int
    drafters: tuple[str, ...]
    baseline: str
    profiles: tuple[ProfileReplay, ...]
    hits: tuple[PolicyHits, ...] = ()

    def series(self) -> dict[str, Predictions]:
        """Predictions of drafted cycles by profile; by mode if there is but one profile. The
        oracle's are left out: they are made in hindsight."""
        of_all = {
            profile.profile: {k: v for k, v in profile.predictions.items() if k != ORACLE}
            for profile in self.profiles
        }
        if len(of_all) == 1:
            return next(iter(of_all.values()))
        return {
            name: Predictions.together(list(of_one.values()))
            for name, of_one in of_all.items()
            if of_one
        }

    def as_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "profiles": [
                {"profile": p.profile, "modes": [mode.as_json() for mode in p.modes]}
                for p in self.profiles
            ]
        }
        if any(p.parts for p in self.profiles):
            record["ablation"] = [
                {
                    "profile": p.profile,
                    "without": [_renamed(part.as_json()) for part in p.parts],
                }
                for p in self.profiles
            ]
        if self.hits:
            record["hits"] = [asdict(one) for one in self.hits]
        return record | {
            "baseline": self.baseline,
            "drafters": list(self.drafters),
            "texts": self.texts,
            "steps": self.steps,
            "recorded": self.about,
        }


def summarise_replay(mode: str, cycles: Sequence[ReplayedCycle], n_layers: int) -> Replayed:
    """n_layers: those whose experts are counted; 0 for a dense model. The ratio is left at 1."""
    tokens, ms = sum(c.committed for c in cycles), sum(c.ms for c in cycles)
    drafted = [c for c in cycles if c.drafted]
    layers, used = max(n_layers, 1), sum(c.used for c in cycles)

    def mean(values: Sequence[float]) -> float | None:
        return float(np.mean(values)) if values else None

    def over_all(values: Sequence[float]) -> float:
        return float(np.mean(values))

    return Replayed(
        mode=mode,
        tokens_per_second=tokens / ms * 1e3,
        ratio=1.0,
        tokens=tokens,
        cycles=len(cycles),
        mean_acceptance_length=tokens / len(cycles),
        rows_per_cycle=over_all([c.rows for c in cycles]),
        levels_per_cycle=over_all([c.levels for c in cycles]),
        union_per_layer=over_all([c.union for c in cycles]) / layers,
        drafted=len(drafted) / len(cycles),
        observed=over_all([c.observed for c in cycles]),
        predicted_committed=mean([c.predicted_committed for c in drafted]),
        measured_committed=mean([c.committed for c in drafted]),
        predicted_union=mean([c.predicted_union / layers for c in drafted]),
        measured_union=mean([c.union / layers for c in drafted]),
        predicted_cycle_ms=mean([c.predicted_ms for c in drafted]),
        measured_cycle_ms=mean([c.ms for c in drafted]),
        hits=sum(c.hits for c in cycles) / used if used else None,
        loads=sum(c.uploads for c in cycles) / tokens if used else None,
    )


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """Of a part: named by what is switched off, compared with specfit as it is."""
    named = {"part": record.pop("mode"), "tokens_per_second": record.pop("tokens_per_second")}
    return named | {"ratio_to_specfit": record.pop("ratio")} | record
