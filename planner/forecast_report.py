"""How good a forecast of experts is, on recorded text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .experts import Bitsets, sizes, union_per_layer
from .forecast import SIGNALS, Forecast
from .policies import LOOK_EVERY
from .trace import TracedStep, TracedText
from .tree import DraftTree, best_nodes

PLAN_ROWS = (2, 4, 8)
# Rows of the plan that a planner is taken to verify.
VERIFIED = 4


@dataclass(frozen=True)
class SignalQuality:
    """A signal alone, or all of them ("mixed"), over the likeliest drafts of every step.

    jaccard, recall: means over rows and layers; recall is that of as many experts as are used.
    bias: expected over true union of the likeliest 2, 4, 8 rows, minus 1; mixed: as planned with.
    """

    signal: str
    jaccard: float
    recall: float
    bias: tuple[float, ...]


def forecast_quality(texts: Sequence[TracedText], forecast: Forecast) -> list[SignalQuality]:
    """Takes `forecast` through `texts`; it learns as it would have learned while they were made.

    A planner is taken to verify the four likeliest rows of each step, and to look at their experts
    when a token is new or at every 16th step. The probe
    alone is no forecast: it tells what the token leaves open. Raises ValueError without steps.
    """
    names = (*SIGNALS, "mixed")
    hits: list[list[NDArray[np.int64]]] = [[] for _ in names]
    unions: list[list[list[float]]] = [[] for _ in names]
    true: list[list[float]] = []
    unseen = LOOK_EVERY
    for text in texts:
        for step in text.steps:
            tree, seen = likeliest(step, max(PLAN_ROWS))
            expected = forecast.of(tree)
            signals = forecast.signals(tree)
            guesses = [forecast.likeliest(signals[:, s]) for s in range(len(SIGNALS))]
            order = np.argsort(-tree.path_probs, kind="stable")
            plans = [order[:n] for n in PLAN_ROWS]
            for guess, hit, union in zip([*guesses, expected.sets], hits, unions, strict=True):
                hit.append(sizes(guess[1:] & seen[1:]))
                union.append([float(union_per_layer(guess[plan]).sum()) for plan in plans])
            root = union_per_layer(expected.sets[:1]).sum()
            more = expected.unforeseen / forecast.layer_weight * seen.shape[1]
            unions[-1][-1] = [
                float(root + forecast.scale * (union - root + more[plan].sum()))
                for union, plan in zip(unions[-1][-1], plans, strict=True)
            ]
            true.append([float(union_per_layer(seen[plan]).sum()) for plan in plans])
            unseen += 1
            plan = np.zeros(len(tree), np.bool_)
            plan[order[:VERIFIED]] = True
            kept = tree.subtree(plan)
            if unseen > LOOK_EVERY or not forecast.knows(kept.tokens):
                unseen = 0
                forecast.learn(kept, expected.only(plan), seen[plan])
    if not true:
        raise ValueError("there are no steps to forecast")
    used = float(sizes(seen).mean())
    rows = []
    for name, hit, union in zip(names, hits, unions, strict=True):
        shared = np.concatenate(hit)
        bias = np.sum(union, axis=0) / np.sum(true, axis=0) - 1
        rows.append(
            SignalQuality(
                name,
                float((shared / (2 * used - shared)).mean()),
                float(shared.mean() / used),
                tuple(bias.tolist()),
            )
        )
    return rows


def likeliest(step: TracedStep, rows: int) -> tuple[DraftTree, Bitsets]:
    """The part of a step's candidates that a plan would hold, and its experts."""
    tree = step.tree
    keep = best_nodes(tree.path_probs, rows)
    states = np.zeros((len(tree), step.hidden.shape[1]), np.float32)
    states[step.expanded] = step.hidden
    inner = np.zeros(len(tree), np.bool_)
    inner[tree.parents[1:][keep[1:]]] = True
    states[~inner] = 0.0  # what the head has been through when this is what was drafted
    whole = DraftTree(tree.parents, tree.tokens, tree.probs, states)
    return whole.subtree(keep), step.experts[keep]
