"""A chat whose terminal is gone ends, whoever leads its session."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specfit.app.hangup import HUNG_UP

PATIENCE_S = 60.0
pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="its terminals cannot be polled")


@pytest.fixture
def screen() -> Iterator[tuple[int, int]]:
    """The two ends of a terminal."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(theirs)


def test_the_chat_ends_with_its_terminal(screen: tuple[int, int], tmp_path: Path) -> None:
    """Nobody tells it: it leads a session that the terminal is not of."""
    ours, theirs = screen
    home = {"HOME": str(tmp_path), "TERM": "xterm-256color", "PATH": os.environ["PATH"]}
    home |= {name: value for name, value in os.environ.items() if name.startswith("COVERAGE")}
    chat = [sys.executable, "-c", "from specfit.app.chat import main; main()", "-t", "1"]
    process = subprocess.Popen(
        chat, stdin=theirs, stdout=theirs, stderr=theirs, env=home, start_new_session=True
    )
    try:
        shown, until = b"", time.monotonic() + PATIENCE_S
        while b"Write a message" not in shown and time.monotonic() < until:
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 65536)
        assert b"Write a message" in shown
        assert process.poll() is None
        os.close(ours)
        assert process.wait(PATIENCE_S) == HUNG_UP
    finally:
        process.kill()
        process.wait()
