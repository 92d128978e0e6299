"""The exact search for the draft subtree to verify.

Among the ancestor-closed subtrees S with at most `max_rows` nodes, the root included, it finds the
one with the most expected tokens E(S) for its time T(S): either the largest E - rate * T, or the
largest ratio E / T. The tables of T are arbitrary: cliffs, falling steps, any price of an expert.

Branch and bound, and nearly always bound alone:

1. The likeliest 1, 2 ... nodes give a first plan. Row counts and nodes that could not beat it if
   all new experts were free are dropped. Where rows cost much this leaves a handful of nodes, and
   often none, before the nodes' experts were compared.
2. With the price of every shared expert split over its users (`bounds.py`), what a plan of n rows
   can reach at most is a sum over the n - 1 best nodes, whatever the tables. A node is dropped for
   n rows if no plan of n rows with it can beat the best one known. That a node needs its parent is
   priced the same way: with any payments from children to parents it stays a bound, and they make
   up for parents that pay only because of their children. Bids and payments are moved towards the
   best bound for the row count that promises most (a multiplicative and a projected gradient step
   of the dual problem), and the bound is taken again, as long as it becomes much tighter. For
   linear tables it converges to the minimum cut. The nodes in the order of what they gain give
   further plans to beat.
3. What is left is decided node by node, parents first, "keep" before "drop", with the bound of
   step 2 in every state. The last few nodes are settled by looking at all their subsets.

The ratio needs no iteration of its own: a plan beats the ratio r of the best known plan exactly if
its E - r * T is positive, so the search runs with r as its rate and raises it with every better
plan. A higher rate only lowers values, so what was ruled out stays ruled out.

Of plans of equal worth the one with fewer rows is taken. There is no clock: effort is counted in
states, and a search that stops at `max_states` says that its plan is not proven.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from .bounds import Indices, State, by_falling, closed, new_expert_prices
from .cost import CycleCost
from .experts import Bitsets
from .tree import BoolArray, FloatArray, IntArray

# Differences of worth below this many tokens are rounding.
TINY = 1e-10
# So few undecided nodes are settled by looking at all their subsets.
FEW = 6
# In one state the bound is taken again while it is this much tighter than the last one, or drops
# nodes; at most so many times.
PROGRESS = 0.8
ROUNDS = 20
# The largest factor of a bid in one step (squared), and the smallest bid relative to the largest.
STRETCH = 5.0
LEAST_BID = 1e-200
# What part of the difference in gain a child pays its parent in one step.
PAYMENT = 0.25


@dataclass(frozen=True)
class Plan:
    """A subtree to verify.

    keep:      bool [n], ancestor-closed, root included.
    committed: E, expected committed tokens of the cycle: the sum of the kept nodes' chances.
    ms:        T, the predicted time of the cycle.
    proven:    the best plan of all, not merely the best one found within the states allowed.
    states:    search states visited; 0 if the first step settled it.
    """

    keep: BoolArray
    committed: float
    ms: float
    proven: bool
    states: int


@cache
def _subsets(size: int) -> BoolArray:
    """bool [2^size, size]: in row r the bits of r, the lowest first."""
    return (np.arange(1 << size)[:, None] >> np.arange(size)) & 1 > 0


def best_subtree(
    parents: IntArray,
    chances: FloatArray,
    experts: Bitsets | None,
    unforeseen: FloatArray | None,
    cost: CycleCost,
    *,
    spent_ms: float,
    rate: float | None,
    max_rows: int,
    max_states: int,
) -> Plan:
    """The subtree of the draft tree with the best predicted throughput.

    parents:    [n], parents before children; -1 for the root, node 0.
    chances:    [n], probability that the node is committed; 1 for the root, and never more than the
                parent's.
    experts:    uint64 [n, layer, word], the experts each node is expected to use; None where they
                are no part of the cost.
    unforeseen: [n], weighted number of further experts that no other node shares.
    spent_ms:   time that is paid for whatever is kept: drafting, planning.
    rate:       tokens per ms, for the largest E - rate * T; None for the largest E / T.
    max_rows:   rows that can be verified, root included; the cost tables limit them too.
    max_states: states after which the search stops.

    For the ratio, row counts that the tables give no positive time even if no expert is new are
    left out.

    Raises ValueError if a node's chance exceeds its parent's, if no row may be verified, or if the
    ratio is asked for and the tables give the root alone no positive time.
    """
    if (chances[1:] > chances[parents[1:]]).any():
        raise ValueError("a draft node's chance exceeds its parent's")
    limit = min(max_rows, cost.max_rows, len(chances))
    if limit < 1:
        raise ValueError(f"at least one row must be verified, not {limit}")
    return _Search(parents, chances, experts, unforeseen, cost, spent_ms, rate, limit).run(
        max_states
    )


@dataclass(frozen=True)
class _Bound:
    """What a bound says about a state.

    live:    bool [c, u], the node may belong to a winning plan with that many rows.
    nodes:   bool [u], the node may belong to some winning plan, and its ancestors as well.
    slack:   by how much the bound exceeds what is needed, at the row count that promises most.
    gain:    [u], what the nodes gain there, after their shares and dues.
    surplus: [u], by how much that exceeds the gain of the last node kept, relative to the share.
    """

    live: BoolArray
    nodes: BoolArray
    slack: float
    gain: FloatArray
    surplus: FloatArray


class _Search:
    def __init__(
        self,
        parents: IntArray,
        chances: FloatArray,
        experts: Bitsets | None,
        unforeseen: FloatArray | None,
        cost: CycleCost,
        spent_ms: float,
        rate: float | None,
        limit: int,
    ) -> None:
        size = len(chances)
        priced = cost.layer_weights > 0
        if experts is None:
            experts = np.zeros((size, len(priced), 0), np.uint64)
        if not priced.all():
            experts = experts[:, priced]
        self.parents = parents
        self.chances = chances
        self.sets = experts.reshape(size, -1)
        self.set_weights = np.repeat(cost.layer_weights[priced], experts.shape[2])
        self.unforeseen = np.zeros(size) if unforeseen is None else unforeseen
        self.fixed_ms = spent_ms + cost.rows_ms[: limit + 1]
        self.expert_ms = cost.expert_ms[: limit + 1]
        self.limit = limit
        # Of equal chances the parent, which has the lower index, comes first.
        self.order = np.argsort(-chances, kind="stable")
        # The best plan so far, without the root, and its E - rate * T.
        self.best: tuple[int, ...] = ()
        self.root_union = self._union(np.zeros(1, np.intp))
        ms = self._ms(1, self.root_union)
        self.by_ratio = rate is None
        if self.by_ratio and ms <= 0:
            raise ValueError("the cost tables give the verification of one row no time")
        self.rate = 1.0 / ms if rate is None else rate
        self.worth = 1.0 - self.rate * ms

    def run(self, max_states: int) -> Plan:
        states = 0
        root = self._root_state()
        pending = [] if root is None else [root]
        while pending and states < max_states:
            states += 1
            state = pending.pop()
            if len(state.open) <= FEW:
                self._offer_subsets(state.kept, state.open, state.up)
            elif (tightened := self._tightened(state)) is not None:
                pending += self._branches(tightened)
        nodes = np.array((0, *self.best))
        keep = np.zeros(len(self.chances), np.bool_)
        keep[nodes] = True
        committed = float(self.chances[nodes].sum())
        ms = self._ms(len(nodes), self._union(nodes))
        return Plan(keep, committed, ms, proven=not pending, states=states)

    def _ms(self, rows: int, union: float) -> float:
        return float(self.fixed_ms[rows] + self.expert_ms[rows] * union)

    def _union(self, nodes: Indices) -> float:
        """Weighted union of the experts of `nodes`."""
        union = np.bitwise_or.reduce(self.sets[nodes], axis=0)
        known = np.bitwise_count(union) @ self.set_weights
        return float(known + self.unforeseen[nodes].sum())

    def _offer(self, kept: tuple[int, ...], committed: float, union: float) -> None:
        """Makes this plan the best one if it is better, or as good with fewer rows."""
        ms = self._ms(1 + len(kept), union)
        if self.by_ratio and ms <= 0:
            return
        gain = committed - self.rate * ms - self.worth
        if gain > TINY or (gain > -TINY and len(kept) < len(self.best)):
            self.best = kept
            self.rate = committed / ms if self.by_ratio else self.rate
            self.worth = committed - self.rate * ms

    def _offer_prefixes(self, kept: tuple[int, ...], nodes: Indices) -> None:
        """Offers the best of the plans that keep `kept` and the first 0, 1 ... of `nodes`."""
        nodes = np.concatenate((np.array((0, *kept)), nodes))[: self.limit]
        sets = np.bitwise_or.accumulate(self.sets[nodes], axis=0)[len(kept) :]
        unions = np.bitwise_count(sets) @ self.set_weights
        unions += self.unforeseen[nodes].cumsum()[len(kept) :]
        committed = self.chances[nodes].cumsum()[len(kept) :]
        rows = np.arange(1 + len(kept), 1 + len(nodes))
        best = self._best_of(rows, committed, unions)
        chosen = tuple(nodes[1 : rows[best]].tolist())
        self._offer(chosen, float(committed[best]), float(unions[best]))

    def _offer_subsets(self, kept: tuple[int, ...], nodes: Indices, up: Indices) -> None:
        """Offers the best of all plans that keep `kept` and any few of `nodes` [u].

        up: [u], position of each node's parent, its own if the parent is kept.
        """
        before = np.array((0, *kept))
        sets = np.bitwise_or.reduce(self.sets[before], axis=0, keepdims=True)
        for node in nodes:
            sets = np.concatenate((sets, sets | self.sets[node]))
        members = _subsets(len(nodes))
        unions = np.bitwise_count(sets) @ self.set_weights
        unions += members @ self.unforeseen[nodes] + self.unforeseen[before].sum()
        committed = members @ self.chances[nodes] + self.chances[before].sum()
        rows = members.sum(axis=1) + len(before)
        allowed = ((members <= members[:, up]).all(axis=1) & (rows <= self.limit)).nonzero()[0]
        best = allowed[self._best_of(rows[allowed], committed[allowed], unions[allowed])]
        chosen = (*kept, *nodes[members[best]].tolist())
        self._offer(chosen, float(committed[best]), float(unions[best]))

    def _best_of(self, rows: Indices, committed: FloatArray, unions: FloatArray) -> int:
        """Index of the best of some plans; of equal ones that with the fewest rows."""
        ms = self.fixed_ms[rows] + self.expert_ms[rows] * unions
        worth = committed - self.rate * ms
        if self.by_ratio:
            rate = (committed / np.where(ms > 0, ms, np.inf)).max()
            worth = np.where(ms > 0, committed - rate * ms, -np.inf)
        near = (worth >= worth.max() - TINY).nonzero()[0]
        return int(near[rows[near].argmin()])

    def _needed(self, counts: Indices) -> FloatArray:
        """[c]: what a plan with so many rows must exceed to become the best one."""
        return np.where(counts < 1 + len(self.best), self.worth - TINY, self.worth + TINY)

    def _root_state(self) -> State | None:
        """The state to start from, None if the best plan is known already."""
        nodes = self.order[1:]
        chances = self.chances[nodes]
        hoped = chances.cumsum()[: self.limit - 1]
        counts = np.arange(2, self.limit + 1)
        free_ms = self.fixed_ms[2:] + self.expert_ms[2:] * self.root_union
        if self.by_ratio:
            free_ms = np.where(free_ms > 0, free_ms, np.inf)
        possible = 1.0 + hoped - self.rate * free_ms > self._needed(counts)
        if not possible.any():
            return None
        self._offer_prefixes((), nodes[: int(counts[possible][-1]) - 1])
        # In a plan of so many rows a node must have a higher chance than this, were experts free.
        others = hoped - chances[: len(hoped)]
        least = self._needed(counts) - (1.0 + others - self.rate * free_ms)
        live = chances > least[:, None]
        # Where just enough nodes have it, they are the likeliest, and that plan was offered.
        possible &= live.sum(axis=1) >= counts
        if not possible.any():
            return None
        live = live[possible]
        size = int(live.any(axis=0).sum())
        nodes, live = nodes[:size], live[:, :size]
        up = self._parent_positions(nodes)
        if size <= FEW:
            self._offer_subsets((), nodes, up)
            return None
        prices = new_expert_prices(self.sets[nodes], up, self.sets[0], self.set_weights)
        return State(
            kept=(),
            committed=1.0,
            union=self.root_union,
            counts=counts[possible],
            open=nodes,
            up=up,
            live=live,
            prices=replace(prices, own=prices.own + self.unforeseen[nodes]),
            bids=np.maximum(chances[:size], LEAST_BID),
            dues=np.zeros(size),
        )

    def _parent_positions(self, nodes: Indices) -> Indices:
        """[u]: position of each node's parent among `nodes`, its own where that is the root."""
        own = np.arange(len(nodes))
        position = np.zeros(len(self.parents), np.intp)
        position[nodes] = own
        parents = self.parents[nodes]
        return np.where(parents == 0, own, position[parents])

    def _tightened(self, state: State) -> State | None:
        """The state without what cannot lead to a better plan; None if nothing can.

        Offers the plans that the bounds suggest.
        """
        slack = np.inf
        for _ in range(ROUNDS):
            bound = self._bound(state)
            if bound is None:
                return None
            self._offer_prefixes(state.kept, state.open[by_falling(bound.gain, state.up)])
            before, state = len(state.open), self._dropped(state, bound)
            if bound.slack > PROGRESS * slack and len(state.open) == before:
                break
            slack = bound.slack
        return state

    def _bound(self, state: State) -> _Bound | None:
        """The bound by the state's bids and dues; None if no plan of the state is good enough."""
        counts = state.counts
        size = len(state.open)
        shares = state.prices.shares(state.bids)
        price = self.rate * self.expert_ms[counts]
        chances = self.chances[state.open] - state.dues
        chances += np.bincount(state.up, state.dues, size)
        gains = np.where(state.live, chances - price[:, None] * shares, -np.inf)
        ranked = gains.copy()
        ranked.sort(axis=1)
        ranked = ranked[:, ::-1]
        each = np.arange(len(counts))
        more = counts - state.rows  # nodes still to be kept
        at_most = np.minimum(more, size)
        last = np.where(more <= size, ranked[each, at_most - 1], -np.inf)
        others = np.where(more > 1, ranked.cumsum(axis=1)[each, at_most - 2], 0.0)
        ms = self.fixed_ms[counts] + self.expert_ms[counts] * state.union
        spare = others + (state.committed - self.rate * ms - self._needed(counts))
        # A node that is forced in takes the place of the last of the best.
        live = np.minimum(gains, last[:, None]) > -spare[:, None]
        live &= live[:, state.up]
        nodes = closed(live.any(axis=0), state.up)
        if not nodes.any():
            return None
        slack = spare + last
        critical = int(slack.argmax())
        paid = price[critical] * shares
        gain = chances - paid
        surplus = (gain - last[critical]) / (paid + TINY)
        return _Bound(live, nodes, float(slack[critical]), gain, surplus)

    def _dropped(self, state: State, bound: _Bound) -> State:
        """The state without what the bound rules out, with bids and dues for a better bound."""
        factors = np.minimum(np.maximum(1.0 + bound.surplus, 1 / STRETCH), STRETCH)
        bids = state.bids * factors**2
        bids = np.maximum(bids / bids.max(), LEAST_BID)
        dues = np.maximum(state.dues + PAYMENT * (bound.gain - bound.gain[state.up]), 0.0)
        state = replace(state, live=bound.live, bids=bids, dues=dues)
        return state.narrowed(np.logical_or.reduce(bound.live, axis=1), bound.nodes)

    def _branches(self, state: State) -> list[State]:
        """The states with one more node decided; the last of them is to be looked at first."""
        place = int((state.up == np.arange(len(state.up))).nonzero()[0][0])
        kept = state.including(place, float(self.chances[state.open[place]]))
        self._offer(kept.kept, kept.committed, kept.union)
        dropped = state.without(place)
        branches = [] if dropped is None else [dropped]
        if len(kept.counts) and len(kept.open):
            branches.append(kept)
        return branches
