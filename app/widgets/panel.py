"""The side panel that shows speculation at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from ..why import why, whys
from .acceptance_bars import AcceptanceBars
from .cycle_plot import CyclePlot
from .draft_tree import DraftTreeView
from .expert_strip import ExpertStrip
from .meters import Meters

if TYPE_CHECKING:
    from specfit.backend.view import CycleView

# What changes faster cannot be read.
DRAWN_PER_S = 4
# Rows below which some parts make room for the tree.
ROOMY = 30
DRAFTS_ANYWAY = "/spec eagle3:31 drafts all the same, to be looked at."
NO_HEAD = "No draft head: nothing is drafted."


class Panel(VerticalScroll, can_focus=False):
    """Feed it with `show` as often as there is news; it draws a few times a second."""

    DEFAULT_CSS = """
    Panel {
        width: 42;
        max-width: 50%;
        height: 1fr;
        padding: 0 1;
        background: $surface;
        scrollbar-size-vertical: 1;
    }
    Panel #why {
        height: 5;
    }
    Panel.-short #why {
        height: 4;
    }
    Panel.-short AcceptanceBars {
        display: none;
    }
    Panel.-short CyclePlot {
        height: 3;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._why = Static("", markup=False, id="why")
        self.tree_view = DraftTreeView()
        self._plot = CyclePlot()
        self._bars = AcceptanceBars()
        self._strip = ExpertStrip()
        self.meters = Meters()
        self._newest: tuple[CycleView, str] | None = None
        self._fresh = False

    def compose(self) -> ComposeResult:
        yield self._why
        yield self.tree_view
        yield self._bars
        yield self._plot
        yield self._strip
        yield self.meters

    def on_mount(self) -> None:
        self.set_interval(1 / DRAWN_PER_S, self._draw)

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height < ROOMY, "-short")

    def show(self, views: Sequence[CycleView], mode: str) -> None:
        """Takes in the cycles since the last call, and only remembers them. mode: as typed."""
        for part in (self.tree_view, self._plot, self._bars, self._strip):
            part.add(views)
        if views:
            self._newest = (views[-1], mode)
            self._fresh = True

    def clear(self, *, drafts: bool = True) -> None:
        """Forgets everything, for another model. drafts: whether it has a head to draft with."""
        self.tree_view.clear("Nothing drafted yet." if drafts else NO_HEAD)
        for part in (self._plot, self._bars, self._strip):
            part.clear()
        self._newest = None
        self._why.update("")

    def _draw(self) -> None:
        """Brings what is new to the screen, if anybody sees it."""
        if not (self._fresh and self.is_on_screen and self._newest is not None):
            return
        self._fresh = False
        view, mode = self._newest
        self._why.update("\n".join(whys(view.reason, mode, view.report.drafted)), layout=False)
        if view.reason.kind != "headless" and not view.report.drafted:
            reason = why(view.reason, mode, 0).removeprefix("no draft: ")
            self.tree_view.explain(f"Nothing drafted yet: {reason}.\n{DRAFTS_ANYWAY}")
        for part in (self.tree_view, self._plot, self._bars, self._strip):
            part.draw()
