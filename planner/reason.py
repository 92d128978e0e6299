"""Why a cycle drafted as it did, in the numbers that the planner weighed.

A step is worth its time if its tokens would take longer without it: tokens * token_ms > ms. The
steps told here are those that were not taken, so the best plan of all has none that pays, except
where drafts like it have gained less than they promised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .cost import CycleCost
from .experts import sizes
from .forecast import ExpertForecast
from .tree import BoolArray, FloatArray, IntArray

# mode: it always drafts so. headless: there is nothing to draft with. full: the context ends.
# hopeless: even drafts sure to be right would not pay. resting: drafts do not pay in the mean, and
# the answer was not prepared for them. abstaining: to see what a plain cycle takes. unpromising:
# the first level was not worth drafting. unmatched: without a head, nothing that was looked up was
# worth verifying. planned: the best subtree of what was drafted.
Kind = Literal[
    "mode",
    "headless",
    "full",
    "hopeless",
    "resting",
    "abstaining",
    "unpromising",
    "unmatched",
    "planned",
]
# Why drafting ended: another level was not worth it; no further child is likely enough to be
# considered; the context ends; no tree is ever deeper; and no more rows fit the verification.
End = Literal["", "level", "unlikely", "context", "deepest", "rows"]


@dataclass(frozen=True)
class Step:
    """`drafts` more in a cycle: what they would take in ms, and the tokens that they promise."""

    ms: float
    tokens: float
    drafts: int = 1

    def pays(self, token_ms: float) -> bool:
        return self.tokens * token_ms > self.ms


@dataclass(frozen=True)
class Reason:
    """kind, end: see above. drafts: verified ones. token_ms: what a token costs without the step.

    step:  the best one that was not taken: a draft more, or drafting at all; None if there is none.
    level: drafting one more level, where that was not worth it.
    trial: the level was drafted though it did not promise to pay, to see whether it does.
    """

    kind: Kind
    drafts: int = 0
    token_ms: float = 0.0
    step: Step | None = None
    level: Step | None = None
    end: End = ""
    trial: bool = False


def best_left_out(
    keep: BoolArray,
    parents: IntArray,
    chances: FloatArray,
    forecast: ExpertForecast | None,
    cost: CycleCost,
    token_ms: float,
) -> Step | None:
    """The node whose addition to the subtree `keep` [n] is worth most, or costs least beyond it.

    chances: [n], of being committed. forecast: None where experts are no part of the cost, which is
    that of the search. None if there is no such node, or the tables know no row more.
    """
    rows = int(keep.sum())
    nodes = np.flatnonzero(~keep & keep[parents])
    if not len(nodes) or rows >= cost.max_rows:
        return None
    ms = np.full(len(nodes), cost.rows_ms[rows + 1] - cost.rows_ms[rows])
    if forecast is not None:
        sets, alone = cost.paid(forecast.sets, forecast.unforeseen)
        assert alone is not None
        shared = np.bitwise_or.reduce(sets[keep], axis=0)
        beyond = float(alone[keep].sum())
        before = cost.layer_weights @ sizes(shared) + beyond
        grown = sizes(sets[nodes] | shared) @ cost.layer_weights
        grown += beyond + alone[nodes]
        ms += cost.expert_ms[rows + 1] * grown - cost.expert_ms[rows] * before
    best = int(np.argmax(chances[nodes] * token_ms - ms))
    return Step(float(ms[best]), float(chances[nodes[best]]))
