"""What a set of draft nodes must at least pay for its experts, and the states of the search.

An expert of a layer (an item) is loaded once, whoever uses it, so the experts of a subtree cost
less than the sum over its nodes. Split the price of each item over its users in any way: a set of
nodes then costs at least the sum of its nodes' shares, since an item it needs is paid in full
while its members hold a part of the shares at most. A price per node makes the bound modular,
hence easy; how tight it is depends on the split. The split here is by bids: every user pays in
proportion to its bid. Equal bids are weak where rows are cheap, because many unlikely nodes then
carry most of the price of an expert that one likely node needs. Bids equal to the nodes' chances
are near the best split for the likeliest plans, and any split that matters is the limit of some
bids, so that moving the bids (`search.py`) brings the bound down to that of a maximum closure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .experts import WORD, Bitsets
from .tree import BoolArray, FloatArray

Indices = NDArray[np.intp]
# Keeps the division defined for items that nobody uses any more.
NO_BID = 1e-300
ZERO = np.zeros(1)


@dataclass(frozen=True)
class Prices:
    """What undecided nodes would add to the weighted union of the nodes already in the subtree.

    A node does not use what one of its ancestors brings, for it never comes without them. Few of
    the items concern a node, so who uses what is a list of pairs.

    own:     float64 [u], weight of the new experts that no other undecided node uses.
    users:   [pair], the node of each use of a shared item, ascending.
    items:   [pair], the item.
    weights: float64 [item].
    """

    own: FloatArray
    users: Indices
    items: Indices
    weights: FloatArray

    def shares(self, bids: FloatArray) -> FloatArray:
        """float64 [u]: each node's share of the prices, in weighted experts, for `bids` [u] > 0."""
        if not len(self.users):
            return self.own
        offered = np.bincount(self.items, bids.take(self.users), len(self.weights))
        per_bid = (self.weights / np.maximum(offered, NO_BID)).take(self.items)
        # Sums over each node's uses; a node without any needs a place to stand at, and counts as 0.
        ends = self.users.searchsorted(np.arange(len(self.own) + 1))
        per_bid = np.concatenate((per_bid, ZERO))
        sums = np.add.reduceat(per_bid, ends[:-1]) * (ends[:-1] < ends[1:])
        shares: FloatArray = self.own + bids * sums
        return shares

    def price(self, node: int) -> float:
        """What the node alone would add."""
        return float(self.own[node] + self.weights[self.items[self.users == node]].sum())

    def without(self, node: int) -> Prices:
        """The prices for the others once `node` and its items are paid."""
        unpaid = np.ones(len(self.weights), np.bool_)
        unpaid[self.items[self.users == node]] = False
        pairs = unpaid[self.items]
        users = self.users[pairs]
        own = np.concatenate((self.own[:node], self.own[node + 1 :]))
        return Prices(own, users - (users > node), self.items[pairs], self.weights)

    def only(self, nodes: BoolArray) -> Prices:
        """The prices for the nodes that are set [u], the others having been ruled out."""
        pairs = nodes[self.users]
        users = (nodes.cumsum() - 1)[self.users[pairs]]
        return Prices(self.own[nodes], users, self.items[pairs], self.weights)


def new_expert_prices(sets: Bitsets, up: Indices, root: Bitsets, weights: FloatArray) -> Prices:
    """Prices of undecided nodes, only the root being in the subtree.

    sets: uint64 [u, word], experts of all layers; up: [u], position of each node's parent, its own
    for children of the root; root: [word], the root's experts; weights: float64 [word], weight of
    an expert in that word.
    """
    beyond_root = sets & ~root
    new = beyond_root & ~_brought_by_ancestors(beyond_root, up)
    sofar = np.bitwise_or.accumulate(new, axis=0)
    shared = np.bitwise_or.reduce(sofar[:-1] & new[1:], axis=0)
    own = np.bitwise_count(new & ~shared) @ weights
    width = WORD * len(weights)
    uses = _positions(new & shared)
    users = uses // max(width, 1)
    items = _positions(shared)
    number = np.zeros(width, np.intp)
    number[items] = np.arange(len(items))
    return Prices(own, users, number[uses - users * width], weights[items // WORD])


def _brought_by_ancestors(sets: Bitsets, up: Indices) -> Bitsets:
    """[u, word]: union of the sets [u, word] of each node's ancestors, without the node itself."""
    union, reach = sets, up
    while True:
        # Unions over 1, 2, 4 ... nodes of the path upwards.
        union = union | union[reach]
        further = reach[reach]
        if (further == reach).all():
            break
        reach = further
    brought: Bitsets = union[up]
    brought[up == np.arange(len(up))] = 0
    return brought


def _positions(sets: Bitsets) -> Indices:
    """Positions of the bits that are set; words stay in order, bits within a word need not."""
    # Few bits are set: looking at the bytes that have any is several times faster.
    octets = sets.reshape(-1).view(np.uint8)
    at = (octets != 0).nonzero()[0]
    bits = np.unpackbits(octets[at]).view(np.bool_).nonzero()[0]
    positions: Indices = at[bits >> 3] * 8 + (bits & 7)
    return positions


@dataclass(frozen=True)
class State:
    """The plans that keep `kept` (and the root), and any of the undecided `open` nodes.

    committed, union: E and weighted union of the kept nodes.
    counts: [c], row counts that may still win.
    open:   [u], undecided nodes in falling order of chance, parents first.
    up:     [u], position in `open` of a node's parent; its own if the parent is kept.
    live:   bool [c, u], the node may belong to a winning plan with that many rows.
    prices: what the undecided nodes would add to the union.
    bids:   [u], for the experts that they share.
    dues:   [u], what each node pays its parent for coming along; to itself if that is kept.
    """

    kept: tuple[int, ...]
    committed: float
    union: float
    counts: Indices
    open: Indices
    up: Indices
    live: BoolArray
    prices: Prices
    bids: FloatArray
    dues: FloatArray

    @property
    def rows(self) -> int:
        return 1 + len(self.kept)

    def narrowed(self, counts: BoolArray, nodes: BoolArray) -> State:
        """Only the row counts [c] and the nodes [u] that are set; nodes come with their parents."""
        live = self.live if counts.all() else self.live[counts]
        if nodes.all():
            return replace(self, counts=self.counts[counts], live=live)
        position = nodes.cumsum() - 1
        return replace(
            self,
            counts=self.counts[counts],
            open=self.open[nodes],
            up=position[self.up[nodes]],
            live=live[:, nodes],
            prices=self.prices.only(nodes),
            bids=self.bids[nodes],
            dues=self.dues[nodes],
        )

    def without(self, place: int) -> State | None:
        """The plans without the node at `place`, hence without its descendants."""
        nodes = closed(np.arange(len(self.open)) != place, self.up)
        if not nodes.any():
            return None
        return self.narrowed(np.ones(len(self.counts), np.bool_), nodes)

    def including(self, place: int, chance: float) -> State:
        """The plans with the node at `place`, whose parent is kept. No row count or undecided node
        may be left."""
        own = np.arange(len(self.open))
        others = own != place
        position = others.cumsum() - 1
        kept = (*self.kept, int(self.open[place]))
        counts = self.live[:, place] & (self.counts > 1 + len(kept))
        return State(
            kept=kept,
            committed=self.committed + chance,
            union=self.union + self.prices.price(place),
            counts=self.counts[counts],
            open=self.open[others],
            up=position[np.where(self.up == place, own, self.up)[others]],
            live=self.live[counts][:, others],
            prices=self.prices.without(place),
            bids=self.bids[others],
            dues=self.dues[others],
        )


def closed(nodes: BoolArray, up: Indices) -> BoolArray:
    """bool [u]: `nodes` without those that have an ancestor among the others."""
    while True:
        rest = nodes & nodes[up]
        if (rest == nodes).all():
            return rest
        nodes = rest


def by_falling(values: FloatArray, up: Indices) -> Indices:
    """[u]: positions by falling value, but parents (which come first) before their children."""
    while True:
        capped = np.minimum(values, values[up])
        if (capped == values).all():
            return np.argsort(-values, kind="stable")
        values = capped
