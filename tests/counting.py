"""How much work something is, in calls: the same on every machine, however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Calls:
    """Of functions in Python, and of those in C from there."""

    n: int = 0


@contextmanager
def counted() -> Iterator[Calls]:
    """Counts in this thread, within the block."""
    calls = Calls()

    def seen(_frame: FrameType, event: str, _argument: object) -> None:
        calls.n += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield calls
    finally:
        sys.setprofile(before)
