"""An answer as it is generated: an iterator of text that can be stopped and reports on itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from specfit.planner import Policy

from .line import Line, Turn
from .report import CycleReport, CycleSums, Report
from .sampling import Sampler
from .text import TextStream
from .view import CycleView, view_of

if TYPE_CHECKING:
    from .engine import Engine
    from .model import Prompt


class Generation:
    """Iterate over it for pieces of text; inference runs in the iterating thread.

    Stop strings, end-of-generation tokens, the token limit and the context's end cut the committed
    path at the right token, never after it.

    watch: set it to be told of every cycle, in the iterating thread, between cycles.
    opens_thinking: the prompt ends with "<think>", which the text is therefore without.
    drafted_spans: where text of accepted drafts begins and ends, in characters of the report's
    text, in order.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt,
        policy: Policy,
        sampler: Sampler,
        max_tokens: int | None,
        stop: Sequence[str],
    ) -> None:
        self._engine = engine
        self.prompt_tokens = prompt.tokens
        self.opens_thinking = prompt.opens_thinking
        self._policy = policy
        self._sampler = sampler
        room = engine.ctx - len(prompt.tokens)
        self._limit = room if max_tokens is None else max(0, min(max_tokens, room))
        self._stream = TextStream(stop)
        self._text: list[str] = []
        self._fresh: list[str] = []  # text of the present cycle
        self._sums = CycleSums()
        self._finish_reason = ""
        self._stop_asked = False
        self._ttft = self._seconds = self._first = 0.0
        self._root = self._reused = 0
        self._ends: list[int] = []  # per token, characters of text up to its end
        self.watch: Callable[[CycleView], None] | None = None
        self.drafted_spans: list[tuple[int, int]] = []
        self.tokens: list[int] = []  # generated, an ending token included
        self.cycles: list[CycleReport] = []

    def stop(self) -> None:
        """Ends the answer after the present cycle; may be called from another thread."""
        self._stop_asked = True

    @property
    def report(self) -> Report:
        sums = self._sums
        sums.add(self.cycles[sums.cycles :])
        return Report(
            text="".join(self._text + self._fresh),
            finish_reason=self._finish_reason,
            prompt_tokens=len(self.prompt_tokens),
            completion_tokens=len(self.tokens),
            ttft_ms=self._ttft * 1e3,
            seconds=self._seconds,
            cycles=sums.cycles,
            drafted=sums.drafted,
            accepted=sums.accepted,
            means=sums.means,
            reused_tokens=self._reused,
            accepted_by=sums.accepted_by,
        )

    def __iter__(self) -> Iterator[str]:
        line = self._engine.lines[0]
        self.begin(line)
        yield from self._released()
        while not self.ended:
            cycle = self._engine.cycle([self.turn(line)], self._policy)
            self.advance(cycle.report, cycle.tokens[0])
            if self.watch is not None:
                self.watch(view_of(cycle, self._engine, line, self._policy))
            yield from self._released()
        self.finish()
        yield from self._released()

    @property
    def filled_context(self) -> bool:
        """Whether the answer was cut off because there was no room for more of it."""
        used = len(self.prompt_tokens) + len(self.tokens)
        return self._finish_reason == "length" and used >= self._engine.ctx

    @property
    def ended(self) -> bool:
        """Whether there is no more to come: the answer is at its end, or was asked to stop."""
        return bool(self._finish_reason) or self._stop_asked

    def begin(self, line: Line, lines: int = 1) -> None:
        """Processes the prompt and takes the first token. lines: answers at a time."""
        if self._limit == 0:
            self._finish_reason = "length"
            return
        begun = time.perf_counter()
        prompt = self.prompt_tokens
        missing_ms = line.missing(prompt) * self._engine.prompt_token_ms
        drafting = line.drafter is not None and self._policy.tracks(len(prompt), missing_ms, lines)
        done = line.prefill(prompt, drafting, lambda: not self._stop_asked)
        self._reused = line.reused
        if not done:
            self._finish_reason = "stopped"
            return
        spent_ms = (time.perf_counter() - begun) * 1e3
        self._engine.learn_prompt(len(prompt) - line.reused, spent_ms)
        self._root = self._sampler.sample(self._engine.context, -1)
        self._take(self._root)
        self._first = time.perf_counter()
        self._ttft = self._first - begun

    def turn(self, line: Line) -> Turn:
        """What the next cycle is to continue."""
        return Turn(line, self._root, self._sampler, self._take)

    def advance(self, report: CycleReport, committed: Sequence[int]) -> None:
        """Goes on behind a cycle that has committed these tokens."""
        self.cycles.append(report)
        self._root = committed[-1]
        if len(committed) > 1:  # all but the last were drafts
            before = len(self.tokens) - len(committed)
            begin, end = self._ends[before - 1], self._ends[before + len(committed) - 2]
            if begin < end:
                self.drafted_spans.append((begin, end))
        self._seconds = time.perf_counter() - self._first

    def finish(self) -> None:
        """Lets the last text out: what might have become a stop string did not."""
        if not self._finish_reason:
            self._finish_reason = "stopped"
        self._fresh.append(self._stream.finish())

    def _take(self, token: int) -> bool:
        """Takes a committed token into the answer; False if the answer ends with it."""
        self.tokens.append(token)
        model = self._engine.model
        if model.ends(token):
            self._finish_reason = "stop"
            return False
        self._fresh.append(self._stream.feed(model.piece(token)))
        self._ends.append(self._stream.n_chars)
        if self._stream.stopped:
            self._finish_reason = "stop"
        elif len(self.tokens) >= self._limit:
            self._finish_reason = "length"
        return not self._finish_reason

    def _released(self) -> Iterator[str]:
        text = "".join(self._fresh)
        self._fresh.clear()
        if text:
            self._text.append(text)
            yield text
