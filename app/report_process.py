"""The inner process of a visit as its parent sees it: JSON lines there and back, ended in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from .entry import AppError
from .interrupts import Interrupts
from .report_plan import Placement
from .report_store import Record

# A process that was asked to end and does not is ended.
PATIENCE_S = 60.0


class VisitProcess:
    """The inner process of a visit; within its `with` block."""

    def __init__(self, placement: Placement, cache: Path, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "specfit.app.report_visit"],
            env={**os.environ, "XDG_CACHE_HOME": str(cache), **placement.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
        # While it loads there is nothing to lose, and imports would answer with a traceback.
        interrupts.on_interrupt = self._process.kill

    def __enter__(self) -> VisitProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._interrupts.on_interrupt = None
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:  # its end is when it keeps what it has learned
            process.wait(PATIENCE_S if kind in (None, KeyboardInterrupt) else 0)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()
        process.stdout.close()

    def say(self, record: Record) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it will be heard why
            self._process.stdin.write(json.dumps(record) + "\n")
            self._process.stdin.flush()

    def heard(self) -> Record:
        """The next line. Raises AppError with the reason if the process ended, KeyboardInterrupt
        if that was on Ctrl-C."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._interrupts.check()
        record: Record = json.loads(line) if line.endswith("\n") else {}
        self._interrupts.on_interrupt = lambda: self._process.send_signal(signal.SIGINT)
        if "error" in record:
            raise AppError(record["error"])
        if not record:
            raise AppError(f"its process ended with code {self._process.wait()}")
        return record


def sees_gpu() -> bool:
    """Whether this build of llama.cpp can use a GPU that is present. Asked in a process of its own:
    a GPU that was once looked at here would be held all the while."""
    question = "from specfit.backend import library; print(library.supports_gpu())"
    found = subprocess.run([sys.executable, "-c", question], capture_output=True, check=False)
    return found.stdout.split()[-1:] == [b"True"]
