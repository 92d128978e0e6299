"""Ctrl-C that ends work at a clean point.

Python would raise KeyboardInterrupt wherever the main thread happens to be, and inside a callback
from llama.cpp that exception is printed and lost. Instead the first Ctrl-C is noted and the work
asked to stop; a second one, for a call that does not return, raises at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType


class Interrupts:
    """Within its `with` block Ctrl-C sets `pending` and calls `on_interrupt`."""

    def __init__(self) -> None:
        self.pending = False
        self.on_interrupt: Callable[[], None] | None = None

    def __enter__(self) -> Interrupts:
        self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def check(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C was pressed."""
        if self.pending:
            raise KeyboardInterrupt

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.pending:
            raise KeyboardInterrupt
        self.pending = True
        if self.on_interrupt is not None:
            self.on_interrupt()
