"""What cycles take, and are worth, as plans are weighed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .cost import Levels
from .drafting import DraftingRule
from .livecost import LiveCost
from .prospect import First


class Weighing:
    """Of the cycles of so many lines, whose roots have the weighted union `root_union`, behind
    `context` tokens.

    ratio: plans maximise E / T; else E - rate * T at the long-run rate. max_rows: of a plan.
    planning_ms: tells what planning a level takes.
    """

    def __init__(
        self,
        live: LiveCost,
        rule: DraftingRule,
        root_union: float,
        max_rows: int,
        planning_ms: Callable[[], float],
        *,
        ratio: bool,
    ) -> None:
        self.lines, self.root_union, self.context = 1, root_union, 0
        self._live, self._rule = live, rule
        self._max_rows, self._ratio = max_rows, ratio
        self._planning_ms = planning_ms

    def turn_to(self, lines: int, root_union: float, context: int) -> None:
        """The coming cycle."""
        self.lines, self.root_union, self.context = lines, root_union, context
        self._rule.turn_to(lines, root_union, context)

    def worth(self, committed: float, ms: float) -> float:
        """A cycle's worth in tokens: for the ratio, those of a plain decode's time."""
        if self._ratio:
            return committed / ms * self.plain_ms
        return committed - self._rule.rate * ms

    @property
    def plain(self) -> float:
        """What a cycle without drafts is worth."""
        return self.worth(self.lines, self.plain_ms)

    @property
    def plain_ms(self) -> float:
        """A decode of the roots alone."""
        return sum(self._ms(self.lines))

    def spent_ms(self, levels: Levels) -> float:
        """Time of drafting and planning levels."""
        return self._live.now.draft_ms(levels) + len(levels) * self._planning_ms()

    def first(self, hopes: Sequence[float]) -> First:
        """The best first drafts, by the chances that there are behind the lines."""
        lines, best = self.lines, None
        steady_ms, switch_ms = self._ms(lines)
        plain_ms = steady_ms + switch_ms
        plain, hoped = self.worth(lines, plain_ms), 0.0
        for n, hope in enumerate(sorted(hopes, reverse=True)[: self._max_rows - lines], 1):
            hoped += hope
            spent_ms, (steady_ms, extra_ms) = self.spent_ms([(0,) * n]), self._ms(lines + n)
            ms = steady_ms + extra_ms + spent_ms
            gain = self.worth(lines + hoped, ms) - plain
            if best is None or gain > best.gain:
                charged_ms = extra_ms - switch_ms
                best = First(gain, n, hoped, ms - plain_ms, spent_ms, charged_ms, plain_ms, plain)
        assert best is not None  # else no draft may be
        return best

    def _ms(self, nodes: int) -> tuple[float, float]:
        """A decode of so many nodes, that bring no experts, and what switching adds to it."""
        rows = self._live.rows(nodes)
        steady_ms = self._live.verify_ms(rows, self.root_union, self.context)
        return steady_ms, self._rule.switching.extra_ms(nodes)
