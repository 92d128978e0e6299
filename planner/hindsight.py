"""Two modes that only a replay can have, to measure the others by.

`oracle` knows the true experts of every candidate and the target's true probabilities, though not
what was drawn by them, and plans as `specfit` would. `static` is the best tree that is the same in
every cycle, chosen after the fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .beliefs import Beliefs
from .cost import PROMPT, Before, CycleCost
from .experts import union_per_layer
from .policies import NOTHING, Baseline, Choice
from .replay import PLANNING_MS, Cache, ReplayedCycle, accepted_nodes
from .search import Plan, best_subtree
from .trace import TracedStep, TracedText
from .tree import DraftTree, FloatArray, IntArray

# States that a search may visit: nobody waits for an oracle.
PATIENCE = 200
RATE_WEIGHT = 0.02
# Rank paths that a fixed tree is made of, and steps by which it is chosen.
MOST_NODES, SAMPLE = 40, 400

Ranks = tuple[int, ...]


def replay_oracle(
    texts: Sequence[TracedText], cost: CycleCost, cache: Cache | None = None
) -> list[ReplayedCycle]:
    """Every cycle as the oracle would plan it."""
    cycles: list[ReplayedCycle] = []
    cost, tokens, ms = cost.padded(), 1.0, 0.0
    held = None if cache is None else cache.begun
    for text in texts:
        at, before = 0, Before(PROMPT)
        while at < len(text.steps):
            steps = text.steps[at:]
            folded = cost.behind(steps[0].context, before)
            if held is not None:
                folded = replace(folded, resident=held.sets)
            ms = ms or folded.verify_ms(1, folded.weighted_union(steps[0].experts[:1]))
            plan, levels = _oracle_plan(steps[0], folded, tokens / ms)
            tree = steps[0].tree.subtree(plan.keep)
            committed = len(accepted_nodes(tree, steps))
            experts = steps[0].experts[plan.keep]
            union = folded.weighted_union(experts)
            cycle = ReplayedCycle(
                rows=len(tree),
                levels=levels,
                committed=committed,
                union=union,
                ms=plan.ms,
                predicted_committed=plan.committed,
                predicted_union=union,
                predicted_ms=plan.ms,
                observed=False,
                padding=cost.rows(len(tree)) - len(tree),
            )
            if cache is not None and held is not None:
                held, cycle = cache.behind(held, cycle, experts)
            cycles.append(cycle)
            tokens += RATE_WEIGHT * (plan.committed - tokens)
            ms += RATE_WEIGHT * (plan.ms - ms)
            before = before.then(cost.rows(len(tree)))
            at += committed
    return cycles


def _oracle_plan(step: TracedStep, cost: CycleCost, rate: float) -> tuple[Plan, int]:
    """The best plan of the best number of levels."""
    chances = step.tree.path_products(step.target)
    best: tuple[Plan, int] | None = None
    for levels in range(int(step.tree.depths[-1]) + 1):
        n = int(np.searchsorted(step.tree.depths, levels, side="right"))
        drafted = [(0,), *[(1,)] * (levels - 1)][:levels]
        plan = best_subtree(
            step.tree.parents[:n],
            chances[:n],
            step.experts[:n],
            None,
            cost,
            spent_ms=cost.draft_ms(drafted) + levels * PLANNING_MS,
            rate=rate,
            max_rows=cost.max_rows,
            max_states=PATIENCE,
        )
        if best is None or plan.committed - rate * plan.ms > best[0].committed - rate * best[0].ms:
            rest = np.zeros(len(step.tree) - n, np.bool_)
            keep = np.concatenate([plan.keep, rest])
            best = Plan(keep, plan.committed, plan.ms, plan.proven, plan.states), levels
    assert best is not None
    return best


class Static(Baseline):
    """Always the same tree: paths of ranks among the head's children, each with its parent."""

    def __init__(self, beliefs: Beliefs, max_rows: int, shape: Sequence[Ranks]) -> None:
        super().__init__(beliefs, max_rows)
        self.shape = set(shape)

    def begin(self, context: int, roots: Sequence[int], waiting: int = 0) -> bool:
        return bool(self.shape)

    def expand(self, tree: DraftTree, room: int) -> tuple[IntArray, int]:
        depth = int(tree.depths[-1])
        if depth >= min(room, max(map(len, self.shape))):
            return NOTHING, 0
        names = rank_paths(tree)
        inner = {path[:-1] for path in self.shape if len(path) == depth + 1}
        nodes = [node for node in range(len(tree)) if names[node] in inner]
        return np.array(nodes, np.int32), 1 + max(path[-1] for path in self.shape)

    def choose(self, tree: DraftTree) -> Choice:
        names = rank_paths(tree)
        return self._expected(tree, np.array([not name or name in self.shape for name in names]))


def rank_paths(tree: DraftTree) -> list[Ranks]:
    """For every node the ranks on its path among the children of their parents; () for the root."""
    names: list[Ranks] = [()]
    children = [0] * len(tree)
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        names.append((*names[parent], children[parent]))
        children[parent] += 1
    return names


def best_static(texts: Sequence[TracedText], cost: CycleCost) -> tuple[Ranks, ...]:
    """The fixed tree with the best throughput over the steps, grown one node at a time.

    A prefix of the growth is taken, so that a cliff in the costs can be crossed.
    """
    places = [(text, at) for text in texts for at in range(len(text.steps))]
    places = places[:: max(1, len(places) // SAMPLE)]
    views = [_StaticView(text.steps[at:]) for text, at in places]
    shape: tuple[Ranks, ...] = ()
    best_shape, best_rate = shape, _rate(views, shape, cost)
    for _ in range(MOST_NODES):
        options = {(*path, rank) for path in ((), *shape) for rank in range(4)} - set(shape)
        reached = {path: sum(path in view.accepted for view in views) for path in options}
        # The likeliest few; which of them is cheapest is worth trying.
        few = sorted(options, key=lambda path: (-reached[path], path))[:4]
        rate, shape = max((_rate(views, (*shape, path), cost), (*shape, path)) for path in few)
        if rate > best_rate:
            best_shape, best_rate = shape, rate
    return best_shape


class _StaticView:
    """A step as a fixed tree sees it: its nodes by rank path, and which are the text."""

    def __init__(self, steps: Sequence[TracedStep]) -> None:
        self.step = steps[0]
        names = rank_paths(self.step.tree)
        self.nodes = {name: node for node, name in enumerate(names)}
        self.accepted = {names[node] for node in accepted_nodes(self.step.tree, steps)}


def _rate(views: Sequence[_StaticView], shape: tuple[Ranks, ...], cost: CycleCost) -> float:
    """Tokens per ms of a fixed tree, every step counted alike."""
    tokens, ms = 0, 0.0
    levels = max(map(len, shape), default=0)
    drafting = cost.draft_ms([(0,), *[(1,)] * (levels - 1)][:levels])
    for view in views:
        nodes = [view.nodes[path] for path in ((), *shape) if path in view.nodes]
        union = cost.weighted_union(view.step.experts[nodes])
        tokens += 1 + sum(path in view.accepted for path in shape)
        ms += drafting + cost.at(view.step.context).verify_ms(len(nodes), union)
    return tokens / ms


def mean_unions(texts: Sequence[TracedText], max_rows: int) -> FloatArray:
    """float64 [max_rows + 1]: mean union per layer of the likeliest so many nodes of a step."""
    counts = [n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if n <= max_rows]
    sums = np.zeros((2, len(counts)))
    steps = [step for text in texts for step in text.steps]
    for step in steps[:: max(1, len(steps) // SAMPLE)]:
        order = np.argsort(-step.tree.path_probs, kind="stable")
        for i, n in enumerate(counts):
            if n <= len(order):
                sums[:, i] += union_per_layer(step.experts[order[:n]]).mean(), 1
    known = sums[1] > 0
    means = sums[0, known] / sums[1, known]
    return np.interp(np.arange(max_rows + 1), np.array(counts)[known], means)
