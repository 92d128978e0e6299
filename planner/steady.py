"""A policy that learns nothing, so that its plans are a function of the text alone."""

from __future__ import annotations

from collections.abc import Sequence

from .beliefs import Beliefs
from .cost import Before
from .policies import Choice, Outcome, Policy
from .reason import Reason
from .tree import DraftTree, IntArray


class Steady:
    """Plans as `policy` does and keeps from it what a cycle took and brought, but for its number of
    rows, which is a function of the text too.

    Even asked, a policy remembers a little (which gains were predicted, what it tried): take a new
    one for every text. Experts are not looked at, since nothing would be learned from them.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.beliefs: Beliefs = policy.beliefs
        self.least_chance = policy.least_chance
        self.looks_up = policy.looks_up

    @property
    def planning_ms(self) -> float:
        return self._policy.planning_ms

    @property
    def reads_states(self) -> bool:
        return self._policy.reads_states

    def tracks(self, prompt: int, missing_ms: float, lines: int = 1) -> bool:
        return self._policy.tracks(prompt, missing_ms, lines)

    def behind(self, before: Before) -> None:
        self._policy.behind(before)

    @property
    def finds(self) -> bool:
        return self._policy.finds

    def hopes(self, prob: float) -> bool:
        return self._policy.hopes(prob)

    def takes(self, context: int, found: DraftTree) -> bool:
        return self._policy.takes(context, found)

    def learn_found(self, found: Sequence[tuple[int, float]], token: int, spent_ms: float) -> None:
        pass

    def begin(self, context: int, roots: Sequence[int], waiting: int = 0) -> bool:
        return self._policy.begin(context, roots, waiting)

    def expand(self, tree: DraftTree, room: int) -> tuple[IntArray, int]:
        return self._policy.expand(tree, room)

    def choose(self, tree: DraftTree) -> Choice:
        return self._policy.choose(tree)

    def looks(self, tree: DraftTree) -> bool:
        return False

    def learn(self, outcome: Outcome) -> None:
        self.passed(outcome.rows)

    def learned(self, ms: float) -> None:
        pass

    def learn_plain(self, context: int, paid_union: float | None = None) -> None:
        self.passed(1)

    def passed(self, rows: int) -> None:
        self._policy.passed(rows)

    def reason(self, *, begun: bool) -> Reason:
        return self._policy.reason(begun=begun)
