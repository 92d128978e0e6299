"""How often drafts are accepted, by their depth in the tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from textual.content import Content
from textual.widget import Widget

if TYPE_CHECKING:
    from specfit.backend.view import CycleView

DEEPEST = 16
# Of the text around a bar: " 1 " and " 100% of 1234".
AROUND = 16


class AcceptanceBars(Widget):
    """One bar a depth: of the cycles that verified drafts so deep, those that accepted one."""

    DEFAULT_CSS = """
    AcceptanceBars {
        height: 5;
        border-top: solid $panel;
        border-title-color: $text-muted;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.border_title = "Accepted by depth"
        self._tried = np.zeros(DEEPEST + 1, np.int64)
        self._accepted = np.zeros(DEEPEST + 1, np.int64)

    def add(self, views: Sequence[CycleView]) -> None:
        """Takes in cycles; `draw` brings them to the screen."""
        for view in views:
            if view.report.drafted:
                self._tried[1 : depth_of(view) + 1] += 1
                self._accepted[1 : view.report.accepted + 1] += 1

    def clear(self) -> None:
        self._tried[:] = self._accepted[:] = 0
        self.refresh()

    def draw(self) -> None:
        self.refresh()

    def render(self) -> Content:
        depths = np.flatnonzero(self._tried)[: max(1, self.size.height)].tolist()
        if not depths:
            return Content.styled("No draft verified yet.", "$text-muted")
        parts: list[str | tuple[str, str]] = []
        for depth in depths:
            share = self._accepted[depth] / self._tried[depth]
            bar = bar_of(share, max(4, self.size.width - AROUND))
            parts += [f"{depth:>2} ", (bar, "$primary")]
            parts += [f"{share:>5.0%}", (f" of {self._tried[depth]}\n", "$text-muted")]
        return Content.assemble(*parts).rstrip()


def depth_of(view: CycleView) -> int:
    """How deep the verified part of the tree is, at most DEEPEST."""
    return min(int(view.depths[view.kept].max()), DEEPEST)


def bar_of(share: float, width: int) -> str:
    """A bar of so many cells, the filled part a share of them."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)
