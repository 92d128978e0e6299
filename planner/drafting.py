"""When to draft at all, and the long-run rate that plans are weighed against.

The plan that maximises the throughput of a whole text maximises E(S) - rate * T(S) in every cycle,
`rate` being the tokens per ms that the plan itself reaches (renewal reward). The same measure says
what drafting was worth: its advantage over plain decoding, in ms of a cycle, is averaged, and while
it is negative nothing is drafted, but for trials that take at most 1 % of the time, so that a
change is noticed. Where not even drafts that are certain to be accepted pay, nothing is tried.
"""

from __future__ import annotations

from .cost import CycleCost
from .livecost import LiveCost

TRIAL_SHARE = 0.01
# A cycle's weight in the running means; a trial is rare and weighs more.
RATE_WEIGHT = 0.02
ADVANTAGE_WEIGHT = 0.1
TRIAL_WEIGHT = 0.3
# No head is right often enough for longer chains to be worth considering.
LONGEST_CHAIN = 16


class DraftingRule:
    """root_union: weighted union of experts of one row."""

    def __init__(self, live: LiveCost, root_union: float, max_rows: int) -> None:
        self._live = live
        self._root_union = root_union
        self._max_rows = max_rows
        self._judged: tuple[CycleCost | None, bool] = (None, False)
        cost = live.now
        self._tokens = 1.0
        self._ms = self._plain_ms(cost)
        # Hopeful at first, but one disappointing cycle is enough to change that.
        self._advantage = 0.5 * float(cost.level_ms[0])
        self._on_trial = False
        self._trial_ms = 0.0
        self._trial_cost = float(cost.level_ms[0])
        self._decoding_ms = 0.0

    @property
    def rate(self) -> float:
        """Long-run tokens per ms, as predicted for the machine that is planned for."""
        return self._tokens / self._ms

    def may_draft(self, planning_ms: float) -> bool:
        """Whether drafts that are certain to be accepted, and bring no experts, would pay.

        planning_ms: what planning takes a level.
        """
        cost = self._live.now
        if self._judged[0] is not cost:
            plain = 1 / self._plain_ms(cost)
            lengths = range(1, min(LONGEST_CHAIN, self._max_rows - 1) + 1)
            pays = any((1 + n) / self._chain_ms(cost, n, planning_ms) > plain for n in lengths)
            self._judged = (cost, pays)
        return self._judged[1]

    def begin(self, planning_ms: float) -> bool:
        """Whether to draft in this cycle."""
        if not self.may_draft(planning_ms):
            return False
        self._on_trial = self._advantage <= 0
        if not self._on_trial:
            return True
        return self._trial_ms + self._trial_cost <= TRIAL_SHARE * self._decoding_ms

    def weigh(self, committed: float, ms: float) -> None:
        """Learns what drafting was worth: its plan was expected to commit `committed` in `ms`."""
        advantage = (committed - 1) / self.rate - (ms - self._plain_ms(self._live.now))
        weight = TRIAL_WEIGHT if self._on_trial else ADVANTAGE_WEIGHT
        self._advantage += weight * (advantage - self._advantage)

    def learn(self, committed: int, ms: float, draft_ms: float) -> None:
        """Learns from a finished cycle: tokens, its time as predicted, and what drafting took."""
        self._tokens += RATE_WEIGHT * (committed - self._tokens)
        self._ms += RATE_WEIGHT * (ms - self._ms)
        self._decoding_ms += ms
        if self._on_trial and draft_ms > 0:
            self._trial_ms += draft_ms
            self._trial_cost = draft_ms

    def _plain_ms(self, cost: CycleCost) -> float:
        return cost.verify_ms(1, self._root_union)

    def _chain_ms(self, cost: CycleCost, drafts: int, planning_ms: float) -> float:
        """A cycle that drafts a chain of so many tokens, which bring no experts."""
        widths = (0, *[1] * (drafts - 1))
        planning = len(widths) * planning_ms
        return planning + cost.draft_ms(widths) + cost.verify_ms(1 + drafts, self._root_union)
