"""What the chat shows besides the conversation, and what is done with what is shown."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual.timer import Timer

from . import attachments, clipboard, thinking
from .chat_actions import ChatActions
from .chat_setup import Setup
from .chat_words import fitting_messages
from .entry import AppError
from .plan_table import plan_line
from .settings import change_setting
from .stats import statistics
from .store.turns import ModelMessage
from .widgets.answer import Answer
from .widgets.composer import Composer
from .widgets.note import Note
from .widgets.user_message import UserMessage

if TYPE_CHECKING:
    from specfit.backend import Engine

    from .store import Message

COUNTED_AFTER_S = 0.3


class ViewActions(ChatActions):
    """Panel, marks, figures, colours, selecting and copying; the length of the input."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._counting: Timer | None = None

    def action_help(self) -> None:
        """Shows keys and commands."""
        from .widgets.help_screen import HelpScreen

        self.push_screen(HelpScreen(self.keys))

    def action_panel(self) -> None:
        """Shows or hides what speculation does."""
        self.panel.display = not self.panel.display
        self.measure_context()

    async def action_drafted(self) -> None:
        """Marks the text that came from accepted drafts, or shows it as usual."""
        self.drafted_shown = not self.drafted_shown
        answers = [w for w in self.conversation.messages if isinstance(w, Answer)]
        for widget in answers:
            await widget.show_drafted(self.drafted_shown)
        if self.drafted_shown and not any(widget.spans for widget in answers):
            self.notify("No text here came from drafts.", timeout=2)

    async def action_stats(self) -> None:
        """Shows the numbers of the last answer, and where the model is."""
        if self.last_report is not None:
            text = statistics(self.last_report, self.parameters.spec)
        else:
            text = self.kept_figures() or "There is no answer yet."
        if self.plan is not None:
            text += f"\n{plan_line(self.plan)}"
        await self.conversation.add(Note(text))

    async def action_theme(self, name: str = "") -> None:
        """Chooses the colours, and keeps the choice."""
        if not name:
            self.search_themes()
            return
        if name not in self.available_themes:
            raise AppError(f"/theme: there are {', '.join(sorted(self.available_themes))}")
        self.theme = name
        change_setting(self.setup.settings.path, "theme", name)
        if self.no_color:
            self.notify("It is kept, and seen once NO_COLOR is not set.", timeout=4)

    async def action_select_message(self, step: int) -> None:
        await self.conversation.select(step)

    async def action_fold(self) -> None:
        """Unfolds or folds the thinking of the selected or last answer, or a long message."""
        widget = self._selected_or_last_answer()
        if isinstance(widget, Answer) and widget.thinking is not None:
            await widget.thinking.toggle()
        elif isinstance(widget, UserMessage):
            widget.toggle()

    async def action_copy(self, what: str = "") -> None:
        """Copies the selected message or the last answer; with "code", its last code."""
        if what not in ("", "code"):
            raise AppError('/copy takes nothing behind it, or "code"')
        if what:
            await self.action_copy_code()
            return
        widget = self._selected_or_last_answer()
        if widget is not None:
            await clipboard.copy(self, widget.written)
            self.notify("Copied.", timeout=2)

    async def action_copy_code(self) -> None:
        widget = self._selected_or_last_answer()
        blocks = [] if widget is None else widget.code_blocks
        if blocks:
            await clipboard.copy(self, blocks[-1])
        self.notify("Copied." if blocks else "There is no code in it.", timeout=2)

    def action_scroll_conversation(self, pages: int) -> None:
        """Scrolls a page up (-1) or down (1) while the keyboard stays with the input; the panel
        where it is all that is seen."""
        alone = self.panel.display and self.screen.has_class("-narrow")
        seen = self.panel if alone else self.conversation
        if pages < 0:
            seen.scroll_page_up(animate=False)
        else:
            seen.scroll_page_down(animate=False)

    def _selected_or_last_answer(self) -> Answer | UserMessage | None:
        if self.conversation.selected is not None:
            return self.conversation.selected
        answers = [w for w in self.conversation.messages if isinstance(w, Answer)]
        return answers[-1] if answers else None

    # How much there is

    def measure_context(self) -> None:
        """Has the panel show how much of the context the branch takes that is looked at; while an
        answer comes, it is told by that."""
        engine, path = self.engine, self.session.path
        if engine is not None and self.exchange is None and self.panel.display:
            self.run_worker(
                partial(self._measure_in_thread, engine, path),
                thread=True,
                exclusive=True,
                group="context",
            )

    def _measure_in_thread(self, engine: Engine, path: tuple[Message, ...]) -> None:
        from specfit.backend import SpecfitError

        try:
            messages, _ = fitting_messages(engine, path)
            used = engine.count_tokens(messages) if messages else 0
        except SpecfitError:  # the model was closed meanwhile
            return
        self.call_from_thread(self._show_measured, engine, path, used)

    def _show_measured(self, engine: Engine, path: tuple[Message, ...], used: int) -> None:
        if self.exchange is None and engine is self.engine and path == self.session.path:
            self.panel.meters.show_context(used, engine.ctx)

    def on_text_area_changed(self, event: Composer.Changed) -> None:
        if event.text_area is not self.composer:
            return
        if self._counting is not None:
            self._counting.stop()
        self._counting = self.set_timer(COUNTED_AFTER_S, self.count_input)

    def count_input(self) -> None:
        engine, text = self.engine, self.composer.message
        if engine is None or not text.strip():
            self.composer.show_counter("")
            return
        before, _ = self.session.model_messages(thinking.stripped)
        self.run_worker(
            partial(self._count_in_thread, engine, text, before),
            thread=True,
            exclusive=True,
            group="count",
        )

    def _count_in_thread(self, engine: Engine, text: str, before: list[ModelMessage]) -> None:
        """Tokens of the message with its files, and of all that the model will see."""
        from specfit.backend import SpecfitError

        try:
            files = attachments.attached(text, Path.cwd())
            said = attachments.with_files(text, files)
            own = len(engine.model.tokenize(said, add_special=False, parse_special=False))
            in_all = engine.count_tokens([*before, {"role": "user", "content": said}])
        except (AppError, SpecfitError):
            shown = ""
        else:
            names = [f"{f.name} {attachments.size_in_words(f.size)}" for f in files]
            tokens = "1 token" if own == 1 else f"{own:,} tokens"
            shown = " · ".join([*names, tokens, f"{in_all:,} of {engine.ctx:,}"])
        self.call_from_thread(self.composer.show_counter, shown)
