"""The parameters of a conversation: presets, fields with their meaning, and what is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import DescendantFocus
from textual.widget import Widget
from textual.widgets import Button, Input, Select, Static

from ..entry import AppError
from ..parameters import Parameters, Value, read_value, written
from ..plain_text import shown
from ..presets import PRESETS, preset_of
from .dialog import Dialog
from .plain_input import PlainInput

if TYPE_CHECKING:
    from specfit.backend import Sampling

PRESET, THINKING = "preset", "thinking"
# Label and meaning of each field, in the order of the screen.
FIELDS = {
    "temp": (
        "Temperature",
        "How daring the choice of words is. 0 always takes the likeliest; above 1 it gets wild.",
    ),
    "top_k": (
        "Top-k",
        "Only this many of the likeliest tokens are in the draw. 0 leaves all of them in.",
    ),
    "top_p": (
        "Top-p",
        "Only the likeliest tokens that together have this chance are in the draw. 1 is off.",
    ),
    "min_p": (
        "Min-p",
        "Tokens with less than this part of the likeliest one's chance are out. 0 is off.",
    ),
    "seed": (
        "Seed",
        "The same number gives the same answer to the same question. Empty: a new one each time.",
    ),
    "max_tokens": (
        "Most tokens",
        "An answer is cut off after this many tokens. Empty: until it or the context ends.",
    ),
    "spec": (
        "Speculation",
        "How drafts are made; none of it changes the answers' quality. "
        "off, chain:K, eagle3, count, specfit, specfit:ratio.",
    ),
}
PRESET_HELP = "Values that go together. Each can be changed below."
THINKING_HELP = (
    "Whether the model thinks before it answers, where its template can be told. "
    "Thinking takes longer and is better at hard questions."
)
THINKING_CHOICES = (("as the model likes", "None"), ("yes", "True"), ("no", "False"))
HINT = "Enter applies · Esc cancels"


class ParameterPanel(Dialog[Parameters | None]):
    """Gives the values that the user applies, or None. Nothing is applied half."""

    DEFAULT_CSS = """
    ParameterPanel {
        align: center middle;
    }
    ParameterPanel > Vertical {
        width: 66;
        max-width: 100%;
        height: auto;
        max-height: 100%;
        border: round $primary;
        border-title-color: $text-primary;
        border-subtitle-color: $text-muted;
        background: $surface;
        padding: 0 1;
    }
    ParameterPanel VerticalScroll {
        height: auto;
        max-height: 100%;
        scrollbar-size-vertical: 1;
    }
    ParameterPanel Horizontal {
        height: auto;
    }
    ParameterPanel .label {
        width: 15;
        padding: 0 1;
    }
    ParameterPanel Input, ParameterPanel Select {
        width: 1fr;
    }
    ParameterPanel Input.-invalid {
        text-style: underline;
    }
    ParameterPanel Select:focus:nocolor > SelectCurrent {
        text-style: reverse;
    }
    ParameterPanel SelectCurrent #label {
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    ParameterPanel #help {
        height: 3;
        margin: 1 0 0 0;
        padding: 0 1;
        color: $text-muted;
    }
    ParameterPanel #help.-error {
        color: $text-error;
    }
    ParameterPanel .buttons {
        align-horizontal: right;
    }
    ParameterPanel Button {
        margin: 0 0 0 2;
    }
    ParameterPanel.-narrow {
        & > Vertical {
            padding: 0;
        }
        .row {
            layout: vertical;
        }
        .label {
            width: 100%;
            padding: 0;
        }
        Input, Select {
            margin: 0 0 0 2;
        }
    }
    ParameterPanel.-low, ParameterPanel.-middle {
        & > Vertical {
            height: 100%;
        }
        VerticalScroll {
            height: 1fr;
        }
        #help {
            height: 2;
            margin: 0;
        }
        .buttons {
            display: none;
        }
    }
    ParameterPanel.-low #help {
        height: 1;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Cancel", show=False),
        Binding("down", "app.focus_next", "Next field", show=False),
        Binding("up", "app.focus_previous", "Field before", show=False),
    ]

    def __init__(
        self,
        parameters: Parameters,
        recommended: Sampling | None = None,
        *,
        can_think: bool = True,
    ) -> None:
        """recommended: the loaded model's, which empty fields mean; None if none is loaded.
        can_think: whether its thinking can be switched; else nothing is said of it."""
        super().__init__()
        self._parameters = parameters
        self._recommended = recommended
        self._can_think = can_think

    def compose(self) -> ComposeResult:
        with Vertical() as frame:
            frame.border_title = "Parameters of this conversation"
            frame.border_subtitle = HINT
            with _Fields(can_focus=False):
                yield from self._rows()
            yield Static(id="help", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Apply", variant="primary", compact=True, id="apply")
                yield Button("Cancel", compact=True, id="cancel")

    def _rows(self) -> ComposeResult:
        presets = [(preset.name, preset.name) for preset in PRESETS]
        present = preset_of(self._parameters)
        yield _row(
            "Preset",
            Select(
                presets,
                prompt="own values",
                value=present.name if present else Select.NULL,
                compact=True,
                id=PRESET,
                tooltip=PRESET_HELP,
            ),
        )
        for name, (label, meaning) in FIELDS.items():
            field = PlainInput(
                written(getattr(self._parameters, name)),
                placeholder=self._placeholder(name),
                compact=True,
                id=name,
            )
            field.tooltip = meaning
            yield _row(label, field)
        thinking = Select(
            THINKING_CHOICES,
            allow_blank=False,
            value=str(self._parameters.thinking),
            compact=True,
            id=THINKING,
            tooltip=THINKING_HELP,
        )
        row = _row("Thinking", thinking)
        row.display = self._can_think
        yield row

    def _placeholder(self, name: str) -> str:
        if name == "seed":
            return "a new one for each answer"
        if name == "max_tokens":
            return "no limit"
        if name == "spec":
            return Parameters.spec
        own = getattr(self._recommended, name, None)
        return "the model's own" if own is None else f"{own:g} (the model's own)"

    # What the user does

    def on_mount(self) -> None:
        self.query_one("#temp", Input).focus()

    @on(DescendantFocus)
    def _explain(self, event: DescendantFocus) -> None:
        tooltip = event.widget.tooltip
        if isinstance(tooltip, str) and not self._complaint(event.widget):
            self._say(tooltip)

    @on(Input.Changed)
    def _check(self, event: Input.Changed) -> None:
        """Says at once what is wrong with the field that is being written."""
        complaint = self._complaint(event.input)
        event.input.set_class(bool(complaint), "-invalid")
        if event.input.has_focus:
            if complaint:
                self._say(complaint, error=True)
            else:
                self._say(str(event.input.tooltip))
        self._name_preset()

    @on(Select.Changed, f"#{THINKING}")
    def _name_preset(self) -> None:
        """Says which preset the fields now are."""
        try:
            present = preset_of(self._values())
        except AppError:
            present = None
        select = self.query_one(f"#{PRESET}", Select)
        with select.prevent(Select.Changed):
            select.value = present.name if present else Select.NULL

    @on(Select.Changed, f"#{PRESET}")
    def _fill_in(self, event: Select.Changed) -> None:
        """Writes the preset's values into the fields; the others stay as they are."""
        for preset in PRESETS:
            if preset.name == event.value:
                for name, value in preset.changes.items():
                    if name == THINKING:
                        self.query_one(f"#{THINKING}", Select).value = str(value)
                    else:
                        self.query_one(f"#{name}", Input).value = written(value)
                self._say(preset.about)

    @on(Input.Submitted)
    @on(Button.Pressed, "#apply")
    def _apply(self) -> None:
        """Gives the values if all are good; else goes to the first that is not."""
        try:
            self.dismiss(self._values())
        except AppError:
            for field in self.query(Input):
                if complaint := self._complaint(field):
                    field.focus()
                    self._say(complaint, error=True)
                    return

    @on(Button.Pressed, "#cancel")
    def action_leave(self) -> None:
        self.dismiss(None)

    def _values(self) -> Parameters:
        """What the fields say. Raises AppError for the first that makes no sense."""
        values = {
            name: read_value(name, self.query_one(f"#{name}", Input).value) for name in FIELDS
        }
        thinking = {"True": True, "False": False}.get(
            str(self.query_one(f"#{THINKING}", Select).value)
        )
        changes: dict[str, Value] = {**values, THINKING: thinking}
        return replace(self._parameters, **changes)  # type: ignore[arg-type]

    def _complaint(self, widget: Widget) -> str:
        """What is wrong with a field; "" if nothing is."""
        if isinstance(widget, Input) and widget.id in FIELDS:
            try:
                read_value(widget.id, widget.value)
            except AppError as error:
                return f"{FIELDS[widget.id][0]}: {error}."
        return ""

    def _say(self, text: str, *, error: bool = False) -> None:
        help_line = self.query_one("#help", Static)
        help_line.update(shown(text))
        help_line.set_class(error, "-error")


class _Fields(VerticalScroll, inherit_bindings=False):
    """Up and Down go from field to field, also where not all fit: it scrolls along."""


def _row(label: str, field: Widget) -> Horizontal:
    return Horizontal(Static(label, classes="label", markup=False), field, classes="row")
