"""What the word at the cursor may become, in a list above the input box."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from textual.content import Content
from textual.geometry import Offset, Region
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from .. import attachments, commands
from ..plain_text import shown

MOST = 8
MOST_READ = 100  # entries looked into for those that are text
MOST_IN_FOLDER = 20_000


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
    if blank and name == "spec":
        written = typed.partition(" ")[2].strip()
        return [
            Completion(f"/spec {mode}", mode, meaning, whole=True)
            for mode, meaning in commands.SPEC_MODES.items()
            if mode.startswith(written)
        ]
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


def for_files(typed: str, folder: Path) -> list[Completion]:
    """For a word that begins with "@": text files below `folder` that match best; behind "/", "~"
    and ".", what is in the folder that is written. Reads folders and files."""
    written = typed.removeprefix("@").strip('"')
    if written.startswith(("/", "~", ".")):
        return list(islice(_in_folder(written, folder, quoted=typed.startswith('@"')), MOST))
    found = attachments.matching(written, attachments.text_files(folder), MOST_READ)
    read = (path for path in found if not attachments.looks_binary(folder / path))
    return [_file(path) for path in islice(read, MOST)] or ([NO_FILES] if typed == "@" else [])


def still_fitting(typed: str, known: Sequence[Completion]) -> list[Completion]:
    """Of completions for a shorter word those that match `typed` best."""
    entries = {entry.label.removeprefix("@"): entry for entry in known if not entry.hint}
    written = typed.removeprefix("@").strip('"')
    return [entries[path] for path in attachments.matching(written, list(entries), MOST)]


def _in_folder(written: str, folder: Path, *, quoted: bool) -> Iterator[Completion]:
    """Folders and text files whose names match what is behind the last slash."""
    if written == "~" or written.rpartition("/")[2] == "..":
        written += "/"
    head, slash, name = written.rpartition("/")
    place = folder / os.path.expanduser(head + slash)  # noqa: PTH111 -- never raises
    names: dict[str, bool] = {}  # whether it is a folder
    with suppress(OSError, ValueError), os.scandir(place) as found:
        names = {entry.name: entry.is_dir() for entry in islice(found, MOST_IN_FOLDER)}
    # What cannot be written behind an @, and what is hidden unless it is asked for, is left out.
    shown_names = [
        one
        for one in sorted(names, key=str.lower)
        if (name.startswith(".") or one[0] != ".") and not set(one) & set('"\n')
    ]
    for one in attachments.matching(name, shown_names, MOST_READ):
        path = f"{head}{slash}{one}"
        if names[one]:
            opens = quoted or _needs_quotes(path)
            yield Completion(f'@"{path}/' if opens else f"@{path}/", f"@{path}/")
        elif not attachments.looks_binary(place / one):
            yield _file(path, quoted=quoted)


def _file(path: str, *, quoted: bool = False) -> Completion:
    return Completion(f'@"{path}" ' if quoted or _needs_quotes(path) else f"@{path} ", f"@{path}")


def _needs_quotes(path: str) -> bool:
    return any(character.isspace() or character == "@" for character in path)


def _line(entry: Completion) -> Content:
    label = Content(shown(entry.label.replace("\n", " ")))
    return Content.assemble(label, ("  " + entry.help, "$text-muted")) if entry.help else label
