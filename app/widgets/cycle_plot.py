"""Predicted against measured time of the last cycles, as two strips of one scale."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from textual.content import Content
from textual.widget import Widget

if TYPE_CHECKING:
    from specfit.backend.view import CycleView

CYCLES = 60
# The first predictions are made before the machine has been seen at work.
ENOUGH = 20
LABELS = ("took  ", "pred. ")
# Braille: a cell is two columns of four dots, told from the bottom.
_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))


class CyclePlot(Widget):
    """The cycles on the left are the older ones; a spike beyond most others is cut at the top."""

    DEFAULT_CSS = """
    CyclePlot {
        height: 5;
        border-top: solid $panel;
        border-title-color: $text-muted;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._times: deque[tuple[float, float]] = deque(maxlen=CYCLES)  # measured, predicted

    def add(self, views: Sequence[CycleView]) -> None:
        """Takes in cycles; `draw` brings them to the screen."""
        for view in views:
            report = view.report
            self._times.append((report.measured_cycle_ms, report.predicted_cycle_ms))

    def clear(self) -> None:
        self._times.clear()
        self.draw()

    def draw(self) -> None:
        self.border_title = self._title()
        self.refresh()

    def render(self) -> Content:
        if not self._times:
            return Content.styled("No cycle yet.", "$text-muted")
        height = max(1, self.size.height // 2)
        times = np.array(self._times)[-2 * max(1, self.size.width - len(LABELS[0])) :]
        # Most cycles are told apart, whatever a few of them took.
        top = float(np.quantile(times, 0.95)) * 1.1 or 1.0
        parts: list[str | tuple[str, str]] = []
        for label, values, style in zip(LABELS, times.T, ("$primary", "$secondary"), strict=True):
            for row, bars in enumerate(bars_of(values / top, height)):
                parts.append((label if row == height - 1 else " " * len(label), "$text-muted"))
                parts += [(bars, style), "\n"]
        return Content.assemble(*parts[:-1])

    def _title(self) -> str:
        if not self._times:
            return "Cycle time"
        measured, predicted = np.array(self._times).mean(axis=0)
        if predicted <= 0:
            return f"Cycle {measured:.3g} ms, none predicted"
        if len(self._times) < ENOUGH:
            return f"Cycle {measured:.3g} ms"
        return f"Cycle {measured:.3g} ms, predicted {predicted:.3g} {predicted / measured - 1:+.0%}"


def bars_of(shares: np.ndarray, height: int) -> list[str]:
    """Bars of `shares` [n] of the full height, two a cell, as `height` lines of braille."""
    dots = np.clip(np.round(shares * 4 * height), 1, 4 * height).astype(int)
    lines = []
    for row in reversed(range(height)):
        filled = np.clip(dots - 4 * row, 0, 4)
        cells = [0x2800] * (-(-len(filled) // 2))
        for i, n in enumerate(filled.tolist()):
            cells[i // 2] |= sum(_DOTS[i % 2][:n])
        lines.append("".join(map(chr, cells)))
    return lines
