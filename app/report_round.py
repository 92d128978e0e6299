"""A round of specfit-report: a prompt answered under several modes, which take turns meanwhile.

How fast a machine is changes within seconds by more than modes differ, where others use it too. So
every mode generates for SEGMENT_S, then the next one, until all answers are whole: what the machine
does in the meantime it does to all of them. The prompt is processed once. Every mode has a line of
its own in one context, which begins as line 0 does, with the head's features of the prompt waiting:
catching up on them stays each mode's own expense.

A segment begins behind SETTLING decodes of as many rows as the mode's last cycle had, which are
dropped again and not timed: memory that llama.cpp plans anew, its graph of sixty rows, the graph
that a GPU records, experts that were streamed for a prompt or a large tree belong to the mode
before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from .interrupts import Interrupts
from .prompts import Prompt
from .report_plain import PlainLoop
from .report_plan import PLAIN, digest
from .report_store import Timed
from .turns import order_of_round

if TYPE_CHECKING:
    from specfit.backend import CycleReport, Engine, Generation, Report
    from specfit.backend.line import Line

# A segment ends with the cycle that brings it to so many seconds, or a mode to its next part of the
# answer of so many.
SEGMENT_S, TURNS = 0.4, 4
SETTLING = 2


class Answer(Protocol):
    """An answer as it is driven, cycle by cycle; its first token is there."""

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def ended(self) -> bool: ...

    @property
    def cycles(self) -> Sequence[CycleReport]: ...

    def settle(self) -> None:
        """Decodes as many rows as in the last cycle, and drops them again."""

    def step(self) -> None:
        """Goes on for a cycle."""

    def report(self, seconds: float) -> Report:
        """seconds: that its cycles took."""


class Rounds:
    """Plays rounds on an engine with a line more than there are modes of it.

    modes: all that will be played. Raises AppError if there is no memory for the bare loop.
    """

    def __init__(self, engine: Engine, modes: Sequence[str], interrupts: Interrupts) -> None:
        from specfit.backend.drafter import Drafter

        self._engine = engine
        self._interrupts = interrupts
        self._lines = dict(
            zip([mode for mode in modes if mode != PLAIN], engine.lines[1:], strict=True)
        )
        for line in engine.lines:  # as many positions may wait as in an engine of one line
            if line.drafter is not None:
                line.drafter = Drafter(line.drafter.head)
        context = engine.context
        self._plain = PlainLoop(engine.model, context.ctx, context.threads)

    def close(self) -> None:
        self._plain.close()

    def play(self, prompt: Prompt, modes: Sequence[str], limit: int) -> list[Timed]:
        """An answer of every mode, in this order in the first pass. Each ends with the cycle that
        brings it to `limit` tokens: cut within it, a mode would be paid for less than it gives, the
        more so the larger its trees.

        A round's time is divided among its runs: what they have in common equally.

        Raises KeyboardInterrupt on Ctrl-C.
        """
        begun = time.perf_counter()
        engine, tokens = self._engine, self._engine.prompt_tokens(list(prompt.messages))
        engine.forget()
        whole = engine.lines[0]
        whole.prefill(tokens, drafting=True, goes_on=lambda: not self._interrupts.pending)
        self._interrupts.check()
        whole.remember_prompt()
        common_s = time.perf_counter() - begun
        playing = [self._begun(mode, prompt, tokens, common_s, len(modes)) for mode in modes]
        last, passes = None, 0
        while any(one.goes_on(limit) for one in playing):
            for at in order_of_round(len(playing), passes):
                one = playing[at]
                if one.goes_on(limit):
                    self._segment(one, limit, settling=one is not last)
                    last = one
            passes += 1
        return [one.timed(limit) for one in playing]

    def _begun(
        self, mode: str, prompt: Prompt, tokens: list[int], common_s: float, modes: int
    ) -> _Playing:
        begun = time.perf_counter()
        if mode == PLAIN:
            self._plain.begin(tokens)
            answer: Answer = self._plain
            prompt_s = time.perf_counter() - begun
        else:
            answer = _OfEngine(self._engine, self._lines[mode], mode, prompt)
            prompt_s = common_s + time.perf_counter() - begun
        self._interrupts.check()
        took_s = common_s / modes + time.perf_counter() - begun
        return _Playing(mode, answer, prompt_s, took_s)

    def _segment(self, one: _Playing, limit: int, *, settling: bool) -> None:
        begun = time.perf_counter()
        for _ in range(SETTLING if settling else 0):
            one.answer.settle()
        started = time.perf_counter()
        until = min(limit, len(one.answer.tokens) + -(-limit // TURNS))
        while True:
            one.answer.step()
            self._interrupts.check()
            ended = time.perf_counter()
            if ended >= started + SEGMENT_S or not one.goes_on(until):
                break
        one.seconds += ended - started
        one.took_s += ended - begun


@dataclass
class _Playing:
    """prompt_s: to the first token. took_s: in all. seconds: of its cycles."""

    mode: str
    answer: Answer
    prompt_s: float
    took_s: float
    seconds: float = 0.0

    def goes_on(self, limit: int) -> bool:
        return not self.answer.ended and len(self.answer.tokens) < limit

    def timed(self, limit: int) -> Timed:
        report = replace(
            self.answer.report(self.seconds),
            text=digest(list(self.answer.tokens[:limit])),
            ttft_ms=self.prompt_s * 1e3,
        )
        cycles = [cycle for cycle in self.answer.cycles if cycle.drafted]
        return Timed(self.mode, report, cycles, self.took_s)


class _OfEngine:
    """An answer in a line of the engine, whose line 0 holds the prompt."""

    def __init__(self, engine: Engine, line: Line, mode: str, prompt: Prompt) -> None:
        from specfit.backend import Sampling, Spec

        self._engine, self._line = engine, line
        self._policy = engine.policy(Spec.parse(mode))
        self._generation: Generation = engine.generate(
            list(prompt.messages), sampling=Sampling(temp=0), spec=Spec.parse(mode)
        )
        line.adopt(engine.lines[0], len(self._generation.prompt_tokens))
        self._generation.begin(line)
        line.remember_prompt()  # the next decode is of another line

    @property
    def tokens(self) -> Sequence[int]:
        return self._generation.tokens

    @property
    def ended(self) -> bool:
        return self._generation.ended

    @property
    def cycles(self) -> Sequence[CycleReport]:
        return self._generation.cycles

    def settle(self) -> None:
        self._tap()
        cycles = self._generation.cycles
        rows = cycles[-1].decoded if cycles else 1
        self._engine.settle(self._line, self._generation.tokens[-1], rows)

    def step(self) -> None:
        cycle = self._engine.cycle([self._generation.turn(self._line)], self._policy)
        self._generation.advance(cycle.report, cycle.tokens[0])

    def report(self, seconds: float) -> Report:
        self._generation.finish()
        return replace(self._generation.report, seconds=seconds)

    def _tap(self) -> None:
        """Has features handed out if this line wants them, whatever others do. Its own wish comes
        first: llama.cpp plans anew whenever none is left, or one comes."""
        tap = self._engine.context.tap
        tap(self._line.number, wanted=self._line.tracking)
        for other in self._engine.lines:
            if other is not self._line:
                tap(other.number, wanted=False)
