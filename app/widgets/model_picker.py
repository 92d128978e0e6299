"""Choosing a model and its draft head among those on this machine.

One thread looks for them and another asks which heads fit the highlighted model; both only leave
what they have, and a timer brings it to the screen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import DataTable, Input, OptionList, Static

from .. import library
from ..library import HeadEntry, Memory, ModelEntry
from ..plain_text import shown
from .dialog import Dialog
from .head_list import HeadLine, HeadList
from .model_table import ModelTable
from .plain_input import PlainInput

UPDATES_PER_S = 10
# While someone runs through the table, no heads are looked at.
SETTLED_S = 0.15
PAGE = 8
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass(frozen=True)
class Choice:
    """What to load. model: None is the bundled one.

    head: None is the bundled model's own; for other models, plain decoding. context_length: what
    the model was made for; 0 if that is not known.
    """

    model: Path | None
    head: Path | None
    context_length: int = 0


class ModelPicker(Dialog[Choice | None]):
    """A table of models over the details and heads of the highlighted one."""

    DEFAULT_CSS = """
    ModelPicker {
        align: center middle;
    }
    ModelPicker > Vertical {
        width: 100%;
        max-width: 124;
        height: 100%;
        max-height: 44;
        border: round $primary;
        border-title-color: $text-primary;
        border-subtitle-color: $text-muted;
        background: $surface;
    }
    ModelPicker #details {
        height: auto;
        max-height: 5;
        margin: 1 0 0 0;
        padding: 0 1;
    }
    ModelPicker.-low, ModelPicker.-middle {
        #details {
            max-height: 2;
            margin: 0;
        }
        #hint {
            display: none;
        }
        HeadList {
            max-height: 2;
        }
    }
    ModelPicker.-low {
        & > Vertical {
            border: none;
        }
        #details {
            display: none;
        }
    }
    ModelPicker #hint {
        height: 1;
        padding: 0 1;
        color: $text-muted;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", show=False),
        Binding("down", "move(1)", "Next model", show=False),
        Binding("up", "move(-1)", "Model before", show=False),
        Binding("pagedown", f"move({PAGE})", "Further models", show=False),
        Binding("pageup", f"move(-{PAGE})", "Models before", show=False),
    ]

    def __init__(
        self, folders: Sequence[Path] = (), current: Path | None = None, *, is_loaded: bool = True
    ) -> None:
        """current: the model that is chosen now; None is the bundled one. is_loaded: whether it is
        loaded.

        folders: the user's own; a model or head in use, which may lie anywhere, may be among them.
        """
        super().__init__()
        self._folders = tuple(folders) if current is None else (*folders, current)
        self._current, self._any_loaded = current, is_loaded
        self._leaving = Event()
        # Left by the threads
        self._found: list[ModelEntry | HeadEntry] = []
        self._arrived: tuple[Path, list[ModelEntry | HeadEntry]] | None = None
        self._memory: Memory | None = None
        self._scanning = True
        self._problems: dict[tuple[Path, Path], str] = {}
        # The screen's own
        self._taken = 0
        self._ticks = 0
        self._models: list[ModelEntry] = []
        self._heads: list[HeadEntry] = []
        self._entry: ModelEntry | None = None
        self._free: Memory | None = None
        self._choosing = False
        self._progress = ""

    def compose(self) -> ComposeResult:
        with Vertical() as frame:
            frame.border_title = "Choose a model"
            yield PlainInput(placeholder="Filter, or the path of a model or a head", compact=True)
            yield ModelTable()
            yield Static(id="details", markup=False)
            yield HeadList()
            hint = "↑↓ models · Tab heads · Enter chooses · Esc leaves"
            yield Static(hint, id="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self.run_worker(self._look_around, thread=True, group="scan")
        self.run_worker(self._try_heads, thread=True, group="heads")
        self.set_interval(1 / UPDATES_PER_S, self._tick)

    def on_unmount(self) -> None:
        self._leaving.set()

    # In threads

    def _look_around(self) -> None:
        self._collect(library.find(self._folders), self._found)
        if not self._leaving.is_set():
            self._memory = library.free_memory()
        self._scanning = False

    def _look_at(self, path: Path) -> None:
        entries: list[ModelEntry | HeadEntry] = []
        self._collect(library.scan([path]), entries)
        self._found += entries
        self._arrived = path, entries

    def _collect(
        self, entries: Iterator[ModelEntry | HeadEntry], into: list[ModelEntry | HeadEntry]
    ) -> None:
        for entry in entries:
            if self._leaving.is_set():
                return
            into.append(entry)

    def _try_heads(self) -> None:
        while not self._leaving.wait(SETTLED_S):
            entry = self._entry
            for head in tuple(self._heads):
                if entry is None or entry is not self._entry or self._leaving.is_set():
                    break
                key = entry.path, head.path
                if key not in self._problems:
                    self._problems[key] = library.head_problem(entry, head)

    # To the screen

    def _tick(self) -> None:
        arrived, self._arrived = self._arrived, None  # before taking: what it led to is there
        fresh = self._found[self._taken :]
        self._taken += len(fresh)
        self._take(fresh)
        if arrived is not None:
            self._show_arrived(*arrived)
        if self._memory is not None:
            self._judge(self._memory)
            self._memory = None
        self._show_heads()
        self._show_progress()

    def _take(self, fresh: Sequence[ModelEntry | HeadEntry]) -> None:
        if not fresh:
            return
        known = {e.path for e in self._models} | {e.path for e in self._heads}
        fresh = [entry for entry in fresh if entry.path not in known]
        models = [entry for entry in fresh if isinstance(entry, ModelEntry)]
        self._heads += [entry for entry in fresh if isinstance(entry, HeadEntry)]
        loaded = [entry for entry in models if self._is_loaded(entry)]
        if loaded:
            self._put_first(loaded)
            models = [entry for entry in models if entry not in loaded]
        self._models += models
        self.query_one(ModelTable).add([entry for entry in models if self._matches(entry)])

    def _show_arrived(self, path: Path, entries: list[ModelEntry | HeadEntry]) -> None:
        """Goes to what a typed path led to, or says that it led nowhere."""
        if not entries:
            self._refuse(f"There is no model and no head at {path}.")
            return
        self.query_one(Input).value = ""
        paths = {entry.path for entry in entries}
        self._put_first([entry for entry in self._models if entry.path in paths])

    def _put_first(self, models: list[ModelEntry]) -> None:
        """Shows these before all others, with the cursor on the first."""
        self._models = [*models, *(entry for entry in self._models if entry not in models)]
        table = self.query_one(ModelTable)
        table.show([entry for entry in self._models if self._matches(entry)])
        if models and models[0] in table.entries:
            table.go_to(models[0])

    def _judge(self, memory: Memory) -> None:
        loaded = next((entry for entry in self._models if self._is_loaded(entry)), None)
        self._free = memory if loaded is None else library.freed(memory, loaded)
        self.query_one(ModelTable).judge(self._free)
        self._show_details()

    def _show_details(self) -> None:
        entry = self._entry
        if entry is None:
            text = "Looking for models …" if self._scanning else "No model matches."
        elif entry.problem:
            text = f"{entry.label}\nCannot be used: {entry.problem}"
        else:
            text = f"{_description(entry)}\n{entry.path}"
            if self._any_loaded and self._is_loaded(entry):
                text = f"loaded now\n{text}"
            elif self._free is not None:
                text = f"{library.fit(entry, self._free).why}\n{text}"
        self.query_one("#details", Static).update(shown(text))

    def _show_heads(self) -> None:
        self.query_one(HeadList).show([] if self._entry is None else self._lines(self._entry))
        if self._choosing and not self._is_waiting():
            self._choose()

    def _lines(self, entry: ModelEntry) -> list[HeadLine]:
        """Heads that fit, doing without, and heads that do not fit; none for a damaged model."""
        if entry.problem:
            return []
        tried = [
            HeadLine(head, self._problems[entry.path, head.path])
            for head in self._heads
            if (entry.path, head.path) in self._problems
        ]
        # The engine gives the bundled model its own head whenever no other is named.
        without = [] if entry.bundled else [HeadLine(None)]
        fitting = [line for line in tried if not line.problem]
        return [*fitting, *without, *(line for line in tried if line.problem)]

    def _is_waiting(self) -> bool:
        """Whether heads are still to be tried with the highlighted model."""
        entry = self._entry
        return entry is not None and any(
            (entry.path, head.path) not in self._problems for head in self._heads
        )

    def _show_progress(self) -> None:
        self._ticks += 1
        usable = sum(not entry.problem for entry in self._models)
        parts = [_count(usable, "model"), _count(len(self._heads), "head")]
        if usable < len(self._models):
            parts.append(f"{len(self._models) - usable} damaged")
        if hidden := self.query_one(ModelTable).hidden:
            parts.append(f"{hidden:,} not shown, type to find them")
        if self._scanning:
            parts.insert(0, f"{SPINNER[self._ticks % len(SPINNER)]} looking")
        elif self._choosing or self._is_waiting():
            parts.insert(0, f"{SPINNER[self._ticks % len(SPINNER)]} trying heads")
        text = " · ".join(parts)
        if text != self._progress:  # setting it paints the frame anew
            self._progress = self.query_one(Vertical).border_subtitle = text

    # What the user does

    @on(Input.Changed)
    def _filter(self) -> None:
        self.query_one(ModelTable).show([e for e in self._models if self._matches(e)])
        self._follow_cursor()

    @on(Input.Submitted)
    def _enter(self) -> None:
        text = self.query_one(Input).value.strip()
        if _is_path(text):
            self.run_worker(partial(self._look_at, typed_path(text)), thread=True, group="path")
        else:
            self._choose()

    @on(DataTable.RowHighlighted)
    def _follow_cursor(self) -> None:
        entry = self.query_one(ModelTable).highlighted
        if entry is not self._entry:
            self._entry = entry
            self._choosing = False
            self._show_heads()
        self._show_details()

    @on(DataTable.RowSelected)
    @on(OptionList.OptionSelected)
    def _choose(self) -> None:
        """Leaves with the highlighted model and head; waits until it is known which heads fit."""
        self._choosing = False
        entry, heads = self._entry, self.query_one(HeadList)
        if entry is None:
            return
        heads.show(self._lines(entry))
        line = heads.chosen
        if entry.problem:
            self._refuse(entry.problem)
        elif self._is_waiting():
            self._choosing = True
        elif line is not None and line.problem:
            self._refuse(line.problem)
        else:
            self.dismiss(_choice(entry, line.head if line is not None else None))

    def _refuse(self, reason: str) -> None:
        self.notify(shown(reason), severity="warning", markup=False)

    def action_move(self, rows: int) -> None:
        table = self.query_one(ModelTable)
        last = len(table.entries) - 1
        table.move_cursor(row=max(0, min(last, table.cursor_row + rows)))

    def _matches(self, entry: ModelEntry) -> bool:
        text = self.query_one(Input).value.strip()
        if _is_path(text):
            return True
        values = (entry.label, entry.name, entry.architecture, entry.quantisation, entry.path)
        haystack = " ".join(map(str, values)).casefold()
        return all(word in haystack for word in text.casefold().split())

    def _is_loaded(self, entry: ModelEntry) -> bool:
        if self._current is None or entry.path.name != self._current.name:
            return self._current is None and entry.bundled
        return os.path.realpath(entry.path) == os.path.realpath(self._current)


def _choice(entry: ModelEntry, head: HeadEntry | None) -> Choice:
    from specfit.models import bundled_head

    own = entry.bundled and head is not None and head.path == bundled_head()
    return Choice(
        None if entry.bundled else entry.path,
        None if own or head is None else head.path,
        entry.context_length,
    )


def _description(entry: ModelEntry) -> str:
    parts = [entry.label]
    if entry.name != entry.label:
        parts.append(entry.name)
    parts += [entry.architecture, entry.quantisation, library.size(entry.bytes)]
    if entry.n_experts:
        parts.append(f"{entry.n_experts} experts, {entry.n_experts_used} a token")
    if entry.context_length:
        parts.append(f"context {entry.context_length:,}")
    return " · ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~", "./", "../", ".\\")) or text.lower().endswith(".gguf")


def typed_path(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:  # ~somebody without a home
        return Path(text).absolute()
