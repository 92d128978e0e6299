"""System prompts: choosing one for the conversation, and keeping them by name."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input, OptionList, TextArea

from ..entry import AppError
from ..plain_text import shown
from ..system_prompts import delete_prompt, prompts_path, read_prompts, save_prompt
from .dialog import Dialog
from .plain_input import PlainInput

PRESENT = "this conversation's"
HINT = "Enter on a name uses it · Ctrl+S saves · Del deletes · Esc leaves"


class SystemPromptScreen(Dialog[str | None]):
    """Gives the text that the conversation is to have, "" for none, or None to leave it.

    Texts that were changed and not saved stay while the user looks at others.
    """

    DEFAULT_CSS = """
    SystemPromptScreen {
        align: center middle;
    }
    SystemPromptScreen > Vertical {
        width: 100%;
        max-width: 110;
        height: 100%;
        max-height: 32;
        border: round $primary;
        border-title-color: $text-primary;
        border-subtitle-color: $text-muted;
        background: $surface;
        padding: 0 1;
    }
    SystemPromptScreen #sides {
        height: 1fr;
    }
    SystemPromptScreen OptionList {
        width: 26;
        height: 100%;
        margin: 0 1 0 0;
        scrollbar-size-vertical: 1;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    SystemPromptScreen TextArea {
        height: 1fr;
        min-height: 1;
    }
    SystemPromptScreen .buttons {
        height: auto;
        align-horizontal: right;
    }
    SystemPromptScreen Button {
        margin: 0 0 0 2;
    }
    SystemPromptScreen.-narrow {
        #sides {
            layout: vertical;
        }
        OptionList {
            width: 100%;
            height: 3;
            margin: 0;
        }
    }
    SystemPromptScreen.-narrow.-low OptionList {
        height: 2;
    }
    SystemPromptScreen.-low > Vertical {
        border: none;
    }
    SystemPromptScreen.-low .buttons, SystemPromptScreen.-middle .buttons {
        display: none;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", show=False),
        Binding("ctrl+s", "save", "Save", show=False),
    ]

    def __init__(
        self,
        present: str = "",
        path: Path | None = None,
        edits: dict[str, str] | None = None,
    ) -> None:
        """present: the conversation's prompt. path: where the saved ones are kept. edits: texts
        that are written and not saved, by name, "" for the conversation's; kept up to date."""
        super().__init__()
        self._path = path or prompts_path()
        self._present = shown(present)
        self._prompts: dict[str, str] = {}
        self._open = ""  # the name in the editor; "" is the conversation's own
        self._edits = {} if edits is None else edits
        self._confirming = ""

    def compose(self) -> ComposeResult:
        with Vertical() as frame:
            frame.border_title = "System prompt"
            frame.border_subtitle = HINT
            with Horizontal(id="sides"):
                yield _Names(compact=True, markup=False)
                with Vertical():
                    yield PlainInput(placeholder="Name, to save it by", compact=True)
                    yield TextArea(
                        soft_wrap=True,
                        compact=True,
                        placeholder="What the model is told before the conversation",
                    )
            with Horizontal(classes="buttons"):
                yield Button("Use", variant="primary", compact=True, id="use")
                yield Button("Save", compact=True, id="save")
                yield Button("Delete", compact=True, id="delete")
                yield Button("Cancel", compact=True, id="cancel")

    def on_mount(self) -> None:
        try:
            self._prompts = read_prompts(self._path)
        except AppError as error:
            self._complain(error)
        for gone in self._edits.keys() - {"", *self._prompts}:
            self._edits[""] = "\n\n".join(
                filter(None, (self._edits.get(""), self._edits.pop(gone)))
            )
        same = [name for name, text in self._prompts.items() if text == self._present]
        self._list([*self._edits, *(same if self._present else ()), ""][0])
        self.query_one(_Names).focus()

    # The list and the editor

    def _list(self, name: str) -> None:
        """Lists all names, with the cursor on `name`, which goes to the editor."""
        names = self.query_one(_Names)
        with names.prevent(OptionList.OptionHighlighted):
            names.set_options([PRESENT, *map(_label, self._prompts)])
            names.highlighted = ["", *self._prompts].index(name)
        self._edit(name)

    def _edit(self, name: str) -> None:
        self._open = name
        self._confirming = ""
        self.query_one(Input).value = _label(name)
        self.query_one(TextArea).text = self._edits.get(name, self._saved(name))

    def _saved(self, name: str) -> str:
        return self._prompts.get(name, "") if name else self._present

    @on(OptionList.OptionHighlighted)
    def _open_highlighted(self) -> None:
        """Brings the name at the cursor to the editor; keys may be faster than messages."""
        name = ["", *self._prompts][self.query_one(_Names).highlighted or 0]
        if name != self._open:
            self._edit(name)

    @on(TextArea.Changed)
    def _keep_edit(self) -> None:
        editor = self.query_one(TextArea)
        text = shown(editor.text)
        if text != editor.text:  # pasted
            editor.text = text
        if text == self._saved(self._open):
            self._edits.pop(self._open, None)
        else:
            self._edits[self._open] = text

    # What the user does

    @on(OptionList.OptionSelected)
    @on(Button.Pressed, "#use")
    def _use(self) -> None:
        self._open_highlighted()
        self.dismiss(self.query_one(TextArea).text.strip())

    @on(Input.Submitted)
    @on(Button.Pressed, "#save")
    def action_save(self) -> None:
        """Saves the text under the name in the field; with another name, as another prompt."""
        name = " ".join(self.query_one(Input).value.split())
        try:
            self._prompts = save_prompt(self._path, name, self.query_one(TextArea).text)
        except AppError as error:
            self._complain(error)
            return
        self._edits.pop(self._open, None)
        self._edits.pop(name, None)
        self._list(name)
        self.notify(shown(f"{name} is saved."), timeout=2, markup=False)

    @on(Button.Pressed, "#delete")
    def action_delete(self) -> None:
        """Deletes the open prompt when it is asked for twice."""
        self._open_highlighted()
        name = self._open
        if not name:
            return
        if self._confirming != name:
            self._confirming = name
            self.notify(shown(f"Once more deletes {name}."), severity="warning", markup=False)
            return
        try:
            self._prompts = delete_prompt(self._path, name)
        except AppError as error:
            self._complain(error)
            return
        self._edits.pop(name, None)
        self._list("")

    @on(Button.Pressed, "#cancel")
    def action_leave(self) -> None:
        """Leaves; where something was not saved, only when it is asked for twice."""
        if self._edits and self._confirming != PRESENT:
            self._confirming = PRESENT
            self.notify("Something is not saved; once more leaves.", severity="warning")
            return
        self.dismiss(None)

    def _complain(self, error: AppError) -> None:
        self.notify(shown(str(error)), severity="error", markup=False)


class _Names(OptionList):
    """The list of names, where Del deletes: in a field it belongs to the text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("delete", "screen.delete", "Delete", show=False),
    ]


def _label(name: str) -> str:
    return " ".join(shown(name).split())
