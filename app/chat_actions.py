"""What the chat's keys and commands do; `tui` follows loading and answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.app import SystemCommand
from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen, Screen

from . import attachments, library
from .chat_setup import Setup, chosen
from .clicks import ClicksOnWhatIsThere
from .commands import COMMANDS, Command, parse
from .defects import TellsDefects
from .entry import AppError
from .jobs import AnswerJob
from .keys import KEYS
from .loops import LoopDetector
from .no_color import PlainApp
from .options import ModelChoice
from .parameters import Parameters, read_value
from .stats import kept_statistics
from .toasts import ShortToasts
from .widgets.answer import Answer
from .widgets.composer import Composer
from .widgets.panel import Panel
from .widgets.status_line import StatusLine
from .widgets.user_message import UserMessage

if TYPE_CHECKING:
    from textual.actions import ActionParseResult
    from textual.dom import DOMNode

    from specfit.backend import Engine, Report
    from specfit.backend.plan import Plan

    from .widgets.model_picker import Choice

SPEC_HINT = "/spec and a blank list the modes."
BUSY = "Not while the model is busy; Esc stops it."
# A lower terminal has no room for the palette's list.
PALETTE_ROWS = 8
# One that is closed takes a moment to be gone, and Textual bears no two.
PALETTE_EVERY_S = 0.5
_OF_THE_CHAT = {key.action.partition("(")[0] for key in KEYS} - {"interrupt"}


@dataclass
class Exchange:
    """An answer on its way. why: the planner's last reason, in words."""

    job: AnswerJob
    answer: Answer
    loops: LoopDetector
    why: str = ""
    looping: bool = False


class ChatActions(TellsDefects, ShortToasts, ClicksOnWhatIsThere, PlainApp):
    """The state that actions share, and the actions."""

    panel: Panel
    status: StatusLine
    composer: Composer

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.setup = setup
        self.keys = setup.keys
        self.session = setup.session
        self.parameters = setup.parameters
        self.wanted = setup.model
        self.loaded: ModelChoice | None = None
        self.engine: Engine | None = None
        self.is_loading = True
        self.exchange: Exchange | None = None
        self.load_error: Exception | None = None
        self.last_report: Report | None = None
        self.plan: Plan | None = None
        # System prompts that are being written, by name; "" is the conversation's.
        self.prompt_edits: dict[str, str] = {}
        self.drafted_shown = bool(setup.settings.colour_drafts)
        self._palette_at = float("-inf")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Under a screen that asks something, keys are that screen's; the one that
        interrupts closes it."""
        return action not in _OF_THE_CHAT or not isinstance(self.screen, ModalScreen)

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """As Textual's; what a key cannot do is told."""
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except AppError as error:
            self.complain(error)
            return True

    def pop_screen(self) -> AwaitComplete:
        """As Textual's; the chat itself stays, also when the palette is left twice in one burst."""
        return super().pop_screen() if len(self.screen_stack) > 1 else AwaitComplete()

    # What the app adds

    async def begin_answer(self) -> None:
        raise NotImplementedError

    async def show_conversation(self) -> None:
        raise NotImplementedError

    async def show_head(self) -> None:
        raise NotImplementedError

    def begin_loading(self, model: ModelChoice) -> None:
        raise NotImplementedError

    def forget_figures(self) -> None:
        """Of another branch or conversation, or another model; shows what is kept of this one."""
        self.last_report = None
        self.status.clear(self.kept_figures() or self.parameters.spec)
        if self.engine is not None:
            self.panel.clear(drafts=self.engine.drafts)

    def kept_figures(self) -> str:
        """The numbers of the last answer of the branch that is looked at."""
        return kept_statistics(self._meta_of_last)

    @property
    def spec_of_last(self) -> str:
        """The speculation mode of the last answer; the one that is set, where that is not kept."""
        kept = self._meta_of_last.get("parameters")
        mode = kept.get("spec") if isinstance(kept, dict) else None
        return mode if isinstance(mode, str) else self.parameters.spec

    @property
    def _meta_of_last(self) -> Mapping[str, Any]:
        metas = (one.meta for one in reversed(self.session.path) if one.role == "assistant")
        return next(metas, {})

    # Commands

    async def obey(self, text: str) -> bool:
        """Does what a slash command says; False if `text` is none. Raises AppError."""
        command = parse(text)
        if not isinstance(command, Command):
            return False
        action = getattr(self, f"action_{command.spec.action}")
        done = action(command.argument) if command.spec.arguments else action()
        if done is not None:
            await done
        return True

    def spoken(self, text: str) -> str:
        """A message as the model sees it: "//" undone, files added. Raises AppError."""
        said = parse(text)
        assert isinstance(said, str)
        folder = Path.cwd()
        content = attachments.with_files(said, attachments.attached(said, folder))
        if unknown := attachments.missing(said, folder):
            self.notify(attachments.sent_as_text(unknown), timeout=5, markup=False)
        return content

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        for spec in COMMANDS:
            if not spec.arguments or spec.arguments.startswith("["):
                yield SystemCommand(spec.usage, spec.help, self._obeying(f"/{spec.name}"))
        yield from super().get_system_commands(screen)

    def _obeying(self, text: str) -> Callable[[], None]:
        def obey() -> None:
            self.call_later(self._obey_safely, text)

        return obey

    async def _obey_safely(self, text: str) -> None:
        try:
            await self.obey(text)
        except AppError as error:
            self.complain(error)

    # Answers

    async def action_stop(self) -> None:
        """Ends the running answer; what there is of it stays. Else leaves what is begun."""
        if self.exchange is not None:
            self.exchange.job.stop()
        else:
            self.composer.leave_editing()
            self.conversation.deselect()

    async def action_regenerate(self) -> None:
        """Answers the last question, or that of the selected answer, once more."""
        if self.busy():
            return
        selected = self.conversation.selected
        of = selected.message_id if isinstance(selected, Answer) else None
        if not self.session.regenerate(of):
            self.notify("There is nothing to answer yet.", timeout=2)
            return
        await self.show_conversation()
        await self.begin_answer()

    def action_edit(self) -> None:
        """Lets the user write the selected or the last message anew."""
        selected = self.conversation.selected
        own = [w for w in self.conversation.messages if isinstance(w, UserMessage)]
        widget = selected if isinstance(selected, UserMessage) else (own[-1] if own else None)
        if widget is not None:
            asked = [one for one in self.conversation.messages if isinstance(one, UserMessage)]
            self.composer.edit_message(
                widget.written, widget.message_id, has_later=widget is not asked[-1]
            )
            self.composer.focus()

    def on_composer_edit_last(self) -> None:
        self.action_edit()

    async def action_switch_branch(self, step: int) -> None:
        """Shows the version before or after of the selected message, else of the last that has
        some."""
        if self.busy():
            return
        row = self._with_versions()
        if row is not None and self.session.switch_branch(row, step):
            self.forget_figures()
            await self.show_conversation()

    async def action_branch(self, number: str = "") -> None:
        """Shows version `number`, or the next one, of that message."""
        if not number:
            await self.action_switch_branch(1)
            return
        if not number.isdecimal():
            raise AppError(f"/branch: {number!r} is not the number of a version")
        row = self._with_versions()
        if row is None:
            raise AppError("/branch: no message has other versions")
        at, count = self.session.branch(row)
        if not 1 <= int(number) <= count:
            raise AppError(f"/branch: there are {count} versions")
        await self.action_switch_branch(int(number) - at)

    def _with_versions(self) -> int | None:
        """The selected message if it has versions; where none is selected, the last that has."""
        selected = self.conversation.selected
        widgets = [selected] if selected is not None else reversed(self.conversation.messages)
        rows = (widget.message_id for widget in widgets)
        return next((r for r in rows if r is not None and self.session.branch(r)[1] > 1), None)

    # Model and parameters

    async def action_model(self, path: str = "") -> None:
        """Chooses another model; the conversation goes on with it."""
        if self.busy():
            return
        from .widgets.model_picker import Choice, ModelPicker, typed_path

        if path:
            entry = await asyncio.to_thread(library.describe, typed_path(path))
            if entry is None or entry.problem:
                raise AppError(entry.problem if entry else f"/model: there is no model at {path}")
            self._choose_model(Choice(entry.path, None, entry.context_length))
            return
        folders, is_loaded = self.setup.settings.model_folders, self.engine is not None
        picker = ModelPicker(folders, self.wanted.model, is_loaded=is_loaded)
        self.push_screen(picker, self._choose_model)

    def _choose_model(self, choice: Choice | None) -> None:
        if choice is None or self.busy():
            return
        wish = self.setup.model.ctx_size
        model = chosen(self.wanted, choice, wish)
        if model.ctx_size != wish:
            told = (
                f"The context is {model.ctx_size}, all that the model was made for, not -c {wish}."
            )
            self.notify(told, timeout=6)
        self.begin_loading(model)

    def action_parameters(self) -> None:
        """Changes how answers of this conversation are made."""
        from .widgets.parameter_panel import ParameterPanel

        recommended = None if self.engine is None else self.engine.recommended_sampling
        can_think = self.engine is None or self.engine.model.knows_thinking
        panel = ParameterPanel(self.parameters, recommended, can_think=can_think)
        self.push_screen(panel, self._set_parameters)

    def _set_parameters(self, parameters: Parameters | None) -> None:
        if parameters is not None:
            self.parameters = parameters
            self.session.keep_values({**self.session.values, "parameters": parameters.as_dict()})

    def action_spec(self, mode: str = "") -> None:
        """Has the answers from now on drafted otherwise; without a mode, says which it is."""
        if not mode:
            self.notify(f"Speculation: {self.parameters.spec}. {SPEC_HINT}", timeout=4)
            return
        try:
            chosen_mode = str(read_value("spec", mode))
        except AppError as error:
            raise AppError(f"/spec: {error}") from error
        self._set_parameters(replace(self.parameters, spec=chosen_mode))
        self.notify(f"Speculation from now on: {chosen_mode}.", timeout=3, markup=False)

    def action_think(self) -> None:
        """Has the model think before it answers, if it can."""
        self._expect_thinking()
        self._set_parameters(replace(self.parameters, thinking=True))
        self.notify("It thinks before it answers.", timeout=2)

    def action_no_think(self) -> None:
        """Has it answer without thinking."""
        self._expect_thinking()
        self._set_parameters(replace(self.parameters, thinking=False))
        self.notify("It answers without thinking.", timeout=2)

    def _expect_thinking(self) -> None:
        if self.engine is not None and not self.engine.model.knows_thinking:
            raise AppError("this model's chat template has no switch for thinking")

    def action_system(self, text: str = "") -> None:
        """Sets the system prompt, or lets the user choose one."""
        if self.busy():
            return
        if text:
            self._set_system(text)
            return
        from .widgets.system_prompt_screen import SystemPromptScreen

        screen = SystemPromptScreen(self.session.system, edits=self.prompt_edits)
        self.push_screen(screen, self._leave_prompts)

    def _leave_prompts(self, text: str | None) -> None:
        self.prompt_edits.clear()
        self._set_system(text)

    def _set_system(self, text: str | None) -> None:
        if text is not None and not self.busy():
            self.session.set_system(text)
            self.notify("The system prompt is set." if text else "No system prompt.", timeout=2)

    def action_command_palette(self) -> None:
        if self.size.height < PALETTE_ROWS:
            self.notify("The terminal is too low for it.", timeout=2)
        elif time.monotonic() - self._palette_at > PALETTE_EVERY_S:
            self._palette_at = time.monotonic()
            from .widgets.palette import Palette

            if not isinstance(self.screen, Palette):
                self.push_screen(Palette(id="--command-palette"))

    # Inside

    def meta_of(self, exchange: Exchange) -> dict[str, Any]:
        """What is kept with an answer."""
        report = exchange.job.report
        meta: dict[str, Any] = {"parameters": self.parameters.as_dict()}
        if self.engine is not None:
            meta["model"] = self.engine.description.split(",")[0]
        if exchange.answer.thought_s is not None:
            meta["thought_s"] = round(exchange.answer.thought_s, 1)
        if exchange.answer.spans:
            meta["drafted"] = exchange.answer.spans
        if report is not None:
            meta["tokens"] = report.completion_tokens
            meta["tokens_per_second"] = round(report.tokens_per_second, 2)
            meta["acceptance_length"] = round(report.means.mean_acceptance_length, 3)
        return meta

    def busy(self) -> bool:
        if not self.is_loading and self.exchange is None:
            return False
        self.notify(BUSY, timeout=2)
        return True
