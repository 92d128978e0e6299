"""Whether an answer is worth preparing for drafts.

A head needs the features of every token before its drafts. Having llama.cpp hand them out costs a
little of every cycle, and where a text was decoded without, it must be processed anew. So where
drafts do not pay, an answer is decoded as if there were no head: at llama.cpp's own speed. What
drafts promise is the gain to expect of the first level, in the mean over roots, those counting
nothing behind which none would be made. Trials, which may take a hundredth of the time with the
rule's others, see whether that is still so. Not where there are several lines, since drafts
need all of them prepared: there what promised little in some texts is forgotten after some more.
"""

from __future__ import annotations

from collections.abc import Callable

from .cost import Overheads
from .drafting import DraftingRule

# Cycles of an answer, for want of knowing; and a cycle's weight in the running mean.
ANSWER, WEIGHT = 200, 1 / 64
# Cycles of an answer in which heads draft, if they do in any, at first; and an answer's weight.
DRAFTED, ANSWER_WEIGHT = 20.0, 1 / 4
# How fast several lines that rest are believed again what all that is known promises, by answers.
AGAIN = 1 / 16


class Resting:
    """promise: tells the tokens a cycle that drafts gain with the present number of lines."""

    def __init__(self, overheads: Overheads, promise: Callable[[], float]) -> None:
        self._overheads = overheads
        self._first_promise = promise
        self._promises: dict[int, float] = {}  # by the number of lines
        self.drafted = DRAFTED  # cycles that share what catching up on a prompt takes
        self._drafted = 0  # so far, in this answer

    def learn(self, lines: int, gain: float) -> None:
        """Learns what was expected of the first level behind the roots of a cycle."""
        promise = self._promises.get(lines)
        if promise is not None:
            self._promises[lines] = promise + WEIGHT * (max(0.0, gain) - promise)

    def drafts(self, *, now: bool) -> bool:
        """Notes whether heads draft in a cycle; that is what it returns."""
        self._drafted += now
        return now

    def wakes(self, rule: DraftingRule, lines: int, missing_ms: float, look_ms: float) -> bool:
        """Whether drafts may be wanted in the coming answer, one of so many at a time.

        missing_ms: what it takes to process text anew whose features were not kept. look_ms: to
        draft for the first time behind the prompt.
        """
        if self._drafted:
            # Of several lines answers begin one by one, and each lasts as long as all of these.
            self.drafted += ANSWER_WEIGHT * (lines * self._drafted - self.drafted)
            self._drafted = 0
        if lines not in self._promises:
            self._promises[lines] = self._first_promise()
        features_ms = self._overheads.features_ms
        spared_ms = self._promises[lines] / rule.rate - features_ms
        if ANSWER * spared_ms > missing_ms or not features_ms + missing_ms:
            return True
        if lines == 1:
            return rule.affords(missing_ms + ANSWER * features_ms, look_ms)
        self._promises[lines] += AGAIN * (self._first_promise() - self._promises[lines])
        return False
