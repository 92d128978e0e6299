"""From a speculation mode as named to its policy."""

from __future__ import annotations

from .beliefs import Beliefs
from .cost import NO_OVERHEADS, Overheads
from .livecost import LiveCost
from .planned import Planned
from .policies import Chain, Eagle3, Off, Policy
from .spec import Spec


def make_policy(
    spec: Spec,
    beliefs: Beliefs,
    live: LiveCost,
    max_rows: int,
    overheads: Overheads = NO_OVERHEADS,
) -> Policy:
    """The policy that `spec` names, planning for the machine of `live`."""
    match spec.mode:
        case "off":
            return Off(beliefs, max_rows)
        case "chain":
            return Chain(beliefs, max_rows, *spec.numbers)
        case "eagle3":
            return Eagle3(beliefs, max_rows, *spec.numbers)
        case mode:
            by_count, ratio = mode == "count", mode == "specfit:ratio"
            return Planned(
                beliefs, live, max_rows, by_count=by_count, ratio=ratio, overheads=overheads
            )
