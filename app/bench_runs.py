"""The runs of a comparison: every prompt under every mode, side by side, on one engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .bench_result import Run
from .entry import AppError
from .interrupts import Interrupts
from .prompts import Prompt
from .turns import order_of_round

if TYPE_CHECKING:
    from specfit.backend import Engine, Generation, Sampling, Spec

# Generated under each mode before anything counts: they page in weights and fill caches.
WARM_UP_TOKENS = 8


class Runner:
    """Runs generations on one engine, each from an empty cache."""

    def __init__(
        self,
        engine: Engine,
        sampling: Sampling,
        max_tokens: int | None,
        interrupts: Interrupts,
    ) -> None:
        self._engine = engine
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._interrupts = interrupts

    def check_room(self, prompts: Sequence[Prompt]) -> None:
        """Raises AppError if a prompt and its answer do not fit the context."""
        for prompt in prompts:
            needed = self._engine.count_tokens(prompt.messages) + (self._max_tokens or 1)
            if needed > self._engine.ctx:
                raise AppError(
                    f"line {prompt.number}: prompt and answer need {needed} tokens and the context "
                    f"holds {self._engine.ctx}; raise -c to {needed}, or lower -n"
                )

    def compare(self, prompts: Sequence[Prompt], specs: Sequence[Spec], repeat: int) -> list[Run]:
        """Every prompt under every mode, `repeat` times. Raises KeyboardInterrupt on Ctrl-C."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        for spec in specs:
            self._generate(prompts[0], spec, WARM_UP_TOKENS)
        runs_to_do = list(schedule(len(prompts), len(specs), repeat))
        runs = []
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        shown = sys.stderr.isatty()
        with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
            for round_, prompt, mode in bar.track(runs_to_do):
                done = self._generate(prompts[prompt], specs[mode], self._max_tokens)
                runs.append(Run(mode, prompt, round_, done.report, done.cycles))
        return runs

    def _generate(self, prompt: Prompt, spec: Spec, max_tokens: int | None) -> Generation:
        self._engine.forget()
        generation = self._engine.generate(
            messages=list(prompt.messages),
            sampling=self._sampling,
            max_tokens=max_tokens,
            spec=spec,
        )
        self._interrupts.on_interrupt = generation.stop
        for _piece in generation:
            pass
        self._interrupts.on_interrupt = None
        self._interrupts.check()
        return generation


def schedule(prompts: int, modes: int, repeat: int) -> Iterator[tuple[int, int, int]]:
    """(repeat, prompt, mode) of every run: modes side by side, in balanced order."""
    for round_ in range(repeat):
        for prompt in range(prompts):
            for mode in order_of_round(modes, round_ * prompts + prompt):
                yield round_, prompt, mode
