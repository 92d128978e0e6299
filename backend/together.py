"""Several answers at once, in the lines of one engine: of many rows each costs less."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specfit.planner import Policy

from .engine import Engine
from .generation import Generation
from .line import Line, shared_prefix

# Tokens that another line must have in common with a prompt beyond those of the line it goes to.
WORTH_SHARING = 16


def together(
    engine: Engine, generations: Iterable[Generation], policy: Policy, lines: int | None = None
) -> Iterator[Generation]:
    """Every one of `generations`, all of this policy, when it is finished.

    As many as the engine has lines, or `lines` of them, are decoded together. Where one ends the
    next is taken from the iterable, and goes on in the free line whose text has most in common with
    its prompt; what more of it another line has is shared, so that all lines' common beginning is
    processed once.
    """
    waiting = iter(generations)
    using = engine.lines[:lines]
    free = list(using)
    going: list[tuple[Line, Generation]] = []
    while True:
        while free and (generation := next(waiting, None)) is not None:
            prompt = generation.prompt_tokens
            known = {one: shared_prefix(one.tokens[: one.n_past], prompt) for one in using}
            line, best = (
                max(free, key=lambda one: known[one]),
                max(using, key=known.__getitem__),
            )
            free.remove(line)
            if known[best] >= known[line] + WORTH_SHARING:
                line.adopt(best, known[best])
            generation.begin(line, len(using))
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
