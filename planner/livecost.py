"""The cost tables as they are believed to be at present."""

from __future__ import annotations

from .cost import CycleCost


class LiveCost:
    """A machine's costs, followed while it runs.

    now: the tables, corrected by what was measured. follows: False keeps to the tables as given,
    for plans that are made for another machine than the one that runs.
    """

    def __init__(self, table: CycleCost, *, follows: bool) -> None:
        self.now = table
        self.follows = follows

    def learn_verify(
        self, rows: int, union: float, context: int, rows_before: int, ms: float
    ) -> None:
        """Learns from a cycle's time outside of the head and the policy.

        union: weighted union of the rows' experts.
        """

    def learn_draft(self, widths: tuple[int, ...], ms: float) -> None:
        """Learns from the time that drafting levels of these widths took."""
