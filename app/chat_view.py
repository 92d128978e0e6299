"""What the chat shows besides the conversation, and what is done with what is shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual.timer import Timer

from . import attachments, clipboard
from .chat_leaving import LeavingActions
from .chat_setup import Setup
from .chat_words import Seen, seen_of
from .entry import AppError
from .keys import key_name, keys_of
from .plan_table import plan_line
from .settings import change_setting
from .stats import statistics
from .store import Message
from .widgets.answer import Answer
from .widgets.composer import Composer
from .widgets.conversation import Conversation
from .widgets.note import Note
from .widgets.user_message import UserMessage

if TYPE_CHECKING:
    from specfit.backend import Engine, Report

COUNTED_AFTER_S = 0.3


@dataclass(frozen=True, eq=False)
class _Measuring:
    """What is counted. seen: of the branch, if it was counted before."""

    engine: Engine
    path: tuple[Message, ...]
    text: str
    seen: Seen | None


class ViewActions(LeavingActions):
    """Panel, marks, figures, colours, selecting and copying; the length of the input."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._counting: Timer | None = None
        self._measuring: _Measuring | None = None
        self._measured: tuple[_Measuring | None, Seen] = None, Seen((), None, 0)
        # Of the context: by the branch, and by the input with its files, which is told in words.
        self._taken, self._input = 0, ("", 0)

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
            text = statistics(self.last_report, self.spec_of_last)
        else:
            text = self.kept_figures() or "There is no answer yet."
        if self.spec_of_last != self.parameters.spec:
            text += f"\nSpeculation from now on: {self.parameters.spec}"
        if self.plan is not None:
            text += f"\n{plan_line(self.plan)}"
        await self.conversation.add(Note(text))

    async def action_theme(self, name: str = "") -> None:
        """Chooses the colours, and keeps the choice."""
        if not name:
            self.search_themes()
            return
        if name not in self.available_themes:
            raise AppError("/theme: there is no such theme; /theme alone lists them")
        self.theme = name
        change_setting(self.setup.settings.path, "theme", name)
        if self.no_color:
            self.notify("It is kept, and seen once NO_COLOR is not set.", timeout=4)

    async def action_select_message(self, step: int) -> None:
        await self.conversation.select(step)

    def on_conversation_selected(self, event: Conversation.Selected) -> None:
        """Says beside the input what can be done with a selected message."""
        words = {"copy": "copies", "switch_branch(1)": "next version", "stop": "leaves it"}
        if isinstance(event.message, Answer):
            words = {"regenerate": "answers anew", **words}
        known = {action: keys_of(action, self.keys) for action in words}
        hints = [f"{key_name(keys[0])} {words[action]}" for action, keys in known.items() if keys]
        if isinstance(event.message, UserMessage):
            hints.insert(0, "Up edits")
        self.composer.show_hint("" if event.message is None else " · ".join(hints))

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
        """Counts, in a thread, what the next request would take: of the branch that is looked at,
        and of the input."""
        if self._counting is not None:
            self._counting.stop()
        engine, text = self.engine, self.composer.message
        if engine is None:
            self.composer.show_counter("")
            return
        path = self.session.path
        self._measuring = job = _Measuring(engine, path, text, self._seen_before(engine, path))
        self.run_worker(
            partial(self._measure_in_thread, job), thread=True, exclusive=True, group="context"
        )

    def follow_context(self, report: Report) -> None:
        """While an answer comes: its prompt and what there is of it."""
        self._taken = report.prompt_tokens + report.completion_tokens
        self._show_context()

    def on_text_area_changed(self, event: Composer.Changed) -> None:
        if event.text_area is not self.composer:
            return
        if self._counting is not None:
            self._counting.stop()
        self._counting = self.set_timer(COUNTED_AFTER_S, self.measure_context)

    def _seen_before(self, engine: Engine, path: tuple[Message, ...]) -> Seen | None:
        """What was measured of that branch last; counting a long one takes its time."""
        job, seen = self._measured
        return seen if job is not None and (job.engine, job.path) == (engine, path) else None

    def _measure_in_thread(self, job: _Measuring) -> None:
        from specfit.backend import SpecfitError

        try:
            seen = job.seen or seen_of(job.engine, job.path)
            label, tokens = self._measured_input(job, seen)
        except SpecfitError:  # the model was closed meanwhile
            return
        self.call_from_thread(self._show_measured, job, seen, label, tokens)

    def _measured_input(self, job: _Measuring, seen: Seen) -> tuple[str, int]:
        """The message with its files in words, and what it adds to the next request, which may be
        less than nothing where turns are left out for it."""
        try:
            files = attachments.attached(job.text, Path.cwd())
        except AppError:
            return "", 0
        if not job.text.strip():
            return "", 0
        said = attachments.with_files(job.text, files)
        own = len(job.engine.model.tokenize(said, add_special=False, parse_special=False))
        names = [f"{f.name} {attachments.size_in_words(f.size)}" for f in files]
        label = " · ".join([*names, "1 token" if own == 1 else f"{own:,} tokens"])
        with_it = seen_of(job.engine, (*seen.path, Message(0, None, "user", said)))
        return label, with_it.tokens - seen.tokens

    def _show_measured(self, job: _Measuring, seen: Seen, label: str, tokens: int) -> None:
        if job is not self._measuring or job.engine is not self.engine:
            return
        self._measured = job, seen
        self._input = label, tokens
        if self.exchange is None:
            self.call_later(self.conversation.mark_unseen, seen.first)
        if self.exchange is None or self.exchange.job.report is None:
            self._taken = seen.tokens
        self._show_context()

    def _show_context(self) -> None:
        """The same number beside the input and in the panel."""
        if self.engine is None:
            return
        label, own = self._input
        taken, ctx = self._taken + own, self.engine.ctx
        self.panel.meters.show_context(taken, ctx)
        self.composer.show_counter(f"{label} · {taken:,} of {ctx:,}" if label else "")
