"""Notices when a model has fallen into repeating itself, while its text streams.

A text is in a loop when the same up to MAX_PERIOD units come REPEATS times in a row, word for word,
and are MIN_UNITS together. Tables, code and refrains repeat too, but with something changed each
time, or not as long; patterns of few different units, such as rows of zeros, are given more room.
"""

from __future__ import annotations

import re

import numpy as np

MAX_PERIOD = 200
REPEATS = 4
MIN_UNITS = 120
FEW_UNITS = 8  # different ones
MIN_OF_FEW = 360

# About a token each: a word with the blanks before it (long ones in pieces), a run of signs, or one
# character of a script that is written without blanks.
_UNIT = re.compile(
    r"\s{0,16}(?:[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
    r"|\w{1,8}|[^\w\s]{1,8})|\s{16}"
)


class LoopDetector:
    """Feed it a text as it comes; `looping` says whether it ends in a loop.

    A unit costs one comparison with each of the last MAX_PERIOD, done at once in numpy.
    """

    def __init__(self) -> None:
        periods = np.arange(1, MAX_PERIOD + 1)
        # Units in a row that equal the one a period earlier: one repeat less than the whole loop.
        self._needed = np.maximum(periods * REPEATS, MIN_UNITS) - periods
        self._runs = np.zeros(MAX_PERIOD, np.int64)
        self._last = np.zeros(MAX_PERIOD, np.int64)  # newest first; 0 is no unit
        self._numbers: dict[str, int] = {}
        self._held = ""
        self.looping = False

    def feed(self, text: str) -> bool:
        """Whether the text so far ends in a loop, or did at an earlier call."""
        self._held += text
        found = list(_UNIT.finditer(self._held))
        for match in found[:-1]:  # the last may go on in the next piece
            self._take(self._numbers.setdefault(match.group(), len(self._numbers) + 1))
        if found:
            self._held = self._held[found[-1].start() :]
        return self.looping

    def _take(self, unit: int) -> None:
        self._runs = np.where(self._last == unit, self._runs + 1, 0)
        self._last = np.concatenate(([unit], self._last[:-1]))
        reached = self._runs >= self._needed
        if not self.looping and reached.any():
            period = int(reached.argmax()) + 1
            few = len(set(self._last[:period].tolist())) < FEW_UNITS
            self.looping = not few or int(self._runs[period - 1]) + period >= MIN_OF_FEW
