"""One line on the running or last answer: speed, and how speculation does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual import events
from textual.widgets import Static

from ..stats import GAP

if TYPE_CHECKING:
    from specfit.backend import Report

# A reason that changes faster cannot be read.
REASON_STAYS_S = 1.0


class StatusLine(Static):
    """Plain text in one row. What does not fit is dropped, the least important first."""

    DEFAULT_CSS = """
    StatusLine {
        height: 1;
        padding: 0 1;
        color: $text-muted;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    """

    def __init__(self, text: str) -> None:
        super().__init__(text, markup=False)
        self._written = text
        self._shown: tuple[Report, str, str] | None = None
        self._reason = ("", float("-inf"))  # the one on the screen, and since when

    def show(self, report: Report, mode: str, why: str = "") -> None:
        """report: of the answer so far. mode: as typed. why: of the last cycle, in words; stays for
        a second, whatever comes."""
        now = time.monotonic()
        if not why or now - self._reason[1] >= REASON_STAYS_S:
            self._reason = (why, now)
        why = self._reason[0]
        self._shown = (report, mode, why)
        self._write(status(report, mode, why, self.content_size.width))

    def clear(self, text: str) -> None:
        """Shows `text` until there is a report."""
        self._shown = None
        self._write(text)

    def _write(self, text: str) -> None:
        """Nothing moves by it: laying all out anew takes longer the longer the answer is."""
        if text != self._written:
            self._written = text
            self.update(text, layout=False)

    def on_resize(self, _event: events.Resize) -> None:
        if self._shown is not None:
            self.show(*self._shown)


def status(report: Report, mode: str, why: str, width: int) -> str:
    """The line in at most `width` cells, unless not even the speed and the reason fit."""
    means = report.means
    # In the order of the line; what has a shorter form has it behind.
    parts = {"mode": mode, "speed": f"{report.tokens_per_second:.1f} tok/s"}
    if report.cycles:
        parts["length"] = f"{means.mean_acceptance_length:.2f} tokens a step"
        parts["rows"] = f"rows {means.rows_per_cycle:.1f}"
        if means.hit_rate is not None:
            parts["union"] = f"cache {means.hit_rate:.0%}"
        elif means.union_per_layer > 0:  # dense models have no experts
            parts["union"] = f"union {means.union_per_layer:.1f}"
    if why:
        parts["why"] = why
    for dropped in ("mode", "union", "rows", "length"):
        if cell_len(GAP.join(parts.values())) <= width:
            break
        if dropped == "length" and dropped in parts:
            parts["length"] = f"{means.mean_acceptance_length:.2f} a step"
            if cell_len(GAP.join(parts.values())) <= width:
                break
        parts.pop(dropped, None)
    return GAP.join(parts.values())
