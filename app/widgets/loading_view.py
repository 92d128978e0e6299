"""What is seen while the model loads."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import ProgressBar, Static

LOADING = "Loading the model"
MEASURES = "Measuring this machine"


class LoadingView(Vertical):
    """A progress bar below the conversation, and where the model goes. hint: a key, and what it
    does."""

    DEFAULT_CSS = """
    LoadingView {
        height: auto;
        padding: 0 1;
    }
    LoadingView Horizontal {
        height: 1;
    }
    LoadingView Static {
        width: auto;
        max-width: 100%;
        height: 1;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    LoadingView ProgressBar {
        width: 1fr;
        margin: 0 1;
    }
    LoadingView Bar {
        width: 1fr;
    }
    LoadingView #below {
        color: $text-muted;
    }
    """

    def __init__(self, hint: str = "") -> None:
        super().__init__()
        self.hint = hint
        self._told = ("", "", "")
        self._words = Static(LOADING, markup=False)
        self._bar = ProgressBar(total=None, show_eta=False, show_percentage=False)
        self._keys = Static(hint, markup=False, id="keys")
        self._below = Static("", markup=False, id="below")

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self._words
            yield self._bar
            yield self._keys
        yield self._below

    def show(self, fraction: float | None, placed: str = "") -> None:
        """fraction: 0..1; None while nothing can be measured yet. placed: where it goes, in words,
        once that is known."""
        words = LOADING if fraction is None or not _is_loaded(fraction) else MEASURES
        told = (words if fraction is None else f"{words}: {fraction:.0%}", self.hint, placed)
        self._bar.update(total=None if fraction is None else 1.0, progress=fraction or 0)
        if told != self._told:  # laying out takes time, which the machine is measured in
            self._told = told
            for widget, text in zip((self._words, self._keys, self._below), told, strict=True):
                widget.update(text)


def _is_loaded(fraction: float) -> bool:
    from specfit.backend.loading import LOADED  # which is there by now: fractions come from it

    return fraction >= LOADED
