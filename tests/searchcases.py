"""Problems for the search for the best subtree, and slow, plain ways to solve them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from specfit.planner import Bitsets, BoolArray, CycleCost, FloatArray, IntArray, Plan, pack
from specfit.planner.search import best_subtree

# Of the capacities of the minimum cut: prices and chances are multiples of 1 / SCALE.
SCALE = 1 << 20
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Problem:
    """uses: bool [n, layer, expert]; the rest as `best_subtree` takes it."""

    parents: IntArray
    chances: FloatArray
    uses: Flags | None
    unforeseen: FloatArray | None
    cost: CycleCost
    spent_ms: float = 0.0
    sets: Bitsets | None = None  # `uses`, where they are to lie in memory in another way

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def n_lines(self) -> int:
        return int((self.parents < 0).sum())

    @property
    def experts(self) -> Bitsets | None:
        if self.uses is None or self.sets is not None:
            return self.sets
        n, layers, n_experts = self.uses.shape
        sets = np.zeros((n, layers, -(-n_experts // 64)), np.uint64)
        for node, layer, expert in zip(*self.uses.nonzero(), strict=True):
            sets[node, layer, expert // 64] |= np.uint64(1) << np.uint64(expert % 64)
        return sets

    def solve(
        self, rate: float | None, max_rows: int | None = None, max_states: int = 100_000
    ) -> Plan:
        return best_subtree(
            self.parents,
            self.chances,
            self.experts,
            self.unforeseen,
            self.cost,
            spent_ms=self.spent_ms,
            rate=rate,
            max_rows=len(self) if max_rows is None else max_rows,
            max_states=max_states,
        )

    def committed(self, keep: BoolArray) -> float:
        return float(self.chances[keep].sum())

    def ms(self, keep: BoolArray) -> float:
        union = 0.0
        if self.uses is not None:
            union += float(self.uses[keep].any(axis=0).sum(axis=1) @ self.cost.layer_weights)
        if self.unforeseen is not None:
            union += float(self.unforeseen[keep].sum())
        return self.spent_ms + self.cost.verify_ms(int(keep.sum()), union)

    def worth(self, keep: BoolArray, rate: float | None) -> float:
        if rate is None:
            return self.committed(keep) / self.ms(keep)
        return self.committed(keep) - rate * self.ms(keep)

    def is_closed(self, keep: BoolArray) -> bool:
        n = self.n_lines
        return bool(keep[:n].all() and keep[self.parents[n:]][keep[n:]].all())

    def path(self, node: int) -> BoolArray:
        """Only the nodes from the root to `node`."""
        keep = np.zeros(len(self), np.bool_)
        while node >= 0:
            keep[node] = True
            node = int(self.parents[node])
        return keep

    def likeliest(self, rows: int) -> BoolArray:
        """Only the likeliest nodes, parents first."""
        keep = np.zeros(len(self), np.bool_)
        keep[np.argsort(-self.chances, kind="stable")[:rows]] = True
        return keep


def brute_force(problem: Problem, rate: float | None, max_rows: int) -> tuple[float, int]:
    """The best worth of all subtrees, and the fewest rows of those that have it."""
    n, lines = len(problem), problem.n_lines
    drafts = (np.arange(1 << (n - lines))[:, None] >> np.arange(n - lines)) & 1 > 0
    keep = np.concatenate((np.ones((len(drafts), lines), np.bool_), drafts), axis=1)
    rows = keep.sum(axis=1)
    closed = (keep[:, lines:] <= keep[:, problem.parents[lines:]]).all(axis=1)
    keep, rows = keep[closed & (rows <= max_rows)], rows[closed & (rows <= max_rows)]
    union = np.zeros(len(keep))
    if problem.uses is not None:
        flat = problem.uses.reshape(n, -1).astype(np.int64)
        union += (keep @ flat > 0) @ np.repeat(problem.cost.layer_weights, problem.uses.shape[2])
    if problem.unforeseen is not None:
        union += keep @ problem.unforeseen
    cost = problem.cost
    ms = problem.spent_ms + cost.rows_ms[rows] + cost.expert_ms[rows] * union
    committed = keep @ problem.chances
    worth = committed / ms if rate is None else committed - rate * ms
    best = float(worth.max())
    return best, int(rows[worth > best - 1e-11 * max(1.0, abs(best))].min())


def minimum_cut(problem: Problem, row_price: int, expert_price: int) -> float:
    """Most of the chances of draft nodes less the prices of their rows and new experts.

    A maximum-weight closure: nodes need their parents and their experts. Prices in 1 / SCALE.
    """
    assert problem.uses is not None
    n = len(problem)
    uses = problem.uses.reshape(n, -1)
    uses = uses[:, ~uses[0]]
    items = uses.shape[1]
    source, sink = n + items, n + items + 1
    drafts = np.arange(1, n)
    gains = np.rint(problem.chances[1:] * SCALE).astype(np.int64)
    inner = drafts[problem.parents[1:] > 0]
    users, used = uses.nonzero()
    unbounded = 1 << 30
    edges = [
        (np.full(n - 1, source), drafts, gains),
        (drafts, np.full(n - 1, sink), np.full(n - 1, row_price)),
        (inner, problem.parents[inner], np.full(len(inner), unbounded)),
        (users, n + used, np.full(len(users), unbounded)),
        (n + np.arange(items), np.full(items, sink), np.full(items, expert_price)),
    ]
    tails, heads, capacities = (np.concatenate(part) for part in zip(*edges, strict=True))
    graph = csr_matrix((capacities.astype(np.int32), (tails, heads)), shape=(sink + 1, sink + 1))
    return float(gains.sum() - maximum_flow(graph, source, sink).flow_value) / SCALE


def small_problem(rng: np.random.Generator, lines: int = 1) -> Problem:
    """Random trees of up to 12 nodes in all whose cost tables have cliffs and falling steps."""
    n = int(rng.integers(lines, 13))
    layers, n_experts = int(rng.integers(1, 4)), int(rng.integers(4, 80))
    drafts = [int(rng.integers(0, v)) for v in range(lines, n)]
    parents = np.array([-1] * lines + drafts, np.int32)
    # Few different probabilities now and then, so that there are ties.
    odds = rng.random(n) if rng.random() < 0.7 else rng.choice([1.0, 0.5, 0.25], n)
    chances = np.ones(n)
    for v in range(lines, n):
        chances[v] = chances[parents[v]] * odds[v]
    weights = rng.choice([0.0, 1.0, 1.0, 2.5], layers)
    uses = rng.random((n, layers, n_experts)) < rng.uniform(0.05, 0.4)
    for v in range(lines, n):
        shared = rng.random((layers, n_experts)) < 0.4
        uses[v] = np.where(shared, uses[parents[v]], uses[v])
    kind = rng.random()
    unforeseen = rng.choice([0.0, 1.0, 3.0], n) * rng.random() if kind < 0.5 else None
    steps = rng.choice([0.0, 0.1, 0.5, 5.0, -0.5, -3.0], n) * rng.random(n)
    floor_ms = np.concatenate(([0.0], np.cumsum(steps)))
    floor_ms += rng.uniform(0.1, 5.0) - floor_ms.min()
    expert_ms = rng.choice([0.0, 0.3, 1.0], n + 1) * rng.random(n + 1) * rng.choice([0.1, 0.5])
    # As measured tables are: what the root's experts cost is not in the rows, so these may even be
    # negative.
    root_union = float(uses[0].sum(axis=1) @ weights)
    rows_ms = floor_ms - rng.random() * expert_ms * root_union
    cost = CycleCost(rows_ms, expert_ms, weights, float(rng.random()))
    without_experts = kind > 0.9
    if without_experts:
        cost = CycleCost(floor_ms, expert_ms, weights, float(rng.random()))
    return Problem(
        parents,
        chances,
        None if without_experts else uses,
        unforeseen,
        cost,
        spent_ms=float(rng.uniform(0, 3)),
    )


def tied_problem(rng: np.random.Generator) -> Problem:
    """A random tree of up to 10 nodes, all of whose numbers are multiples of 1/64."""
    n = int(rng.integers(2, 11))
    parents = np.array([-1] + [int(rng.integers(0, v)) for v in range(1, n)], np.int32)
    chances = np.ones(n)
    for v in range(1, n):
        chances[v] = max(chances[parents[v]] * rng.choice([1.0, 0.5, 0.5]), 1 / 64)
    uses = rng.random((n, 1, 8)) < 0.3
    rows_ms = 1 + rng.integers(0, 9, n + 1) / 8 + np.arange(n + 1) / 4
    cost = CycleCost(rows_ms, rng.choice([0.0, 0.125, 0.25], n + 1), np.ones(1), 0.5)
    return Problem(parents, chances, uses, None, cost, spent_ms=1.0)


def sharing_problem(rng: np.random.Generator, size: int, rows: int) -> Problem:
    """Much the same nodes that share many experts, which bounds alone do not settle.

    Only plans of exactly `rows` rows are cheap, which no linear bound sees.
    """
    parents = np.array([-1] + [int(rng.integers(0, 1 + v // 3)) for v in range(size - 1)], np.int32)
    chances = np.ones(size)
    for v in range(1, size):
        chances[v] = min(chances[parents[v]], rng.uniform(0.2, 0.22))
    uses = rng.random((size, 4, 30)) < 0.1
    rows_ms = np.where(np.arange(size + 1) == rows, 0.2, 1.5)
    rows_ms[1] = 0.5
    return Problem(
        parents, chances, uses, None, CycleCost(rows_ms, np.full(size + 1, 0.03), np.ones(4), 0.0)
    )


def draft_tree(rng: np.random.Generator, total: int = 60) -> tuple[IntArray, FloatArray]:
    """Parents and chances of an EAGLE-3 tree of depth 7: ten children of each of ten best nodes."""
    parents, chances, depths = [-1], [1.0], [0]
    ease = rng.beta(1.5, 1.5)
    level = [0]
    for depth in range(1, 8):
        first = len(parents)
        for node in level:
            top = np.clip(rng.beta(0.3 + 2.2 * ease, 2.5 - 2.2 * ease), 0.02, 0.99)
            odds = np.concatenate(([top], (1 - top) * 0.4 * 0.6 ** np.arange(9)))
            parents += [node] * 10
            chances += (chances[node] * np.sort(odds)[::-1] * rng.uniform(0.75, 1)).tolist()
            depths += [depth] * 10
        level = sorted(range(first, len(parents)), key=lambda v: -chances[v])[:10]
    best = np.sort(np.lexsort((np.array(depths), -np.array(chances)))[:total])
    position = {int(node): place for place, node in enumerate(best)}
    kept = np.array([-1] + [position[parents[v]] for v in best[1:]], np.int32)
    return kept, np.floor(np.array(chances)[best] * SCALE) / SCALE


def routed(
    rng: np.random.Generator, parents: IntArray, layers: int, *, context: float = 1.6
) -> Flags:
    """bool [n, layer, 128]: 8 experts a layer, chosen by context, parent and chance.

    The unions over rows are those of Qwen3-30B-A3B: about 12.5 for 2 rows, 18.5 for 4, 25 for 8.
    """
    n = len(parents)
    likes = context * rng.standard_normal((layers, 128))
    logits = rng.standard_normal((n, layers, 128))
    for v in range(1, n):
        logits[v] = 0.4 * logits[parents[v]] + 0.92 * logits[v]
    top = np.argpartition(-(likes + logits), 8, axis=2)[:, :, :8]
    uses = np.zeros((n, layers, 128), np.bool_)
    np.put_along_axis(uses, top, True, axis=2)
    assert pack(top, 128).shape == (n, layers, 2)
    return uses
