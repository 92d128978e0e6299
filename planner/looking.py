"""When the experts of a cycle that nobody counts are worth looking at, which takes time."""

from __future__ import annotations

from .policies import LOOK_EVERY, followed

# Observing experts may take this share of the time; and at first so much, or so many looks.
LOOKING_SHARE = 0.005
FIRST_LOOKS_MS, FIRST_LOOKS = 8.0, 2


class Looking:
    """look_ms: what a look takes, with what it adds to the decodes behind it, but for learning from
    it, which may be more."""

    def __init__(self, look_ms: float) -> None:
        self._look_ms, self._learning_ms = look_ms, 0.0
        self._first_ms = max(FIRST_LOOKS_MS, FIRST_LOOKS * look_ms)
        self._unseen = LOOK_EVERY  # cycles since the last look
        self._time_ms = self._looking_ms = 0.0

    def begins(self) -> bool:
        """Asked in every cycle that may be looked at: whether there is time for it."""
        self._unseen += 1
        looking_ms = self._looking_ms + self._look_ms + self._learning_ms
        return looking_ms <= LOOKING_SHARE * self._time_ms + self._first_ms

    @property
    def is_due(self) -> bool:
        """Whether to look even where nothing new is to be seen."""
        return self._unseen > LOOK_EVERY

    def looked(self) -> None:
        self._unseen = 0
        self._looking_ms += self._look_ms

    def learned(self, ms: float) -> None:
        """What learning from a look took."""
        self._looking_ms += ms
        self._learning_ms = followed(self._learning_ms, ms) if self._learning_ms else ms

    def passed(self, ms: float) -> None:
        """A cycle took so long."""
        self._time_ms += ms
