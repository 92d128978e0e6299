"""The table of models in the picker."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from ..library import Memory, ModelEntry, fit, size
from ..plain_text import shown

NAME = "Model"
MIN_NAME_WIDTH = 20
# Wide enough for qwen3moe, IQ2_XXS, 235.1 GB, 128/8, 1024k; what is longer is in the details.
COLUMNS = (("Kind", 8), ("Type", 7), ("Size", 8), ("Experts", 7), ("Context", 7), ("Fits", 7))
PADDING = 2
# Before the name, where the last column has no room.
MARKS = {"fits": "✓", "tight": "~", "too big": "✗", "damaged": "✗"}
# Rows of the terminal below which the header makes room.
ROOMY = 16
# More would make every key typed into the filter wait.
MOST_ROWS = 200


class ModelTable(DataTable[Text]):
    """Rows of models, as many as can be shown at once; it never takes the keyboard.

    highlighted: the model at the cursor. hidden: how many more there are.
    """

    DEFAULT_CSS = """
    ModelTable {
        height: 1fr;
        min-height: 2;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
    }
    """

    can_focus = False

    def __init__(self) -> None:
        super().__init__(cursor_type="row", cell_padding=1)
        self.entries: list[ModelEntry] = []
        self.hidden = 0
        self._memory: Memory | None = None
        self._marked = False  # whether the names have the verdicts before them

    def on_mount(self) -> None:
        self.add_column(NAME, width=MIN_NAME_WIDTH, key=NAME)
        for label, width in COLUMNS:
            self.add_column(label, width=width, key=label)

    def on_resize(self) -> None:
        """Gives the names what the other columns leave, and rows the place of the header where
        there are few."""
        self.show_header = self.app.size.height >= ROOMY
        others = sum(width + PADDING for _, width in COLUMNS)
        column = next(column for column in self.columns.values() if column.key == NAME)
        left = self.scrollable_content_region.width - others - PADDING
        if self._marked != (left < MIN_NAME_WIDTH):
            self._marked = not self._marked
            self._show_verdicts()
        width = max(MIN_NAME_WIDTH, left)
        if column.width != width:
            column.width = width
            self._require_update_dimensions = True
            self._clear_caches()
            self.refresh(layout=True)

    @property
    def highlighted(self) -> ModelEntry | None:
        return self.entries[self.cursor_row] if self.is_valid_row_index(self.cursor_row) else None

    def show(self, entries: Sequence[ModelEntry]) -> None:
        """These models instead of the present ones; the cursor stays on its model if it can."""
        before = self.highlighted
        self.clear()
        self.entries, self.hidden = [], 0
        self.add(entries)
        if before in self.entries:
            self.go_to(before)

    def add(self, entries: Sequence[ModelEntry]) -> None:
        """More models, at the end."""
        room = MOST_ROWS - len(self.entries)
        self.entries += entries[:room]
        self.hidden += len(entries[room:])
        for entry in entries[:room]:
            name, *values = _values(entry)
            self.add_row(*map(_cell, (self._named(name, entry), *values, self._verdict(entry))))

    def go_to(self, entry: ModelEntry) -> None:
        self.move_cursor(row=self.entries.index(entry))

    def judge(self, memory: Memory) -> None:
        """Says of every model whether it fits."""
        self._memory = memory
        self._show_verdicts()

    def _show_verdicts(self) -> None:
        for row, entry in enumerate(self.entries):
            name = self._named(_values(entry)[0], entry)
            self.update_cell_at(Coordinate(row, 0), _cell(name))
            self.update_cell_at(Coordinate(row, len(COLUMNS)), _cell(self._verdict(entry)))

    def _named(self, name: str, entry: ModelEntry) -> str:
        return f"{MARKS.get(self._verdict(entry), '…')} {name}" if self._marked else name

    def _verdict(self, entry: ModelEntry) -> str:
        if entry.problem:
            return "damaged"
        return "…" if self._memory is None else fit(entry, self._memory).state


def _values(entry: ModelEntry) -> tuple[str, ...]:
    experts = f"{entry.n_experts}/{entry.n_experts_used}" if entry.n_experts else "dense"
    return (
        f"{entry.label} (bundled)" if entry.bundled else entry.label,
        entry.architecture,
        entry.quantisation,
        size(entry.bytes) if entry.bytes else "",
        "" if entry.problem else experts,
        f"{entry.context_length / 1024:.0f}k" if entry.context_length else "",
    )


def _cell(text: str) -> Text:
    return Text(" ".join(shown(text).split()), no_wrap=True, overflow="ellipsis")
