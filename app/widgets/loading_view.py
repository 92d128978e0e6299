"""What is seen while the model loads."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import ProgressBar, Static

LOADING = "Loading the model"


class LoadingView(Vertical):
    """A progress bar in the conversation's place."""

    DEFAULT_CSS = """
    LoadingView {
        height: 1fr;
        align: center middle;
    }
    LoadingView Static, LoadingView ProgressBar {
        width: auto;
        max-width: 100%;
    }
    LoadingView Bar {
        max-width: 100%;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._words = Static(LOADING, markup=False)
        self._bar = ProgressBar(total=None, show_eta=False, show_percentage=False)

    def compose(self) -> ComposeResult:
        yield self._words
        yield self._bar

    def show(self, fraction: float | None) -> None:
        """fraction: 0..1; None while nothing can be measured yet."""
        if fraction is not None:
            self._words.update(f"{LOADING}: {fraction:.0%}")
            self._bar.update(total=1.0, progress=fraction)
