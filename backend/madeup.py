"""Cycles of made-up trees, to be timed."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from specfit.planner import DraftTree, pack, union_per_layer

from .context import Context
from .sampling import QWEN3, Sampler
from .verify import walk

# Cycles after the first of a visit, of which the last two count; one is enough for a dear shape,
# but never for these row counts: plain decoding and its first draft decide whether anything pays.
STEADY, DEAR_MS, DECISIVE = 4, 25.0, (1, 2)
UNION_LOOKS = 3

Shape = tuple[int, bool]  # rows, and whether they are one token repeated


def typical(times: list[float]) -> float:
    """The lower quartile: another program can only add to a time."""
    return float(np.quantile(times, 0.25))


@dataclass(frozen=True)
class Cycles:
    """Cycles of made-up trees behind the `n_text` tokens that the context holds."""

    context: Context
    n_text: int
    sampler: Sampler
    rng: np.random.Generator

    @classmethod
    def behind(cls, context: Context) -> Cycles:
        return cls(context, context.n_past[0], Sampler(QWEN3), np.random.default_rng(0))

    def tree(self, shape: Shape) -> DraftTree:
        """A binary tree: about as bushy as what is verified."""
        rows, alike = shape
        tokens = self.context.model.made_up(self.rng, rows)
        if alike:
            tokens[:] = tokens[0]
        parents = (np.arange(rows, dtype=np.int32) - 1) // 2
        return DraftTree(parents, tokens, self.rng.random(rows))

    def timed(self, tree: DraftTree) -> float:
        """Time of a cycle that verifies `tree`, and commits the first draft where there is one."""
        context, sampler = self.context, self.sampler
        start = time.perf_counter()
        if len(tree) == 1:
            context.decode_token(int(tree.tokens[0]))
            sampler.sample(context, 0)
        else:
            context.decode_tree(tree)
            walk(tree, lambda row: sampler.sample(context, row), lambda _token: True)
            context.commit([[0, 1]])
        if context.tapped:
            np.array(context.features(len(tree))[:2])
        return (time.perf_counter() - start) * 1e3

    def visit(self, shape: Shape) -> list[float]:
        """Times of a shape's cycles in a row, the first of them after another number of rows."""
        times = [self.timed(self.tree(shape))]
        for _ in range(STEADY if times[0] < DEAR_MS or shape[0] in DECISIVE else 1):
            times.append(self.timed(self.tree(shape)))
        self.context.truncate(self.n_text)
        return times

    def union(self, shape: Shape) -> float:
        """Mean union per layer of a shape: observed, outside of any timing."""
        info, observer = self.context.model.info, self.context.observer
        if not info.n_experts:
            return 0.0
        seen: list[float] = []
        for _ in range(1 if observer is None else UNION_LOOKS):
            if observer is not None:
                observer.arm()
                spent = self.timed(self.tree(shape))
                observer.disarm()
                self.context.truncate(self.n_text)
                ids = observer.selections(shape[0])
                if ids is not None:
                    sets = pack(np.maximum(ids, 0), info.n_experts)
                    seen.append(float(union_per_layer(sets).mean()))
                if spent > DEAR_MS:
                    break
        if seen:
            return float(np.mean(seen))
        # Unobserved, different tokens are taken to choose independently.
        share = 1 if shape[1] else shape[0]
        return float(info.n_experts * (1 - (1 - info.n_experts_used / info.n_experts) ** share))
