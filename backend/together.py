"""Several answers at once, in the lines of one engine: of many rows each costs less."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specfit.planner import Policy

from .engine import Engine
from .generation import Generation
from .line import Line, shared_prefix


def together(
    engine: Engine, generations: Iterable[Generation], policy: Policy
) -> Iterator[Generation]:
    """Every one of `generations`, all of this policy, when it is finished.

    As many as the engine has lines are decoded together. Where one ends the next is taken from the
    iterable, and goes on in the free line whose text has most in common with its prompt.
    """
    waiting = iter(generations)
    free = list(engine.lines)
    going: list[tuple[Line, Generation]] = []
    while True:
        while free and (generation := next(waiting, None)) is not None:
            prompt = generation.prompt_tokens
            line = max(free, key=lambda one: shared_prefix(one.tokens, prompt))
            free.remove(line)
            generation.begin(line)
            line.remember_prompt()  # the next decode is of another text
            going.append((line, generation))
        if not going:
            return
        if active := [(line, one) for line, one in going if not one.ended]:
            cycle = engine.cycle([one.turn(line) for line, one in active], policy)
            for (_, generation), committed in zip(active, cycle.tokens, strict=True):
                generation.advance(cycle.report, committed)
        ended = [(line, one) for line, one in going if one.ended]
        going = [(line, one) for line, one in going if not one.ended]
        for line, generation in ended:
            free.append(line)
            generation.finish()
            yield generation
