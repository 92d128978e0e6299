"""Where the user writes: Enter sends, Shift+Enter or Ctrl+J begins a new line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual import events, on
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea
from textual.worker import Worker

from ..history import History
from ..keys import KEYS, Key, key_name, keys_of
from ..pastes import Pastes
from ..plain_text import can_be_typed, shown
from ..store import Unsent
from .completions import Completion, Completions, for_command, for_files, still_fitting

PLACEHOLDER = "Write a message"
_COMMAND = re.compile(r"/[^/]*")
_PATH = re.compile(r'(?:^|[\s(])(@(?:"[^"\n]*|[^\s"@]*))$')


class Composer(TextArea):
    """The input box; it grows with its text up to a few rows.

    Large pastes stand in it as short labels (`pastes`). What is completed: commands, and files of
    `folder` behind an @.
    """

    DEFAULT_CSS = """
    Composer {
        height: auto;
        min-height: 3;
        max-height: 8;
        border: round $primary;
        border-title-color: $text-muted;
        border-title-align: right;
        border-subtitle-color: $text-muted;
        padding: 0 1;
        background: $background;
        &:focus {
            border: round $primary;
        }
        &.-editing {
            border: round $warning;
        }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("alt+d", "delete_word_right", "Delete the word to the right", show=False)
    ]

    @dataclass
    class Submitted(Message):
        """The user sends `text`, which is more than blanks.

        editing: the `message` that was given to `edit_message`, if it is that one anew.
        """

        text: str
        editing: object = None

    class EditLast(Message):
        """The user pressed Up where nothing is written."""

    def __init__(self, keys: Iterable[Key] = KEYS, folder: Path | None = None) -> None:
        super().__init__(
            placeholder=PLACEHOLDER,
            show_line_numbers=False,
            soft_wrap=True,
            highlight_cursor_line=False,
        )
        keys = tuple(keys)
        # Terminals that cannot report Shift+Enter send a plain Enter for it; Ctrl+J always arrives.
        self._send_keys = keys_of("send", keys)
        self._new_line_keys = keys_of("new_line", keys)
        self.border_subtitle = self._usual_hint = _hints(keys)
        self._counter = ""
        self._folder = folder or Path.cwd()
        self._completions = Completions(self._take)
        self._completed = ""  # the word that the completions are for
        self._dismissed: tuple[int, int] | None = None  # where the word begins that Esc was for
        self._draft = ""  # what was written before an older message was edited
        self._emptied = ""  # what Up brings back
        self.sent = History()
        self.pastes = Pastes()
        self.editing: object = None
        self._has_later = False

    def on_mount(self) -> None:
        self.screen.mount(self._completions)

    @property
    def message(self) -> str:
        """What would be sent: the text with its pastes in full."""
        return self.pastes.expanded(self.text)

    def show_counter(self, text: str) -> None:
        """Shows in the border how long the message is, in the app's words."""
        self._counter = text
        self._entitle()

    def show_hint(self, hint: str) -> None:
        """Shows in the border what keys do at present; "" is what they do otherwise."""
        self.border_subtitle = hint or self._usual_hint

    def restore(self, text: str) -> None:
        """Puts back a message that was not answered, before whatever was written since."""
        text = self._fitting(text)
        self._write(text if not self.text else f"{text}\n{self.text}")

    def edit_message(self, text: str, message: object, *, has_later: bool = False) -> None:
        """Lets the user write an older message anew; Esc brings back what was being written.
        has_later: other questions follow it."""
        if self.editing is None:
            self._draft = self.text
        self.editing, self._has_later = message, has_later
        self.add_class("-editing")
        self._entitle()
        self._write(self._fitting(text))

    def leave_editing(self) -> None:
        """Gives up editing, if that is what goes on."""
        if self.editing is not None:
            self._stop_editing()
            self._write(self._draft)

    @property
    def unsent(self) -> Unsent:
        """All that is written here. `message` of it is what is edited, as given."""
        if isinstance(self.editing, int):
            return Unsent(self.pastes.expanded(self._draft), self.message, self.editing)
        return Unsent(self.message)

    def bring_back(self, unsent: Unsent) -> None:
        """Puts that in the place of what is written."""
        self._stop_editing()
        self._emptied = ""
        self._write(self._fitting(unsent.text))
        if unsent.message is not None:
            self.edit_message(unsent.edited, unsent.message)
        elif unsent.edited:
            self.restore(unsent.edited)

    def empty(self) -> bool:
        """Takes away what is written; True if Up brings it back, which it does not for an older
        message that was edited."""
        if self.editing is not None:
            self.leave_editing()
            return False
        self._emptied = self.message
        self.clear()
        return True

    def look_back(self) -> bool:
        """Shows the message sent before; False if there is none."""
        return self._recall(self.sent.back(self.message))

    # Keys

    def on_key(self, event: events.Key) -> None:
        key = event.key
        if self._on_list_key(key) or self._on_own_key(key) or self._on_unprintable(event.character):
            event.prevent_default().stop()

    def _on_list_key(self, key: str) -> bool:
        """Does what `key` means for the open completions; False if nothing."""
        if key in ("up", "down", "tab", *self._send_keys):
            self._catch_up()
        if not self._completions.opened:
            return False
        chosen = self._completions.chosen
        if key == "escape":
            self._dismissed = self._word()[0]
            self._completions.close()
        elif chosen is None:
            return False
        elif key == "up":
            self._completions.action_cursor_up()
        elif key == "down":
            self._completions.action_cursor_down()
        elif key == "tab":
            self._take()
        elif key in self._send_keys and chosen.text.strip() != self._word()[1]:
            self._take()
            if chosen.whole:
                self._send()
        else:
            return False
        return True

    def _on_own_key(self, key: str) -> bool:
        if key in self._send_keys:
            self._send()
        elif key in self._new_line_keys:
            self._insert_here("\n")
        elif key == "escape" and self.editing is not None:
            self.leave_editing()
        elif key == "up" and not self.text and self.editing is None:
            if self._emptied:
                self._write(self._fitting(self._emptied))
                self._emptied = ""
            else:
                self.post_message(self.EditLast())
        elif key == "up" and self.navigator.is_first_wrapped_line(self.cursor_location):
            return self.look_back()
        elif key == "down" and self.navigator.is_last_wrapped_line(self.cursor_location):
            return self._recall(self.sent.forward())
        else:
            return False
        return True

    def _on_unprintable(self, character: str | None) -> bool:
        """Inserts what Textual leaves out: joiners, wide blanks, characters that Python is too old
        for."""
        if character is None or character.isprintable() or not can_be_typed(character):
            return False
        self._insert_here(character)
        return True

    def on_paste(self, event: events.Paste) -> None:
        """Inserts what was pasted as it is: its line ends do not send."""
        event.prevent_default().stop()
        self._paste(event.text)

    def action_paste(self) -> None:
        self._paste(self.app.clipboard)

    def action_delete_left(self) -> None:
        if not self._delete_label():
            super().action_delete_left()

    def action_delete_word_left(self) -> None:
        if not self._delete_label():
            super().action_delete_word_left()

    def action_delete_to_start_of_line(self) -> None:
        """The line as it is sent, however many rows it takes; at its start, what parts it from the
        one before."""
        (_, _), (row, column) = self.selection
        if column:
            self.delete((row, 0), (row, column))
        else:
            self.action_delete_left()

    def action_delete_to_end_of_line(self) -> None:
        _, (row, column) = self.selection
        self.delete((row, column), (row, len(self.document[row])))

    async def action_delete_to_end_of_line_or_delete_line(self) -> None:
        """As above; at the end of the line, what parts it from the next one."""
        row, column = self.selection.end
        if column < len(self.document[row]):
            self.action_delete_to_end_of_line()
        else:
            self.action_delete_right()

    def _delete_label(self) -> bool:
        """Deletes a label of a paste as a whole, since half of one stands for nothing."""
        row, column = self.cursor_location
        label = self.pastes.label_before(self.document[row][:column])
        if label is None or self.selected_text:
            return False
        self.delete((row, column - len(label)), (row, column))
        return True

    def on_blur(self) -> None:
        self._completions.close()

    # Completion

    @on(TextArea.Changed)
    async def _complete(self) -> None:
        start, word = self._word()
        self._completed = word
        if not word or start == self._dismissed or not self.has_focus:
            self._completions.close()
        elif word.startswith("/"):
            self._show(for_command(word))
        else:
            # Not a coroutine, which would never be awaited if the next comes before it begins.
            find = partial(self._complete_path, word)
            _: Worker[None] = self.run_worker(find, exclusive=True, group="paths")
        if start != self._dismissed:
            self._dismissed = None

    async def _complete_path(self, word: str) -> None:
        # In a thread, as the folder may be large or far away.
        entries = await asyncio.to_thread(for_files, word, self._folder)
        if self._word()[1] == word:
            self._show(entries)

    def _catch_up(self) -> None:
        """Makes the list fit the word, if keys came faster than it followed."""
        start, word = self._word()
        if word == self._completed or start == self._dismissed:
            return
        self._completed = word
        if word.startswith("/"):
            self._show(for_command(word))
        elif word and self._completions.opened:
            self._show(still_fitting(word, self._completions.entries))
        else:
            self._completions.close()

    def _word(self) -> tuple[tuple[int, int], str]:
        """Where the word to complete begins, and the word up to the cursor; "" if there is none."""
        row, column = self.cursor_location
        line = self.document[row][:column]
        if row == 0 and self.document.line_count == 1 and _COMMAND.fullmatch(line):
            return (0, 0), line
        match = _PATH.search(line[-300:])
        return ((row, column - len(match[1])), match[1]) if match else ((-1, -1), "")

    def _show(self, entries: list[Completion]) -> None:
        self._completions.show(entries, self.region)

    def _take(self) -> None:
        chosen = self._completions.chosen
        if chosen is not None:
            start, _ = self._word()
            self.replace(chosen.text, start, self.cursor_location)
            self.move_cursor((start[0], start[1] + len(chosen.text)))
        self._completions.close()

    # Text

    def _send(self) -> None:
        if not self.text.strip():
            return
        # Cleared at once: what is typed before the message is handled is the next one's.
        text = self.message
        self.post_message(self.Submitted(text, self.editing))
        self.sent.add(text)
        self._emptied = ""
        self._stop_editing()
        self._completions.close()
        self.clear()

    def _stop_editing(self) -> None:
        self.editing = None
        self.remove_class("-editing")
        self._entitle()

    def _recall(self, text: str | None) -> bool:
        if text is None:
            return False
        self._write(self._fitting(text))
        return True

    def _write(self, text: str) -> None:
        self.text = text
        self.move_cursor(self.document.end)

    def _paste(self, text: str) -> None:
        text = shown(text.replace("\r\n", "\n").replace("\r", "\n"))
        self._insert_here(self.pastes.pasted(text))

    def _fitting(self, text: str) -> str:
        """A message as it can stand here: control characters shown, large parts as labels."""
        return self.pastes.collapsed(shown(text))

    def _insert_here(self, text: str) -> None:
        start, end = self.selection
        result = self.replace(text, start, end, maintain_selection_offset=False)
        self.move_cursor(result.end_location)

    def _recompute_cursor_offset(self) -> None:
        """Where text is taken back, the scrollbar may go while the cursor is still behind the end:
        Textual puts it right afterwards."""
        if self.cursor_location[0] < self.wrapped_document.document.line_count:
            super()._recompute_cursor_offset()  # type: ignore[no-untyped-call]

    def _entitle(self) -> None:
        stays = "what follows stays in the version before, " if self._has_later else ""
        editing = f"editing: {stays}Esc leaves it" if self.editing is not None else ""
        self.border_title = " · ".join(part for part in (editing, self._counter) if part)


def _hints(keys: Iterable[Key]) -> str:
    """The keys that one must know, as far as they are set."""
    words = {"send": "sends", "new_line": "new line", "stop": "stops", "help": "help"}
    known = {key.action: key.keys[-1] for key in keys if key.keys}
    return " · ".join(f"{key_name(known[a])} {words[a]}" for a in words if a in known)
