"""How good predictions were: what was expected of cycles, held against what came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specfit.planner.replay import ReplayedCycle
from specfit.planner.tree import FloatArray

if TYPE_CHECKING:
    from specfit.backend import CycleReport


@dataclass(frozen=True)
class Predictions:
    """Of cycles that drafted: float64 [n, 2] each, predicted and measured.

    union: mean per layer, of those cycles only whose experts were seen.
    """

    cycle_ms: FloatArray
    committed: FloatArray
    union: FloatArray

    @classmethod
    def of_reports(cls, cycles: Iterable[CycleReport]) -> Predictions:
        drafted = [c for c in cycles if c.drafted]
        return cls(
            _pairs((c.predicted_cycle_ms, c.measured_cycle_ms) for c in drafted),
            _pairs((c.predicted_committed, c.committed) for c in drafted),
            _pairs(
                (c.predicted_union, c.union_per_layer)
                for c in drafted
                if c.union_observed and c.union_per_layer
            ),
        )

    @classmethod
    def of_replayed(cls, cycles: Iterable[ReplayedCycle], n_layers: int) -> Predictions:
        """n_layers: those whose experts are counted; 0 for a dense model."""
        drafted = [c for c in cycles if c.drafted]
        return cls(
            _pairs((c.predicted_ms, c.ms) for c in drafted),
            _pairs((c.predicted_committed, c.committed) for c in drafted),
            _pairs((c.predicted_union, c.union) for c in drafted if n_layers) / max(n_layers, 1),
        )

    @classmethod
    def together(cls, parts: Sequence[Predictions]) -> Predictions:
        """All of `parts`, of which there is at least one."""
        return cls(
            np.concatenate([part.cycle_ms for part in parts]),
            np.concatenate([part.committed for part in parts]),
            np.concatenate([part.union for part in parts]),
        )


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class Audit:
    """Relative errors of predictions; None where there was nothing to measure, as in `Predictions`.

    cycle_ms, committed, union: predicted mean over measured mean, less 1.
    one_cycle_ms: mean of |predicted / measured - 1| of single cycles.
    verify_fit: R2 (adjusted) of verify times fitted by a level per row count, a price of the union,
    and one of the context that each row attends to. cycles: that drafted.
    """

    cycles: int
    cycle_ms: Estimate | None
    one_cycle_ms: Estimate | None
    committed: Estimate | None
    union: Estimate | None
    verify_fit: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def audit(found: Predictions, verify_fit: float | None = None) -> Audit:
    return Audit(
        cycles=len(found.cycle_ms),
        cycle_ms=_bias(found.cycle_ms),
        one_cycle_ms=_deviation(found.cycle_ms),
        committed=_bias(found.committed),
        union=_bias(found.union),
        verify_fit=verify_fit,
    )


def fit_of_verify_ms(cycles: Sequence[CycleReport]) -> float | None:
    """R2, adjusted for the number of parameters, of verify time on rows, union and context.

    Of cycles whose experts were seen; None where there are too few of them to tell.
    """
    seen = [c for c in cycles if c.union_observed]
    rows = np.array([c.decoded for c in seen], np.intp)
    counts, which = np.unique(rows, return_inverse=True)
    parameters = len(counts) + 2
    if len(seen) < 2 * parameters:
        return None
    ms = np.array([c.verify_ms - c.observe_ms for c in seen])
    x = np.zeros((len(seen), parameters))
    x[np.arange(len(seen)), which] = 1.0
    x[:, -2] = [c.union_per_layer for c in seen]
    x[:, -1] = [c.decoded * c.context for c in seen]
    solution = np.linalg.lstsq(x, ms, rcond=None)[0]
    spread = float(np.square(ms - ms.mean()).sum()) / (len(seen) - 1)
    left = float(np.square(ms - x @ solution).sum()) / (len(seen) - parameters)
    return 1 - left / spread if spread > 0 else None


def _bias(pairs: FloatArray) -> Estimate | None:
    """Of a ratio of means: Cochran's standard error."""
    n = len(pairs)
    if n < 2 or pairs[:, 1].mean() <= 0:
        return None
    predicted, measured = pairs.T
    ratio = float(predicted.mean() / measured.mean())
    spread = float((predicted - ratio * measured).std(ddof=1))
    return Estimate(ratio - 1, spread / float(measured.mean()) / n**0.5)


def _deviation(pairs: FloatArray) -> Estimate | None:
    n = len(pairs)
    if n < 2:
        return None
    single = np.abs(pairs[:, 0] / pairs[:, 1] - 1)
    return Estimate(float(single.mean()), float(single.std(ddof=1)) / n**0.5)


def _pairs(values: Iterable[tuple[float, float]]) -> FloatArray:
    return np.array(list(values), np.float64).reshape(-1, 2)
