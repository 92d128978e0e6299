"""One line on the running or last answer: speed, and how speculation does."""

from __future__ import annotations

from textual.widgets import Static


class StatusLine(Static):
    """Plain text in one row; what does not fit is cut."""

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
