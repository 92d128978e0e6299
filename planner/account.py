"""What a planning mode weighed in a cycle, kept until somebody asks for its reason."""

from __future__ import annotations

from dataclasses import dataclass

from .drafts import Drafts
from .reason import End, Reason, Step
from .search import Plan

# No tree is deeper.
DEEPEST = 16


@dataclass
class Account:
    """rate: tokens per ms, that plans were weighed by; None where the ratio was maximised.

    first: ms and tokens of the first drafts, beside the ms of a plain cycle. wider: the plan with a
    level more, of so many nodes, that was not drafted. room: how deep the context allows. trial:
    the first level did not promise to pay.
    """

    rate: float | None
    first: tuple[float, float, float] = (0.0, 0.0, 0.0)
    wider: tuple[Plan, int] | None = None
    room: int = 0
    trial: bool = False

    def of_no_level(self) -> Reason:
        """Why not even a first level was drafted, if nothing was planned."""
        first_ms, hoped, plain_ms = self.first
        token_ms = plain_ms if self.rate is None else 1 / self.rate
        return Reason("unpromising", 0, token_ms, Step(first_ms, hoped))

    def of_plan(self, drafts: Drafts, plan: Plan, max_rows: int) -> Reason:
        """Why the cycle was drafted, and verified, no further than `plan`, the best of `drafts`."""
        token_ms = plan.ms / plan.committed if self.rate is None else 1 / self.rate
        rows = int(plan.keep.sum())
        drafted = rows - drafts.tree.n_lines
        level = None
        if self.wider is not None:
            wider, nodes = self.wider
            level = Step(wider.ms - plan.ms, wider.committed - plan.committed, nodes)
        if rows >= max_rows:
            return Reason("planned", drafted, token_ms, None, level, "rows", self.trial)
        step = drafts.best_left_out(plan.keep, token_ms)
        end = self._end(int(drafts.tree.depths[-1]))
        return Reason("planned", drafted, token_ms, step, level, end, self.trial)

    def _end(self, depth: int) -> End:
        if self.wider is not None:
            return "level"
        if depth >= self.room:
            return "context"
        return "deepest" if depth >= DEEPEST else "unlikely"
