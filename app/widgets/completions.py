"""What the word at the cursor may become, in a list above the input box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.geometry import Offset, Region
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from .. import attachments, commands
from ..plain_text import shown

MOST = 8


@dataclass(frozen=True)
class Completion:
    """text: takes the word's place; label, help: what the list shows.

    whole: nothing more has to be written, so that Enter may send it at once. hint: only shown.
    """

    text: str
    label: str
    help: str = ""
    whole: bool = False
    hint: bool = False


NO_FILES = Completion("@", "there are no text files in this folder", hint=True)


class Completions(OptionList, can_focus=False):
    """The list. The input box keeps the keyboard and moves the highlight."""

    DEFAULT_CSS = """
    Completions {
        display: none;
        overlay: screen;
        constrain: inside;
        border: none;
        padding: 0 1;
        background: $panel;
        scrollbar-size-vertical: 0;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        &:focus {
            border: none;
        }
    }
    """

    def __init__(self, take: Callable[[], None]) -> None:
        """take: called when an entry is clicked, which is then the highlighted one."""
        super().__init__(markup=False)
        self._take = take
        self._entries: tuple[Completion, ...] = ()

    @property
    def opened(self) -> bool:
        return bool(self.display)

    @property
    def entries(self) -> tuple[Completion, ...]:
        return self._entries

    @property
    def chosen(self) -> Completion | None:
        """The highlighted entry, if there is one that can be taken."""
        if not self.opened or self.highlighted is None:
            return None
        entry = self._entries[self.highlighted]
        return None if entry.hint else entry

    def show(self, entries: Sequence[Completion], box: Region) -> None:
        """Shows `entries` above `box` (in screen cells); none close the list."""
        self._entries = tuple(entries)
        self.display = bool(entries)
        if not entries:
            return
        height = min(len(entries), MOST, max(1, box.y))
        self.styles.height = height
        self.styles.width = box.width
        self.absolute_offset = Offset(box.x, max(0, box.y - height))
        self.clear_options()
        self.add_options([Option(_line(entry), disabled=entry.hint) for entry in entries])
        if not entries[0].hint:
            self.highlighted = 0

    def close(self) -> None:
        self.display = False

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._take()


def for_command(typed: str) -> list[Completion]:
    """For a line that begins with "/": commands, or how the one that is written is used."""
    name, blank, _ = typed.removeprefix("/").partition(" ")
    if blank:
        return [
            Completion(typed, spec.usage, spec.help, hint=True)
            for spec in commands.COMMANDS
            if spec.name == name and spec.arguments
        ]
    return [
        Completion(
            f"/{spec.name} " if spec.arguments else f"/{spec.name}",
            spec.usage,
            spec.help,
            whole=not spec.arguments,
        )
        for spec in commands.matching(name)
    ]


def for_paths(typed: str, paths: Sequence[str], *, limit: int) -> list[Completion]:
    """For a word that begins with "@": the `limit` files that match best."""
    found = attachments.matching(typed.removeprefix("@").strip('"'), paths, limit)
    return [Completion(f'@"{p}" ' if " " in p else f"@{p} ", f"@{p}") for p in found]


def _line(entry: Completion) -> Content:
    label = Content(shown(entry.label.replace("\n", " ")))
    return Content.assemble(label, ("  " + entry.help, "$text-muted")) if entry.help else label
