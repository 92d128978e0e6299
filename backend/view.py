"""What there is to see of a cycle: its tree, what became of it, and why it was drafted so.

A view is made between cycles and only for those who watch: the engine merely leaves what it had in
hands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from specfit.planner import (
    Bitsets,
    BoolArray,
    Choice,
    DraftTree,
    FloatArray,
    IntArray,
    Policy,
    Reason,
)
from specfit.planner.experts import sizes
from specfit.planner.policies import Off

from .report import CycleReport

if TYPE_CHECKING:
    from .engine import Cycle, Engine
    from .line import Line
    from .model import Model


def _no_nodes() -> IntArray:
    return np.zeros(0, np.int32)


def _no_numbers() -> FloatArray:
    return np.zeros(0)


def _no_flags() -> BoolArray:
    return np.zeros(0, np.bool_)


@dataclass(frozen=True)
class Drafted:
    """What a cycle had in hands.

    tree: all candidates. choice: the part that was verified. path: its accepted nodes, the root
    first. experts: uint64 [kept, layer, word]; None if that was not observed.
    """

    tree: DraftTree
    choice: Choice
    path: list[int]
    experts: Bitsets | None


@dataclass(frozen=True)
class CycleView:
    """A finished cycle; its n nodes are all that was drafted, the root first, none in a cycle that
    drafted nothing.

    report:      its numbers.
    reason:      the planner's, for drafting just this.
    sampled:     text of the last committed token, which the model chose itself.
    texts:       [n], the nodes' tokens as text.
    parents:     int32 [n], -1 for the root.
    depths:      int32 [n], distance from the root.
    probs:       float64 [n], the highest probability of the token given its parent that a drafter
                 has for it.
    chances:     float64 [n], the planner's for being committed.
    kept:        bool [n], whether it was verified. accepted: bool [n].
    new_experts: float64 [n], experts a layer (mean) that none of the nodes before used; NaN where
                 that was not observed.
    layers:      int64 [layer], union of the verified nodes' experts; None if not observed.
    """

    report: CycleReport
    reason: Reason
    sampled: str
    texts: tuple[str, ...] = ()
    parents: IntArray = field(default_factory=_no_nodes)
    depths: IntArray = field(default_factory=_no_nodes)
    probs: FloatArray = field(default_factory=_no_numbers)
    chances: FloatArray = field(default_factory=_no_numbers)
    kept: BoolArray = field(default_factory=_no_flags)
    accepted: BoolArray = field(default_factory=_no_flags)
    new_experts: FloatArray = field(default_factory=_no_numbers)
    layers: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.texts)


def view_of(cycle: Cycle, engine: Engine, line: Line, policy: Policy) -> CycleView:
    """The view of the cycle of `line` alone that `engine` has just finished under `policy`."""
    reason = _reason(cycle, engine, line, policy)
    sampled = token_text(engine.model, cycle.tokens[0][-1])
    if cycle.drafted is None:
        return CycleView(cycle.report, reason, sampled)
    tree, choice = cycle.drafted.tree, cycle.drafted.choice
    kept = np.flatnonzero(choice.keep)
    conditional = policy.beliefs.acceptance.conditional(tree)
    # It may have learned since; the verified nodes' are those that the plan was made with.
    chances = np.ones(len(tree))
    chances[kept] = choice.chances
    conditional[kept] = choice.chances / chances[np.maximum(tree.parents[kept], 0)]
    chances = tree.path_products(conditional)
    accepted = np.zeros(len(tree), np.bool_)
    accepted[kept[cycle.drafted.path]] = True
    new_experts, layers = np.full(len(tree), np.nan), None
    if cycle.drafted.experts is not None:
        unions = sizes(np.bitwise_or.accumulate(cycle.drafted.experts, axis=0))
        new_experts[kept] = np.diff(unions, axis=0, prepend=0).mean(axis=1)
        layers = unions[-1]
    return CycleView(
        report=cycle.report,
        reason=reason,
        sampled=sampled,
        texts=tuple(token_text(engine.model, token) for token in tree.tokens.tolist()),
        parents=tree.parents,
        depths=tree.depths,
        probs=tree.probs,
        chances=chances,
        kept=choice.keep,
        accepted=accepted,
        new_experts=new_experts,
        layers=layers,
    )


def token_text(model: Model, token: int) -> str:
    """The token as text, however little of a character it is; a control token by its name."""
    piece = model.piece(token) or llama.llama_vocab_get_text(model.vocab, token) or b""
    return piece.decode("utf-8", "replace")


def _reason(cycle: Cycle, engine: Engine, line: Line, policy: Policy) -> Reason:
    if not engine.drafts:
        return Reason("headless")
    if line.drafter is None and cycle.drafted is None and not isinstance(policy, Off):
        return Reason("unmatched")
    if line.tracking and cycle.report.context >= engine.ctx - 1:
        return Reason("full")
    return policy.reason(begun=line.tracking or cycle.drafted is not None)
