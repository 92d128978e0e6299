"""What is told where the chat has a defect of its own: where it is, and nothing that was said.

Textual would show the values of all variables, messages among them, in what one is asked to report.
"""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path

from rich.text import Text
from textual.app import App
from textual.worker import WorkerFailed

MOST_PLACES = 12
KEPT = "What was said and what was being written is kept, and there when the chat is opened again."


class TellsDefects(App[None]):
    """Saves what is written, leaves, and tells on stderr what came up."""

    def rescue_unsent(self) -> bool:
        """Saves what is in the input; whether it is kept."""
        raise NotImplementedError

    def _handle_exception(self, error: Exception) -> None:
        self._is_kept = False
        with suppress(Exception):  # whatever else is wrong by now, this one is to be told
            self._is_kept = self.rescue_unsent()
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        error = self._exception
        self.bell()
        if error is not None:
            self._exit_renderables.append(Text(account(error, is_kept=self._is_kept)))
        self._close_messages_no_wait()


def account(error: BaseException, *, is_kept: bool) -> str:
    """The kind of the error and the places in the code; its own words may be somebody's text."""
    if isinstance(error, WorkerFailed):
        error = error.error
    frames = traceback.extract_tb(error.__traceback__)[-MOST_PLACES:]
    places = [f"  {_short(frame.filename)}:{frame.lineno} {frame.name}" for frame in frames]
    told = [
        f"specfit-chat: a defect of SpecFit's own ended the chat ({type(error).__name__}).",
        *([KEPT] if is_kept else []),
        "Please report it in SpecFit's issue tracker, with these lines (no text of yours):",
        *places,
    ]
    return "\n".join(told)


def _short(path: str) -> str:
    """The file without the folders of the machine that it is on."""
    return "/".join(Path(path).parts[-3:])
