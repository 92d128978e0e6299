"""What ends the chat when its terminal goes away and nobody tells it.

A terminal that closes tells the leader of its session, which passes it on if it is a shell; `make`,
as the command of a window, waits for its child instead. Textual then reads the end of its input for
ever, and waits for a writer that has died. What was said is on disk all the while, so the process
ends as the signal would have ended it.
"""

from __future__ import annotations

import os
import select
import signal
import threading

STDIN, HUNG_UP = 0, 128 + signal.SIGHUP


def leave_with_terminal(fd: int) -> None:
    """Ends the process, without a word, once the terminal `fd` is gone; nothing for what is none,
    or where the system cannot wait for that (macOS)."""
    if os.isatty(fd) and hasattr(select, "poll"):
        threading.Thread(target=_watch, args=(fd,), daemon=True).start()


def _watch(fd: int) -> None:
    waiting = select.poll()
    waiting.register(fd, 0)  # an end is told unasked
    for _, event in waiting.poll():
        if event & select.POLLHUP:
            os._exit(HUNG_UP)
