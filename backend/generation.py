"""An answer as it is generated: an iterator of text that can be stopped and reports on itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from specfit.planner import Policy

from .report import CycleReport, CycleSums, Report
from .sampling import Sampler
from .text import TextStream
from .view import CycleView, view_of

if TYPE_CHECKING:
    from .engine import Cycle, Engine
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
        self._prompt = prompt.tokens
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
        self._ttft = self._seconds = 0.0
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
            text="".join(self._text),
            finish_reason=self._finish_reason,
            prompt_tokens=len(self._prompt),
            completion_tokens=len(self.tokens),
            ttft_ms=self._ttft * 1e3,
            seconds=self._seconds,
            cycles=sums.cycles,
            drafted=sums.drafted,
            accepted=sums.accepted,
            means=sums.means,
        )

    def __iter__(self) -> Iterator[str]:
        if self._limit == 0:
            self._finish_reason = "length"
            return
        begun = time.perf_counter()
        if not self._engine.prefill(self._prompt, self._policy, lambda: not self._stop_asked):
            self._finish_reason = "stopped"
            return
        root = self._sampler.sample(self._engine.context, -1)
        going = self._take(root)
        first = time.perf_counter()
        self._ttft = first - begun
        yield from self._released()
        while going and not self._stop_asked:
            cycle = self._engine.cycle(root, self._policy, self._sampler, self._take)
            self.cycles.append(cycle.report)
            root = cycle.tokens[-1]
            going = not self._finish_reason
            self._mark_drafts(cycle)
            if self.watch is not None:
                self.watch(view_of(cycle, self._engine, self._policy))
            self._seconds = time.perf_counter() - first
            yield from self._released()
        self._finish_reason = self._finish_reason or "stopped"
        self._fresh.append(self._stream.finish())
        yield from self._released()

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

    def _mark_drafts(self, cycle: Cycle) -> None:
        if cycle.report.accepted:
            before = len(self.tokens) - len(cycle.tokens)
            begin, end = self._ends[before - 1], self._ends[before + cycle.report.accepted - 1]
            if begin < end:
                self.drafted_spans.append((begin, end))

    def _released(self) -> Iterator[str]:
        text = "".join(self._fresh)
        self._fresh.clear()
        if text:
            self._text.append(text)
            yield text
