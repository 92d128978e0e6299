"""A process for work that may take for ever, or all memory, or crash: templates, grammars.

Nothing in Python can end a computation that goes on within one operation, or take its memory back;
the system can. The process answers one request after the other and is begun anew where one has
ended it. Memory is bounded where the system keeps to that: Linux does, macOS does not.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_CRASH = "ends the process that follows it"


class Ended(Exception):
    """The request has ended the process; the message says how: "takes more than 3 s …"."""


class Confined:
    """The process, which runs `answerer` of a file of this folder; see `confined_process`."""

    def __init__(
        self,
        program: str,
        *arguments: object,
        seconds: int,
        size: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """seconds: of CPU time, for a request. size: bytes of memory. arguments: for `answerer`."""
        self.seconds = seconds
        self._size = size
        self._program = (_HERE / program, *arguments)
        self._environment = environment or {}
        self._process: subprocess.Popen[str] | None = None
        # The chat counts tokens beside its engine.
        self._lock = threading.Lock()
        atexit.register(self.close)

    def start(self) -> None:
        """Begins to begin, which can go on beside other work."""
        with self._lock:
            self._running()

    def ask(self, **request: object) -> dict[str, str]:
        """The answer to a request. Raises Ended."""
        line = json.dumps(request) + "\n"
        with self._lock:
            process = self._running()
            try:
                answer = self._exchanged(process, line)
            except BaseException:  # Ctrl-C: what is still to come would be taken for the next one's
                self._end()
                raise
            if answer is not None:
                return answer
            took_long = self._end(patience=1) == -signal.SIGPROF
            raise Ended(f"takes more than {self.seconds} s of computing" if took_long else _CRASH)

    def close(self) -> None:
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            main, limits = _HERE / "confined_process.py", (self.seconds, self._size)
            command = (sys.executable, "-P", main, *limits, *self._program)
            self._process = subprocess.Popen(
                list(map(str, command)),
                env={**os.environ, **self._environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is not for it
            )
        return self._process

    def _exchanged(self, process: subprocess.Popen[str], line: str) -> dict[str, Any] | None:
        """None if the process has ended."""
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            return None
        answer = process.stdout.readline()
        found: dict[str, Any] | None = json.loads(answer) if answer.endswith("\n") else None
        return found

    def _end(self, patience: float = 0) -> int:
        """Its exit status. patience: seconds for it to end by itself."""
        process, self._process = self._process, None
        if process is None:
            return 0
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        return process.wait()
