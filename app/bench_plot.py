"""Predictions against what came, and the throughput of modes, as a picture."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .bench_audit import Predictions
from .entry import AppError, about

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from specfit.planner import FloatArray

# Bins of equally many cycles, how many these should be at least, and how many cycles are drawn as
# points themselves, a series.
BINS, IN_A_BIN, POINTS = 10, 20, 1500
FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Bars:
    """Throughput against the baseline. groups: one a profile, in the order of `modes`."""

    modes: Sequence[str]
    groups: Mapping[str, Sequence[float]]
    baseline: str


def check_plot(path: Path) -> None:
    """Raises AppError if pictures cannot be drawn here, or none of that name."""
    if importlib.util.find_spec("matplotlib") is None:
        raise AppError("--plot needs matplotlib: .venv/bin/pip install matplotlib")
    if path.suffix.lower() not in FORMATS:
        raise AppError(f"--plot {path}: the name must end in {', '.join(FORMATS)}")


def draw(path: Path, title: str, series: dict[str, Predictions], bars: Bars) -> None:
    """Writes the picture. series: the cycles of each mode or profile.

    Raises AppError if the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Without pyplot, which would look for a display.
    figure = Figure(figsize=(13, 10), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11, wrap=True)
    (first, second), (third, last) = figure.subplots(2, 2)
    _calibration(first, "cycle time, ms", {k: s.cycle_ms for k, s in series.items()}, log=True)
    committed = {k: s.committed for k, s in series.items()}
    _calibration(second, "committed tokens", committed, jitter=0.2)
    _calibration(third, "union of experts per layer", {k: s.union for k, s in series.items()})
    _throughput(last, bars)
    with about(path):
        figure.savefig(path, dpi=110, format=path.suffix[1:].lower())


def _calibration(
    axes: Axes,
    quantity: str,
    series: dict[str, FloatArray],
    *,
    log: bool = False,
    jitter: float = 0.0,
) -> None:
    """Means of bins of cycles whose predictions are alike, with standard errors; the cycles
    themselves, faint; and the line on which predictions are right.

    jitter: by how much to spread points, so that whole numbers show how many they are.
    """
    from matplotlib.ticker import LogFormatter

    rng = np.random.default_rng(0)
    shown = {name: pairs for name, pairs in series.items() if len(pairs) >= 2}
    for colour, (name, pairs) in enumerate(shown.items()):
        some = pairs[:: -(-len(pairs) // POINTS)]
        measured = some[:, 1] + rng.uniform(-jitter, jitter, len(some))
        axes.scatter(
            some[:, 0],
            measured,
            s=5,
            alpha=min(0.5, 200 / len(some)),
            color=f"C{colour}",
            linewidths=0,
            rasterized=True,
        )
        means, errors = binned(pairs)
        axes.errorbar(
            means[:, 0],
            means[:, 1],
            yerr=errors,
            fmt="o-",
            color=f"C{colour}",
            markersize=5,
            linewidth=1,
            capsize=2,
            label=name,
        )
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):  # 20 and not 2 x 10^1
            axis.set_major_formatter(LogFormatter())
            axis.set_minor_formatter(LogFormatter())
    if shown:
        every = np.concatenate(list(shown.values()))
        low, high = float(every[:, 0].min()), float(every[:, 0].max())
        axes.plot([low, high], [low, high], color="black", linewidth=1, linestyle="--", zorder=3)
        # Single cycles may lie far off; the view is on where most are.
        bottom, top = np.quantile(every[:, 1], [0.002, 0.998])
        pad = 0.05 * (max(high, top) - min(low, bottom))
        if not log:
            axes.set_ylim(min(low, bottom) - pad, max(high, top) + pad)
        axes.legend(fontsize=8, loc="upper left", framealpha=0.8)
    else:
        axes.text(0.5, 0.5, "nothing to show", ha="center", transform=axes.transAxes)
    axes.set_xlabel(f"predicted {quantity}")
    axes.set_ylabel(f"measured {quantity}")
    axes.set_title(f"{quantity}: means of bins, with standard errors", fontsize=10)
    axes.grid(alpha=0.3)


def binned(pairs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means float64 [bin, 2] of at most BINS bins of equally many cycles in the order of their
    predictions, and the standard errors [bin] of what was measured. Of 2 cycles and more."""
    order = np.argsort(pairs[:, 0], kind="stable")
    cells = np.array_split(pairs[order], min(BINS, max(1, len(pairs) // IN_A_BIN)))
    means = np.array([cell.mean(axis=0) for cell in cells])
    errors = np.array([cell[:, 1].std(ddof=1) / len(cell) ** 0.5 for cell in cells])
    return means, errors


def _throughput(axes: Axes, bars: Bars) -> None:
    """Bars of every mode, grouped by profile."""
    width, places = 0.84 / len(bars.groups), np.arange(len(bars.modes))
    for number, (name, ratios) in enumerate(bars.groups.items()):
        shift = (number - (len(bars.groups) - 1) / 2) * width
        drawn = axes.bar(places + shift, ratios, width, color=f"C{number}", label=name)
        if len(bars.groups) == 1:
            axes.bar_label(drawn, fmt="%.2f", fontsize=8)
    axes.axhline(1.0, color="black", linewidth=1, linestyle="--")
    axes.set_xticks(places, bars.modes, rotation=35, ha="right", fontsize=8)
    axes.set_ylabel(f"tokens per second, against {bars.baseline}")
    axes.set_title("throughput of modes", fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    if len(bars.groups) > 1:
        axes.set_ylim(top=1.2 * axes.get_ylim()[1])
        axes.legend(fontsize=8, ncols=3, loc="upper center")
