"""When to draft, when to stop, and the long-run rate that plans are weighed against.

The plan that maximises the throughput of a whole text maximises E(S) - rate * T(S) in every cycle,
`rate` being the tokens per ms that the plan itself reaches (renewal reward).

Drafting goes on while the gain to expect of one more level, calibrated by what such levels gained,
is positive. Where nothing is drafted nothing is learned: trials that take little of the time
make sure that a change is noticed. Where not even drafts that are certain to be accepted pay,
nothing is tried. Where every cycle drafts, plain ones are tried (`PlainSpells`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .cost import CycleCost
from .drafts import Drafts, without_experts
from .gains import Gains
from .livecost import LiveCost
from .policies import NOTHING
from .reason import Step
from .search import Plan
from .spells import PlainSpells
from .streak import Streak, Switching
from .tree import FloatArray

# Of the time, what trials of drafts may take, and what preparing an answer for them may.
TRIAL_SHARE, PREPARING_SHARE = 1 / 200, 1 / 100
# A cycle's weight in the running means.
RATE_WEIGHT = 0.02
# No head is right often enough for longer chains to be worth considering.
LONGEST_CHAIN = 16
# What plans with lookups have spared counts up to so many plain cycles, and so many at first.
MOST_SPARED, FIRST_SPARED = 20.0, 2.0
# The tables for a quick answer are looked at again after so many questions; and no token that was
# found is more certain than this.
RECKONED, SUREST = 16, 0.99
# Planning that takes longer or less by no more than this factor changes nothing.
NEARLY = 1.1


class DraftingRule:
    """root_union: weighted union of experts of the roots, of which there is one a line.

    rate: long-run tokens per ms, as predicted for the machine that is planned for, never less than
    plain decoding's: at what that takes at present, since it may be another time soon, behind more
    text or with other experts in a cache.
    """

    def __init__(
        self, live: LiveCost, root_union: float, max_rows: int, gains: Gains, streak: Streak
    ) -> None:
        self._live = live
        self._root_union = root_union
        self._max_rows = max_rows
        self._lines = 1
        self._judged: tuple[CycleCost | None, float, bool] = (None, 0.0, False)
        self._surest: tuple[CycleCost, Step, float] | None = None
        # What verifying chains of 1, 2 … takes beside plain decoding, and who asked for it.
        self._chains: list[float] = []
        self._asked = self._cycle = 0
        self._finds = False
        # Tokens of a cycle, and how many plain ones it takes; and the time of one at present.
        self._tokens = self._taken = 1.0
        self._plain_ms = live.now.verify_ms(1, root_union)
        self._spared_ms = FIRST_SPARED * self._plain_ms
        self.rate = 1.0 / self._plain_ms
        self.gains, self.switching = gains, Switching(streak, live)
        self._spells = PlainSpells()
        self.abstained = False  # in the last cycle
        self._trial_ms = self._decoding_ms = self._prepaid_ms = 0.0
        self.trying = False  # the level last allowed does not promise to pay

    def turn_to(self, lines: int, root_union: float, context: int) -> None:
        """The coming cycles are of so many lines, behind so many tokens of text."""
        before, self._root_union, self._lines = self._lines, root_union, lines
        if lines != before:
            self._tokens *= lines / before
        self._stand(context)
        if lines == before:
            return
        self.switching.turn_to(lines)
        self._judged = (None, 0.0, False)
        self._surest = None
        self._chains = []

    def finds(self, planning_ms: float) -> bool:
        """Whether anything that a lookup finds can pay, as of a few cycles ago; see `may_find`."""
        if self._cycle % RECKONED == 0:
            self._finds = self.may_find(SUREST, planning_ms)
        self._cycle += 1
        return self._finds

    def may_find(self, chance: float, planning_ms: float) -> bool:
        """Whether a token of this chance that a lookup found can pay, if each one behind it halves
        what the one before leaves open, and none brings experts.

        planning_ms: of the cycle. Failed plans take no more time than such plans have spared, and
        what trials may take.
        """
        if self._spared_ms < planning_ms:
            return False
        if not self._chains or self._asked % RECKONED == 0:
            cost = self._live.now
            plain_ms = self._roots_ms(cost) - self.switching.entry_ms
            chains = [cost.verify_ms(self._lines + n, self._root_union) for n in self._lengths]
            self._chains = [ms - plain_ms for ms in chains]
        self._asked += 1
        rate, tokens, path = self.rate, 0.0, 1.0
        for ms in self._chains:
            path *= chance
            tokens += path
            if tokens > rate * (ms + planning_ms):
                return True
            chance = (1 + chance) / 2
        return False

    def spare(self, ms: float) -> None:
        """Learns what a plan with what lookups found has spared, or taken in vain if negative."""
        self._spared_ms = min(self._spared_ms + ms, MOST_SPARED * self._plain_ms)

    def may_draft(self, planning_ms: float) -> bool:
        """Whether drafts that are certain to be accepted, and bring no experts, would pay.

        planning_ms: what planning takes a level.
        """
        cost, (by, at_ms, _) = self._live.now, self._judged
        if by is not cost or not at_ms / NEARLY <= planning_ms <= at_ms * NEARLY:
            plain = self._lines / self._roots_ms(cost)
            pays = any(
                (self._lines + n) / self._chain_ms(cost, n, planning_ms) > plain
                for n in self._lengths
            )
            self._judged = (cost, planning_ms, pays)
        return self._judged[2]

    def surest(self, planning_ms: float) -> tuple[Step, float]:
        """The chain that takes the least time a draft, by the tables that `may_draft` judged last,
        and the time of a plain cycle."""
        cost = self._judged[0] or self._live.now
        if self._surest is None or self._surest[0] is not cost:
            plain_ms = self._roots_ms(cost)
            extra_ms = {n: self._chain_ms(cost, n, planning_ms) - plain_ms for n in self._lengths}
            n = min(self._lengths, key=lambda n: extra_ms[n] / n)
            self._surest = (cost, Step(extra_ms[n], float(n), n), plain_ms)
        return self._surest[1:]

    def goes_on(
        self, level: int, gain: float, expected: float, ms: float, least: float = 0.0
    ) -> bool:
        """Whether to draft a level, the first one being 0.

        gain: tokens that it is predicted to gain. expected: what that is found to come to. ms: what
        drafting and planning it takes. least: tokens that it must gain to pay.
        """
        self.trying = expected <= least
        if not self.trying:
            return True
        # A later level that promises nothing need not be tried: others like it do.
        if level > 0 and gain <= 0:
            return False
        if not self.may_try(ms):
            return False
        prepaid_ms = min(ms, self._prepaid_ms)
        self._prepaid_ms -= prepaid_ms
        self.charge(ms - prepaid_ms)
        return True

    def may_try(self, ms: float) -> bool:
        """Whether there is time for drafts that take `ms` and promise nothing."""
        return self._affordable(ms - min(ms, self._prepaid_ms))

    def affords(self, ms: float, look_ms: float) -> bool:
        """Pays for a trial that takes `ms`, and for a look at drafts in it, if there is time."""
        if not self._affordable(ms + look_ms, PREPARING_SHARE):
            return False
        self.charge(ms + look_ms)
        self._prepaid_ms = look_ms
        return True

    def charge(self, ms: float) -> None:
        """Counts `ms` among the time that trials have taken."""
        self._trial_ms += ms

    def _affordable(self, ms: float, share: float = TRIAL_SHARE) -> bool:
        return self._trial_ms + ms <= share * self._decoding_ms

    def offer(
        self,
        drafts: Drafts,
        plan: Plan,
        unions: FloatArray,
        spent_ms: float,
        plain_ms: float,
        *,
        hoped: bool,
    ) -> float:
        """Notes, and returns in tokens, what a cycle's candidates would gain, were switching free.

        plan: the best one as it is. unions: float64 [rows + 1], weighted unions to expect.
        spent_ms: on the candidates. plain_ms: of a plain cycle, as plans are weighed. hoped: see
        `Switching.offer`.
        """
        extra_ms, lines = self.switching.by_nodes(), self._lines
        if extra_ms is None:
            return plan.committed - lines - self.rate * (plan.ms - plain_ms)
        nodes = int(np.count_nonzero(plan.keep))
        ms = plan.ms - float(extra_ms[nodes])
        if nodes == lines:
            cost = replace(drafts.cost, rows_ms=drafts.cost.rows_ms - extra_ms)
            cost = without_experts(cost, unions)
            plan = drafts.searched(NOTHING, drafts.chances, None, cost, spent_ms)
            nodes, ms = int(np.count_nonzero(plan.keep)), plan.ms
        plain_ms -= float(extra_ms[lines])
        gain_ms = (plan.committed - lines) / self.rate - (ms - plain_ms)
        self.switching.offer(gain_ms, hoped=hoped, drafts=nodes > lines)
        return self.rate * gain_ms

    @property
    def abstains(self) -> bool:
        """Whether the coming cycle is to be plain, to see what it takes."""
        return self._live.follows and self._spells.on

    def passed(self, rows: int) -> None:
        """The cycle has ended, and decoded so many."""
        self.switching.passed(rows, weighed=not self.abstained)

    def learn(self, committed: int, ms: float, context: int, drafts: int) -> None:
        """Learns from a finished cycle: tokens, its time as predicted, the text before it, and the
        drafts that were verified. Told before `passed`."""
        self._stand(context)
        self.abstained = self.abstains
        if drafts:
            gain_ms = committed / self._lines * self._plain_ms - ms
            around_ms = self._live.now.around_ms
            self._spells.passed(ms, gain_ms, self._plain_ms, around_ms)
        else:
            self._spells.passed_plain()
        self._tokens += RATE_WEIGHT * (committed - self._tokens)
        self._taken += RATE_WEIGHT * (ms / self._plain_ms - self._taken)
        self._set_rate()
        self._decoding_ms += ms
        if self._spared_ms < self._plain_ms:
            self._spared_ms += TRIAL_SHARE * ms

    def _stand(self, context: int) -> None:
        """Takes the time of a plain cycle behind so much text."""
        self._live.turn_to(context)
        rows = self._live.rows(self._lines)
        self._plain_ms = self._live.verify_ms(rows, self._root_union, context)
        self._set_rate()

    def _set_rate(self) -> None:
        self.rate = max(self._tokens / self._taken, float(self._lines)) / self._plain_ms

    @property
    def _lengths(self) -> range:
        """Of chains, behind one of the lines."""
        return range(1, min(LONGEST_CHAIN, self._max_rows - self._lines) + 1)

    def _roots_ms(self, cost: CycleCost) -> float:
        return cost.verify_ms(self._lines, self._root_union)

    def _chain_ms(self, cost: CycleCost, drafts: int, planning_ms: float) -> float:
        """A cycle that drafts a chain of so many tokens, which bring no experts."""
        levels = [(0,), *[(1,)] * (drafts - 1)]
        verify_ms = cost.verify_ms(self._lines + drafts, self._root_union)
        return len(levels) * planning_ms + cost.draft_ms(levels) + verify_ms
