"""When to draft, when to stop, and the long-run rate that plans are weighed against.

The plan that maximises the throughput of a whole text maximises E(S) - rate * T(S) in every cycle,
`rate` being the tokens per ms that the plan itself reaches (renewal reward).

Before every level there is a prediction of what it gains, in the measure of plans: an optimistic
one, since it knows neither which children will come nor which experts they bring, and a pessimistic
one, since only children that turn out well will be used. What the level and those behind it really
gained is seen afterwards, so the prediction is calibrated by a regression, one for the first level
and one for the further ones. Drafting goes on while the calibrated gain is positive. Where nothing
is drafted nothing is learned: trials that take at most 1 % of the time make sure that a change is
noticed. Where not even drafts that are certain to be accepted pay, nothing is tried.
"""

from __future__ import annotations

import numpy as np

from .acceptance import TOGETHER
from .cost import CycleCost
from .livecost import LiveCost
from .reason import Step
from .regression import RunningRegression

TRIAL_SHARE = 0.01
# A cycle's weight in the running means.
RATE_WEIGHT = 0.02
# In the calibration of gains: cycles after which one weighs half, and how precise one is (the
# inverse of a variance in tokens squared).
MEMORY, PRECISION = 800.0, 40.0
# No head is right often enough for longer chains to be worth considering.
LONGEST_CHAIN = 16


class DraftingRule:
    """root_union: weighted union of experts of the roots, of which there is one a line."""

    def __init__(self, live: LiveCost, root_union: float, max_rows: int) -> None:
        self._live = live
        self._root_union = root_union
        self._max_rows = max_rows
        self._lines = 1
        self._judged: tuple[CycleCost | None, bool] = (None, False)
        self._surest: tuple[CycleCost, Step, float] | None = None
        self._tokens = 1.0
        self._ms = live.now.verify_ms(1, root_union)
        prior, deviations = np.array([0.0, 1.0]), np.array([0.2, 0.5])
        self._gains = [RunningRegression(prior, deviations, MEMORY) for _ in range(2)]
        self._news: list[list[tuple[float, float]]] = [[], []]  # predicted, gained
        self._trial_ms = self._decoding_ms = 0.0
        self.trying = False  # the level last allowed does not promise to pay

    @property
    def rate(self) -> float:
        """Long-run tokens per ms, as predicted for the machine that is planned for."""
        return self._tokens / self._ms

    def turn_to(self, lines: int, root_union: float) -> None:
        """Cycles are of so many lines from now on."""
        if lines == self._lines:
            self._root_union = root_union
            return
        before_ms = self._plain_ms(self._live.now)
        self._tokens *= lines / self._lines
        self._lines, self._root_union = lines, root_union
        self._ms *= self._plain_ms(self._live.now) / before_ms
        self._judged = (None, False)
        self._surest = None

    def may_draft(self, planning_ms: float) -> bool:
        """Whether drafts that are certain to be accepted, and bring no experts, would pay.

        planning_ms: what planning takes a level.
        """
        cost = self._live.now
        if self._judged[0] is not cost:
            plain = self._lines / self._plain_ms(cost)
            pays = any(
                (self._lines + n) / self._chain_ms(cost, n, planning_ms) > plain
                for n in self._lengths
            )
            self._judged = (cost, pays)
        return self._judged[1]

    def surest(self, planning_ms: float) -> tuple[Step, float]:
        """The chain that takes the least time a draft, by the tables that `may_draft` judged last,
        and the time of a plain cycle."""
        cost = self._judged[0] or self._live.now
        if self._surest is None or self._surest[0] is not cost:
            plain_ms = self._plain_ms(cost)
            extra_ms = {n: self._chain_ms(cost, n, planning_ms) - plain_ms for n in self._lengths}
            n = min(self._lengths, key=lambda n: extra_ms[n] / n)
            self._surest = (cost, Step(extra_ms[n], float(n), n), plain_ms)
        return self._surest[1:]

    def goes_on(self, level: int, gain: float, ms: float) -> bool:
        """Whether to draft a level, the first one being 0.

        gain: tokens that it is predicted to gain. ms: what drafting and planning it takes.
        """
        offset, slope = self._gains[level > 0].theta
        self.trying = bool(offset + slope * gain <= 0)
        if not self.trying:
            return True
        # A later level that promises nothing need not be tried: others like it do.
        hopeless = level > 0 and gain <= 0
        if hopeless or self._trial_ms + ms > TRIAL_SHARE * self._decoding_ms:
            return False
        self._trial_ms += ms
        return True

    def learn_gain(self, level: int, predicted: float, gained: float) -> None:
        """Learns what drafting from this level on, the first one being 0, has really gained."""
        news = self._news[level > 0]
        news.append((predicted, gained))
        if len(news) == TOGETHER:
            x, y = np.array(news).T
            design = np.stack([np.ones(len(x)), x], axis=1)
            self._gains[level > 0].learn(design, y, np.full(len(x), PRECISION))
            news.clear()

    def learn(self, committed: int, ms: float) -> None:
        """Learns from a finished cycle: tokens, and its time as predicted."""
        self._tokens += RATE_WEIGHT * (committed - self._tokens)
        self._ms += RATE_WEIGHT * (ms - self._ms)
        self._decoding_ms += ms

    @property
    def _lengths(self) -> range:
        """Of chains, behind one of the lines."""
        return range(1, min(LONGEST_CHAIN, self._max_rows - self._lines) + 1)

    def _plain_ms(self, cost: CycleCost) -> float:
        return cost.verify_ms(self._lines, self._root_union)

    def _chain_ms(self, cost: CycleCost, drafts: int, planning_ms: float) -> float:
        """A cycle that drafts a chain of so many tokens, which bring no experts."""
        levels = [(0,), *[(1,)] * (drafts - 1)]
        verify_ms = cost.verify_ms(self._lines + drafts, self._root_union)
        return len(levels) * planning_ms + cost.draft_ms(levels) + verify_ms
