"""What is seen while the model loads."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import ProgressBar, Static


class LoadingView(Vertical):
    """A progress bar in the conversation's place."""

    DEFAULT_CSS = """
    LoadingView {
        height: 1fr;
        align: center middle;
    }
    LoadingView Static, LoadingView ProgressBar {
        width: auto;
    }
    """

    def compose(self) -> ComposeResult:
        yield Static("Loading the model", markup=False)
        yield ProgressBar(total=None, show_eta=False, show_percentage=False)

    def show(self, fraction: float | None) -> None:
        """fraction: 0..1; None while nothing can be measured yet."""
        if fraction is not None:
            self.query_one(ProgressBar).update(total=1.0, progress=fraction)
