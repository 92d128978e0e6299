"""What is seen while the model loads."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import ProgressBar, Static

LOADING = "Loading the model"


class LoadingView(Vertical):
    """A progress bar in the conversation's place, and below it how to cancel."""

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

    def __init__(self, hint: str = "") -> None:
        super().__init__()
        self._hint = hint
        self._words = Static(LOADING, markup=False)
        self._bar = ProgressBar(total=None, show_eta=False, show_percentage=False)

    def compose(self) -> ComposeResult:
        yield self._words
        yield self._bar
        yield Static(self._hint, markup=False)

    def show(self, fraction: float | None) -> None:
        """fraction: 0..1; None while nothing can be measured yet."""
        self._words.update(LOADING if fraction is None else f"{LOADING}: {fraction:.0%}")
        self._bar.update(total=None if fraction is None else 1.0, progress=fraction or 0)
