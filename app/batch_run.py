"""Answering the lines of a batch: several at once, and whatever happens to one, the others too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .batch_lines import Request, Unsound
from .batch_parameters import NOTHING, Parameters, key_of, seeds_of
from .batch_records import Answer, Record, has_failed, logprobs_of
from .entry import user_sentence
from .interrupts import Interrupts
from .prompts import Id, Message

if TYPE_CHECKING:
    from specfit.backend import Engine, Generation, Spec
    from specfit.backend.guided import GuidedSampler


@dataclass(frozen=True)
class Line:
    """A line that is to be answered. asked: with what the flags say. seeds: of its completions.
    wrong: why it cannot be answered."""

    key: str
    id: Id | None
    messages: Sequence[Message] = ()
    asked: Parameters = NOTHING
    seeds: Sequence[int] = ()
    wrong: str = ""


@dataclass(frozen=True)
class Run:
    """What lines have in common. depends_on: what every answer depends on, the model above all.
    repeatable: whether the run's seed was chosen, and not drawn."""

    flags: Parameters
    seed: int
    repeatable: bool
    depends_on: tuple[object, ...]

    def line(self, found: Request | Unsound) -> Line:
        """The line with its key. A seed that was drawn is no part of that: any answer will do."""
        if isinstance(found, Unsound):
            key = key_of("unsound", found.wrong, found.line.hex())
            return Line(key, found.id, wrong=found.error)
        asked, own = found.asked.over(self.flags), found.asked.seed
        seeds = seeds_of(found.id, own, self.seed, asked.completions)
        drawing = (asked.temp, asked.top_k, asked.top_p, asked.min_p)
        extent = (asked.token_limit, asked.stop, asked.completions, asked.grammar, asked.noting)
        fixed = seeds if self.repeatable or own is not None else None
        key = key_of(self.depends_on, found.id, found.messages, drawing, extent, fixed)
        return Line(key, found.id, found.messages, asked, seeds)


def left(
    lines: Iterable[Line], records: Iterable[Record], *, retry: bool
) -> tuple[list[Line], int]:
    """The lines that are still to be done, and how many of the others have failed.

    Two lines that are alike in everything have two records. retry: do failures again, but not lines
    that cannot be answered: they fail alike.
    """
    answered: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for record in records:
        (failed if has_failed(record) else answered)[record["key"]] += 1
    todo, failures = [], 0
    for line in lines:
        if answered[line.key]:
            answered[line.key] -= 1
        elif failed[line.key] and not (retry and not line.wrong):
            failed[line.key] -= 1
            failures += 1
        else:
            todo.append(line)
    return todo, failures


@dataclass(eq=False)
class _Job:
    """A line that is being answered. ended: it has failed, or was taken over."""

    line: Line
    generations: list[Generation] = field(default_factory=list)
    samplers: list[GuidedSampler | None] = field(default_factory=list)
    finished: int = 0
    ended: bool = False


class Worker:
    """Answers lines on one engine.

    steady: every prompt is processed whole, and one after the other.
    """

    def __init__(self, engine: Engine, spec: Spec, interrupts: Interrupts, *, steady: bool) -> None:
        self._engine = engine
        self._spec = spec
        self._interrupts = interrupts
        self._steady = steady
        self._jobs: dict[Generation, _Job] = {}  # that are being answered
        self._ready: list[tuple[Line, Answer | str]] = []

    def running_tokens(self) -> int:
        """Of the lines that are not finished; may be asked by another thread."""
        begun = dict.fromkeys(list(self._jobs.values()))
        return sum(len(one.tokens) for job in begun for one in list(job.generations))

    def answers(self, lines: Iterable[Line]) -> Iterator[tuple[Line, Answer | str]]:
        """Every line with its answer or what went wrong, as they are finished.

        Raises KeyboardInterrupt on Ctrl-C, after what was finished.
        """
        self._interrupts.on_interrupt = self._stop
        rest = iter(lines)
        generations, going = self._generations(rest), True
        while going:
            try:
                for generation in self._finished(generations):
                    self._take(generation)
                    yield from self._released()
                going = False
            except Exception:  # of a decode: it may be due to any of the lines
                if not self._jobs:
                    raise
                yield from self._alone()
        yield from self._released()
        self._interrupts.on_interrupt = None
        self._interrupts.check()
        assert next(rest, None) is None

    def _finished(self, generations: Iterator[Generation]) -> Iterator[Generation]:
        from specfit.backend.together import together

        if not self._steady:
            yield from together(self._engine, generations, self._engine.policy(self._spec))
            return
        for generation in generations:
            for _piece in generation:
                pass
            yield generation

    def _generations(self, lines: Iterator[Line]) -> Iterator[Generation]:
        """Made when the engine has a free line for them."""
        for line in lines:
            if line.wrong:
                self._ready.append((line, line.wrong))
                continue
            yield from self._of(_Job(line))
            if self._interrupts.pending:
                return

    def _of(self, job: _Job) -> Iterator[Generation]:
        """A line's completions, until it fails."""
        for seed in job.line.seeds:
            if job.ended or self._interrupts.pending:
                return
            try:
                generation, sampler = self._generation(job.line, seed)
            except Exception as error:  # its messages, or the model's template
                self._fail(job, error)
                return
            job.generations.append(generation)
            job.samplers.append(sampler)
            self._jobs[generation] = job
            yield generation

    def _generation(self, line: Line, seed: int) -> tuple[Generation, GuidedSampler | None]:
        from specfit.backend.guided import guided

        if self._steady:
            self._engine.forget()
        asked = line.asked
        wanted: dict[str, Any] = {
            "messages": list(line.messages),
            "sampling": asked.sampling(self._engine.recommended_sampling, seed),
            "max_tokens": asked.token_limit,
            "spec": self._spec,
            "stop": asked.stop or (),
        }
        if asked.grammar is None and asked.noting is None:
            return self._engine.generate(**wanted), None
        return guided(self._engine, **wanted, grammar=asked.grammar, top=asked.noting)

    def _take(self, generation: Generation) -> None:
        job, line = (found := self._jobs.pop(generation)), found.line
        if job.ended or generation.report.finish_reason == "stopped":
            return  # by Ctrl-C: half an answer is none
        job.finished += 1
        if job.finished == len(line.seeds):
            assert line.id is not None
            logprobs = [self._logprobs(line, sampler) for sampler in job.samplers]
            answer = Answer(line.key, line.id, job.generations, line.seeds, logprobs)
            self._ready.append((line, answer))

    def _logprobs(self, line: Line, sampler: GuidedSampler | None) -> Record | None:
        if sampler is None or line.asked.noting is None:
            return None
        return logprobs_of(sampler.noted, self._engine.model)

    def _released(self) -> Iterator[tuple[Line, Answer | str]]:
        ready, self._ready = self._ready, []
        yield from ready

    def _alone(self) -> Iterator[tuple[Line, Answer | str]]:
        """Answers what was under way anew, one line at a time: those fail that fail alone."""
        jobs = list(dict.fromkeys(self._jobs.values()))
        self._start_anew()
        for job in jobs:
            job.ended = True  # its other completions are not wanted
            again = _Job(job.line)
            try:
                for generation in self._of(again):
                    for _piece in generation:
                        pass
                    self._take(generation)
            except Exception as error:
                self._start_anew()
                self._fail(again, error)
            yield from self._released()

    def _start_anew(self) -> None:
        self._jobs.clear()
        self._engine.forget()

    def _fail(self, job: _Job, error: Exception) -> None:
        job.ended = True
        self._ready.append((job.line, user_sentence(error) or f"{type(error).__name__}: {error}"))

    def _stop(self) -> None:
        for generation in list(self._jobs):
            generation.stop()
