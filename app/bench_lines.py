"""Throughput of several answers at once: all prompts under every mode, N lines of text at a time.

An answer has no speed of its own here, as many share each cycle: what is compared is how long all
prompts together take, their processing included, and the cycles alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from .bench_jobs import mode_and_lines
from .bench_runs import WARM_UP_TOKENS
from .bench_table import headed
from .entry import AppError
from .interrupts import Interrupts
from .option_types import MOST_LINES
from .options import parse_spec
from .prompts import Prompt
from .turns import order_of_round

if TYPE_CHECKING:
    from specfit.backend import CycleReport, Engine, Generation, Sampling, Spec

AUTO = "auto"


@dataclass(frozen=True)
class LinesMode:
    """A speculation mode and how many answers it makes at once; None: as many as are fastest."""

    spec: Spec
    lines: int | None

    def __str__(self) -> str:
        lines = AUTO if self.lines is None else self.lines
        return str(self.spec) if lines == 1 else f"{self.spec}@{lines}"


def parse_lines_modes(names: Sequence[str]) -> list[LinesMode]:
    """MODE@N, MODE@auto, or MODE for one line. Raises AppError for what is none of these."""
    modes = [_parse(name) for name in names]
    if any(mode.lines is None for mode in modes) and any((mode.lines or 1) > 1 for mode in modes):
        raise AppError(f"--modes: {AUTO} is the most lines there are; compare it with one line")
    return modes


def _parse(name: str) -> LinesMode:
    if name.endswith(f"@{AUTO}"):
        return LinesMode(parse_spec(name.removesuffix(f"@{AUTO}")), None)
    mode, lines = mode_and_lines(name)
    if not 1 <= lines <= MOST_LINES:
        raise AppError(f"--modes {name!r}: write MODE@N, N from 1 to {MOST_LINES}, or MODE@{AUTO}")
    return LinesMode(parse_spec(mode), lines)


@dataclass(frozen=True)
class Pass:
    """All prompts answered once. tokens: generated. seconds: in all. texts: in the prompts' order.
    cycles: of all lines together."""

    tokens: int
    seconds: float
    texts: tuple[str, ...]
    cycles: Sequence[CycleReport]

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    @property
    def decoding_speed(self) -> float:
        """Tokens a second of the cycles alone."""
        seconds = sum(cycle.measured_cycle_ms for cycle in self.cycles) / 1e3
        return sum(cycle.committed for cycle in self.cycles) / seconds if seconds else 0.0


@dataclass(frozen=True)
class LinesResult:
    """All passes of a mode. Speeds in tokens a second, with the prompts and of cycles alone; the
    ratios of them are medians of those to the first mode's of the same round.

    mean_acceptance_length: tokens of a line in a cycle. lines, rows, union, ms: of the mean cycle.
    same_text: share of answers that are the first mode's.
    """

    mode: str
    tokens: int
    tokens_per_second: float
    ratio: float
    decoding_tokens_per_second: float
    decoding_ratio: float
    mean_acceptance_length: float
    lines: float
    rows_per_cycle: float
    union_per_layer: float
    measured_cycle_ms: float
    predicted_cycle_ms: float
    same_text: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run_passes(
    engine: Engine,
    prompts: Sequence[Prompt],
    modes: Sequence[LinesMode],
    sampling: Sampling,
    max_tokens: int | None,
    repeat: int,
    interrupts: Interrupts,
) -> list[list[Pass]]:
    """[round][mode]. Raises KeyboardInterrupt on Ctrl-C."""

    def answer_all(mode: LinesMode, some: Sequence[Prompt], limit: int | None) -> Pass:
        return _answer_all(engine, some, mode, sampling, limit, interrupts)

    for mode in modes:
        answer_all(mode, prompts[: mode.lines], WARM_UP_TOKENS)
    rounds = []
    for round_ in range(repeat):
        passes = {
            mode: answer_all(modes[mode], prompts, max_tokens)
            for mode in order_of_round(len(modes), round_)
        }
        rounds.append([passes[mode] for mode in range(len(modes))])
    return rounds


def _answer_all(
    engine: Engine,
    prompts: Sequence[Prompt],
    mode: LinesMode,
    sampling: Sampling,
    max_tokens: int | None,
    interrupts: Interrupts,
) -> Pass:
    from specfit.backend.together import together

    engine.forget()
    generations: list[Generation] = []

    def stop() -> None:
        for generation in generations:
            generation.stop()

    def begin() -> Iterator[Generation]:
        for prompt in prompts:
            if interrupts.pending:
                return
            generations.append(
                engine.generate(
                    messages=list(prompt.messages),
                    sampling=sampling,
                    max_tokens=max_tokens,
                    spec=mode.spec,
                )
            )
            yield generations[-1]

    interrupts.on_interrupt = stop
    begun = time.perf_counter()
    for _generation in together(engine, begin(), engine.policy(mode.spec), mode.lines):
        pass
    seconds = time.perf_counter() - begun
    interrupts.on_interrupt = None
    interrupts.check()
    cycles = {id(cycle): cycle for generation in generations for cycle in generation.cycles}
    return Pass(
        tokens=sum(len(generation.tokens) for generation in generations),
        seconds=seconds,
        texts=tuple(generation.report.text for generation in generations),
        cycles=list(cycles.values()),
    )


def summarise_passes(
    modes: Sequence[LinesMode], rounds: Sequence[Sequence[Pass]]
) -> list[LinesResult]:
    """One result a mode; ratios are to the first. rounds: [round][mode], at least one."""
    return [_summarise(str(mode), index, rounds) for index, mode in enumerate(modes)]


def _summarise(name: str, mode: int, rounds: Sequence[Sequence[Pass]]) -> LinesResult:
    passes, first = [one[mode] for one in rounds], [one[0] for one in rounds]
    pairs = list(zip(passes, first, strict=True))
    cycles = [cycle for one in passes for cycle in one.cycles]
    ms = sum(cycle.measured_cycle_ms for cycle in cycles)
    committed = sum(cycle.committed for cycle in cycles)
    mean = max(1, len(cycles))
    return LinesResult(
        mode=name,
        tokens=sum(one.tokens for one in passes),
        tokens_per_second=sum(one.tokens for one in passes) / sum(one.seconds for one in passes),
        ratio=median(mine.speed / other.speed for mine, other in pairs),
        decoding_tokens_per_second=committed / ms * 1e3 if ms else 0.0,
        decoding_ratio=median(
            mine.decoding_speed / other.decoding_speed if other.decoding_speed else 0.0
            for mine, other in pairs
        ),
        mean_acceptance_length=committed / max(1, sum(cycle.lines for cycle in cycles)),
        lines=sum(cycle.lines for cycle in cycles) / mean,
        rows_per_cycle=sum(cycle.rows for cycle in cycles) / mean,
        union_per_layer=sum(cycle.union_per_layer for cycle in cycles) / mean,
        measured_cycle_ms=ms / mean,
        predicted_cycle_ms=sum(cycle.predicted_cycle_ms for cycle in cycles) / mean,
        same_text=fmean(
            text == wanted
            for mine, other in pairs
            for text, wanted in zip(mine.texts, other.texts, strict=True)
        ),
    )


def lines_table(results: Sequence[LinesResult]) -> Table:
    """One row a mode. Means per cycle; times in milliseconds."""
    first = results[0].mode
    table = headed(
        ["\nmode"],
        (
            "\ntok/s",
            f"vs\n{first}",
            "decoding\ntok/s",
            f"vs\n{first}",
            "accept.\nlength",
            "\nlines",
            "\nrows",
            "\nunion",
            "cycle\npred.",
            "ms\nmeas.",
            "same\ntext",
        ),
    )
    for one in results:
        table.add_row(
            one.mode,
            f"{one.tokens_per_second:.1f}",
            f"{one.ratio:.2f}x",
            f"{one.decoding_tokens_per_second:.1f}",
            f"{one.decoding_ratio:.2f}x",
            f"{one.mean_acceptance_length:.2f}",
            f"{one.lines:.1f}",
            f"{one.rows_per_cycle:.1f}",
            f"{one.union_per_layer:.1f}" if one.union_per_layer else "-",
            f"{one.predicted_cycle_ms:.1f}",
            f"{one.measured_cycle_ms:.1f}",
            f"{one.same_text:.0%}",
        )
    return table
