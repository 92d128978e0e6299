"""How often the screen may follow an answer, so that drawing leaves the machine to the model.

Laying out a long answer anew takes tens of milliseconds, in which the thread that generates gets no
turn at Python's lock, and where there are few cores not even one of those.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# Of the time, what the screen may take, as long as nobody waits for it longer than PATIENCE_S.
SHARE, PATIENCE_S = 0.2, 0.3
# How soon Python's lock is handed over. Its 5 ms are most of a cycle of a small model, and the
# thread that generates asks for it several times a cycle (LOG.md).
SWITCH_S = 0.0005


class Pace:
    """Tells a thread whether it may go on to the next update. clock: seconds. used: of those, what
    the thread that asks has worked."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock, self._used = clock, used
        self._before = float("-inf"), 0.0

    def allows(self) -> bool:
        """Whether what came of the update that it last allowed has taken no more than its share."""
        now, used = self._clock(), self._used()
        since, before = self._before
        if now - since < PATIENCE_S and used - before > SHARE * (now - since):
            return False
        self._before = now, used
        return True
