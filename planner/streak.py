"""What a decode of another number of rows is worth avoiding.

After one the next decodes cost more: the first builds its graph anew, the second has a GPU record
it (`CycleCost.switch_ms`, `settle_ms`). A draft between plain cycles pays for both ways, on a GPU
about a token; drafts in every cycle, of as many rows each, pay once. So a plan is charged with what
it will take to go back, at once, and going back then costs nothing; and with less, if cycles behind
it are likely to draft as well.

The latter is a Markov decision process of two states, plain and drafting. What a plan would gain
without any switch is a draw g in every cycle; to be drafting already is worth

    v = E[max(g - a + v, 0)] - E[max(g - c + v, 0)],

c being the way there and back, and a what drafting goes on to cost for switching among its numbers
of rows: the difference of the states' relative values (Puterman 1994, 8.4), learned online from
what cycles offer. It is 0 where drafts are rare, and nearly c where every cycle gains by one.
Drafts begin when what was learned of v is at its highest, and so above what is true: of share * c,
share^2 * c is believed then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .cost import PLAINLY, PROMPT, Before, CycleCost
from .livecost import LiveCost
from .tree import FloatArray

# A cycle's weight; and what is left of a, where nothing is drafted, so that it is tried again.
WEIGHT, FORGET = 1 / 32, 1 - 1 / 512
NO_OFFER = -np.inf


class Streak:
    """share, again: v and a as shares of c."""

    def __init__(self) -> None:
        self.share = self.again = 0.0

    def extra_ms(self, cost: CycleCost, rows: int, before: Before, roots: int) -> float:
        """What switching adds to a plan of so many rows, as plans are weighed.

        before: the last decode. roots: rows of a plain cycle, which costs nothing more where the
        last one was plain. A second decode of as many rows costs nothing here: that it will be
        recorded is counted as the first one's. Behind a prompt either way is a switch.
        """
        around_ms = cost.around_ms
        if not around_ms:
            return 0.0
        if before.rows == PROMPT:
            ahead_ms = self.share**2 * around_ms - (cost.switch_ms + cost.settle_ms)
            return max(0.0, ahead_ms if rows == roots else -ahead_ms)
        if before.rows != roots:
            if rows == roots:
                return self.share * around_ms
            return 0.0 if rows == before.rows else cost.switch_ms + cost.settle_ms
        if rows == roots:
            return 0.0
        # The graph of plain cycles, which was not recorded yet, need not be.
        spared_ms = 0.0 if before.repeated else cost.settle_ms
        return max(0.0, (1 - self.share**2) * around_ms - spared_ms)

    def learn(self, gain_ms: float, around_ms: float) -> None:
        """Learns from a cycle in which drafts would have gained so much without switching; minus
        infinity where none were thought of."""
        worth_ms, again_ms = self.share * around_ms, self.again * around_ms
        news_ms = max(0.0, gain_ms - again_ms + worth_ms) - max(0.0, gain_ms - around_ms + worth_ms)
        self.share += WEIGHT * (min(news_ms / around_ms, 1.0) - self.share)

    def goes_on(self, extra_ms: float | None, around_ms: float) -> None:
        """Learns what switching took in a cycle that drafted behind one that had; None: it did
        not."""
        if extra_ms is None:
            self.again *= FORGET
        else:
            self.again += WEIGHT * (extra_ms / around_ms - self.again)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What was learned, to be kept for the pair of models."""
        return {"share": np.array(self.share), "again": np.array(self.again)}

    def restore(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Takes over what `state` gave; raises ValueError or KeyError if that is not so."""
        share, again = float(state["share"]), float(state["again"])
        if not (0 <= share <= 1 and 0 <= again <= 1):
            raise ValueError("the kept streak is damaged")
        self.share, self.again = share, again


class Switching:
    """The cycles of a policy: what was decoded last, and what drafts would gain in this one."""

    def __init__(self, streak: Streak, live: LiveCost) -> None:
        self.before = PLAINLY
        self._streak, self._live = streak, live
        self._roots = 1
        self._hoped_ms = self._offered_ms = NO_OFFER
        self._better_ms = 0.0

    def turn_to(self, roots: int) -> None:
        """Cycles are of so many lines from now on."""
        self._roots = roots

    def extra_ms(self, nodes: int) -> float:
        """What switching adds to a plan of so many nodes in this cycle."""
        return self._extra_ms(nodes, self.before)

    def by_nodes(self) -> FloatArray | None:
        """float64 [max_rows + 1]: the same for all numbers of nodes; None: nothing."""
        cost = self._live.now
        if not cost.around_ms:
            return None
        rows, roots = cost.all_rows, cost.rows(self._roots)
        extra_ms = np.full(len(rows), self.extra_ms(0))
        for same in (roots, self.before.rows):
            extra_ms[rows == same] = self._streak.extra_ms(cost, same, self.before, roots)
        return extra_ms

    @property
    def entry_ms(self) -> float:
        """What it adds to a draft behind plain cycles."""
        plainly = Before(self._live.now.rows(self._roots))
        return self._extra_ms(self._roots + 1, plainly)

    def _extra_ms(self, nodes: int, before: Before) -> float:
        cost = self._live.now
        return self._streak.extra_ms(cost, cost.rows(nodes), before, cost.rows(self._roots))

    def hope(self, gain_ms: float) -> None:
        """Notes by how much a head's drafts are hoped to beat a plain cycle, were it not for
        switching."""
        self._hoped_ms = gain_ms
        self._offered_ms = max(self._offered_ms, gain_ms + self._better_ms)

    def offer(self, gain_ms: float, *, hoped: bool, drafts: bool = True) -> None:
        """Notes by how much the best plan of a cycle's candidates would beat a plain one, were it
        not for switching. hoped: they are what was hoped for. drafts: it has some; else they would
        gain less than that, and nobody knows how much less."""
        self._offered_ms = gain_ms if drafts else NO_OFFER
        if hoped:
            self._better_ms += WEIGHT * (gain_ms - self._hoped_ms - self._better_ms)

    def passed(self, rows: int, *, weighed: bool = True) -> None:
        """The cycle has ended, and decoded so many. weighed: drafts could have been made."""
        if weighed and (around_ms := self._live.now.around_ms):
            cost = self._live.now
            roots = cost.rows(self._roots)
            self._streak.learn(self._offered_ms, around_ms)
            on = self.before.rows not in (PROMPT, roots) and rows != roots
            self._streak.goes_on(cost.extra_ms(rows, self.before) if on else None, around_ms)
        self._hoped_ms = self._offered_ms = NO_OFFER
