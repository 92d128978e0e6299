"""From a speculation mode as named to its policy."""

from __future__ import annotations

from collections.abc import Sequence

from .beliefs import Beliefs
from .cost import NO_OVERHEADS, Overheads
from .livecost import LiveCost
from .planned import Planned
from .policies import Chain, Eagle3, Off, Policy
from .spec import Spec
from .tree import DRAFTERS, HEAD, LOOKUP


def make_policy(
    spec: Spec,
    beliefs: Beliefs,
    live: LiveCost,
    max_rows: int,
    overheads: Overheads = NO_OVERHEADS,
    drafters: Sequence[str] = DRAFTERS[:1],
) -> Policy:
    """The policy that `spec` names, planning for the machine of `live`.

    drafters: that there are, of DRAFTERS. Fixed modes and `count` take lookups only without a head.
    """
    match spec.mode:
        case "off":
            return Off(beliefs, max_rows, live)
        case "chain":
            return Chain(beliefs, max_rows, *spec.numbers)
        case "eagle3":
            return Eagle3(beliefs, max_rows, *spec.numbers)
        case mode:
            by_count, ratio = mode == "count", mode == "specfit:ratio"
            looks_up = DRAFTERS[LOOKUP] in drafters
            if by_count and DRAFTERS[HEAD] in drafters:
                looks_up = False
            return Planned(
                beliefs,
                live,
                max_rows,
                by_count=by_count,
                ratio=ratio,
                overheads=overheads,
                looks_up=looks_up,
            )
