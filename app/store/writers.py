"""Which process writes an answer, and whether it still lives.

A number alone is not enough, since processes' numbers are used again: the time of its start goes
with it.
"""

from __future__ import annotations

import os

# The start is computed from the time of boot, which moves when the clock is set.
SAME_START_S = 5.0


def this_process() -> str:
    import psutil

    return f"{os.getpid()} {psutil.Process().create_time():.0f}"


def is_alive(writer: str | None) -> bool:
    """Whether the process that `this_process` named runs on this machine; one that was killed and
    that its parent has not looked after does not."""
    import psutil

    try:
        pid, started = (writer or "").split()
        found = psutil.Process(int(pid))
        is_it = abs(found.create_time() - float(started)) < SAME_START_S
        return is_it and found.status() != psutil.STATUS_ZOMBIE
    except (ValueError, psutil.Error):
        return False
