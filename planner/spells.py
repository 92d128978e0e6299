"""Spells of plain cycles amid drafts, to see what one takes.

What drafts gain is counted in plain cycles. Where every cycle drafts, none of these is seen, and
what one takes is inferred from what drafted ones do: by a table that has it too dear, drafts would
go on at a loss and nobody notice. So after some time of drafting a few cycles are plain.
"""

from __future__ import annotations

# Cycles of a spell: the first two are behind decodes of other sizes, the rest are learned from
# together. Each is thought to lose at least so much of a plain one.
SPELL, LEAST_LOSS = 5, 1 / 8
# Of the time, what spells may lose; and a drafted cycle's weight in the mean of their gain.
SHARE, WEIGHT = 1 / 200, 1 / 16


class PlainSpells:
    def __init__(self) -> None:
        self._left = self._plain = 0  # cycles of the spell; plain ones in a row
        self._gain_ms = self._drafting_ms = 0.0  # of a drafted cycle; of all since there was a run

    @property
    def on(self) -> bool:
        """Whether the coming cycle is to be plain, whatever drafts promise."""
        return self._left > 0

    def passed_plain(self) -> None:
        """A cycle verified no draft."""
        self._left = max(0, self._left - 1)
        self._plain += 1
        if self._plain >= SPELL:
            self._drafting_ms = 0.0

    def passed(self, ms: float, gain_ms: float, plain_ms: float, around_ms: float) -> None:
        """A cycle with drafts took `ms`, which is `gain_ms` less than plain ones, of `plain_ms`
        each, would have taken. around_ms: what switching there and back takes."""
        self._plain = 0
        self._drafting_ms += ms
        self._gain_ms += WEIGHT * (gain_ms - self._gain_ms)
        loss_ms = SPELL * max(self._gain_ms, LEAST_LOSS * plain_ms) + around_ms
        if SHARE * self._drafting_ms > loss_ms:
            self._left, self._drafting_ms = SPELL, 0.0
