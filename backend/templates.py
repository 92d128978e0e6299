"""Chat templates, followed in a process that they cannot leave or fill.

A template is a program that came with a model. Jinja's sandbox keeps it from the machine, but not
from loops and texts without end; against those Jinja, like its kin, advises a process with limits.
Of these, that of memory is kept by Linux and not by macOS.
"""

from __future__ import annotations

import atexit
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import SpecfitError

# Of CPU time, where sound templates take thousandths; bytes of memory; and characters, of which no
# context holds so many.
SECONDS, BYTES, CHARACTERS = 3, 1 << 29, 1 << 24
_PROGRAM = Path(__file__).with_name("template_process.py")


class _Follower:
    """The process, begun anew where a template has ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        # The chat counts tokens beside its engine.
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begins to begin: what takes a tenth of a second can go on beside other work."""
        with self._lock:
            self._running()

    def follow(self, template: str, values: Mapping[str, Any]) -> str:
        """What the template makes of `values`. Raises SpecfitError."""
        request = json.dumps({"template": template, "values": values}) + "\n"
        with self._lock:
            process = self._running()
            try:
                answer = self._exchanged(process, request)
            except BaseException:  # Ctrl-C: what is still to come would be taken for the next one's
                self._end()
                raise
            if answer is None:
                took_long = self._end(patience=1) == -signal.SIGPROF
                reason = f"takes more than {SECONDS} s" if took_long else "ends its process"
                raise SpecfitError(f"the model's chat template {reason} with these messages")
        if "text" not in answer:
            raise SpecfitError(f"the model's chat template {answer['wrong']}")
        return answer["text"]

    def close(self) -> None:
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), *map(str, (SECONDS, BYTES, CHARACTERS))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is not for it
            )
        return self._process

    def _exchanged(self, process: subprocess.Popen[str], request: str) -> dict[str, str] | None:
        """None if the process has ended."""
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except BrokenPipeError:
            return None
        line = process.stdout.readline()
        answer: dict[str, str] | None = json.loads(line) if line.endswith("\n") else None
        return answer

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


_follower = _Follower()
start, follow = _follower.start, _follower.follow
atexit.register(_follower.close)
