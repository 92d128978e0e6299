"""Experts that a cycle uses, by layer, as a strip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from textual.content import Content
from textual.widget import Widget

if TYPE_CHECKING:
    from specfit.backend.view import CycleView

LEVELS = "▁▂▃▄▅▆▇█"
# Weight of a newly observed cycle in the mean.
WEIGHT = 0.1


class ExpertStrip(Widget):
    """A layer is some cells, or a cell some layers where there are many; the first is on the left.

    The lowest bar stands for the layer of fewest experts, the highest for that of most.
    """

    DEFAULT_CSS = """
    ExpertStrip {
        height: 2;
        border-top: solid $panel;
        border-title-color: $text-muted;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.border_title = "Experts a layer"
        self._mean: np.ndarray | None = None  # float64 [layer]
        self._hit_rate: float | None = None

    def add(self, views: Sequence[CycleView]) -> None:
        """Takes in the cycles whose experts were observed; `draw` brings them to the screen."""
        for view in views:
            uses = view.report.hits + view.report.misses
            if uses:
                rate = view.report.hits / uses
                before = rate if self._hit_rate is None else self._hit_rate
                self._hit_rate = before + WEIGHT * (rate - before)
            if view.layers is None or not view.layers.any():
                continue
            if self._mean is None or len(self._mean) != len(view.layers):
                self._mean = view.layers.astype(np.float64)
            self._mean += WEIGHT * (view.layers - self._mean)

    def clear(self) -> None:
        self._mean = self._hit_rate = None
        self.draw()

    def draw(self) -> None:
        self.border_title = "Experts a layer"
        if self._mean is not None:
            low, high, mean = self._mean.min(), self._mean.max(), self._mean.mean()
            # With the cache's hits there is no room for both.
            extremes = f"{low:.0f}-{high:.0f}, " if self._hit_rate is None else ""
            self.border_title += f": {extremes}mean {mean:.1f}"
        if self._hit_rate is not None:
            self.border_title += f", {self._hit_rate:.0%} hits"
        self.refresh()

    def render(self) -> Content:
        if self._mean is None:
            return Content.styled("No experts observed yet.", "$text-muted")
        width = max(1, self.size.width)
        parts = np.array_split(self._mean, min(len(self._mean), width))
        heights = np.array([part.mean() for part in parts])
        spread = heights.max() - heights.min() or 1.0
        levels = np.round((heights - heights.min()) / spread * (len(LEVELS) - 1)).astype(int)
        return Content.styled(
            "".join(LEVELS[level] * (width // len(levels)) for level in levels), "$primary"
        )
