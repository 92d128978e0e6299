"""The chat app: puts the widgets together and keeps the conversation.

All inference runs in threads (`jobs`); a timer looks at the running job and moves what it has to
the screen, so the event loop never waits and the screen changes no more often than eyes can see.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.app import App, ComposeResult
from textual.binding import Binding

from .jobs import AnswerJob, Load, LoadJob
from .options import ModelChoice, SamplingChoice
from .stats import statistics
from .widgets.answer import Answer
from .widgets.composer import Composer
from .widgets.conversation import Conversation
from .widgets.loading_view import LoadingView
from .widgets.note import Note
from .widgets.status_line import StatusLine
from .widgets.user_message import UserMessage

if TYPE_CHECKING:
    from specfit.backend import Engine
    from specfit.planner import Spec

UPDATES_PER_S = 25
LEAVE_WITHIN_S = 1.0
TERMINATED = 128 + signal.SIGTERM


class Exchange:
    """A question that is being answered, and what shows it."""

    def __init__(self, job: AnswerJob, question: str) -> None:
        self.job = job
        self.question = question
        self.user_message = UserMessage(question)
        self.answer = Answer()


class ChatApp(App[None]):
    """The chat. After `run`, `load_error` is why the model could not be loaded, if so."""

    TITLE = "SpecFit"
    BINDINGS = [  # noqa: RUF012 -- as Textual declares it
        Binding("ctrl+c", "interrupt", "Stop or leave", priority=True, show=False),
        Binding("escape", "stop", "Stop", show=False),
        Binding("ctrl+n", "new_chat", "New chat", priority=True, show=False),
        Binding("pageup", "scroll_conversation(-1)", "Look up", priority=True, show=False),
        Binding("pagedown", "scroll_conversation(1)", "Look down", priority=True, show=False),
    ]

    def __init__(
        self,
        load: Load,
        spec: Spec,
        sampling: SamplingChoice,
        max_tokens: int | None = None,
        system: str | None = None,
    ) -> None:
        super().__init__()
        self._spec = spec
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._opening)
        self._load_job = LoadJob(load)
        self._exchange: Exchange | None = None
        self._last_interrupt = float("-inf")
        self.engine: Engine | None = None
        self.load_error: Exception | None = None

    def compose(self) -> ComposeResult:
        self._loading_view = LoadingView()
        self._conversation = Conversation()
        self._conversation.display = False
        self._status = StatusLine(str(self._spec))
        self._composer = Composer()
        yield self._loading_view
        yield self._conversation
        yield self._status
        yield self._composer

    def on_mount(self) -> None:
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, lambda: self.exit(return_code=TERMINATED)
        )
        self._composer.focus()
        self.run_worker(self._load_job.run, thread=True)
        self._ticking = self.set_interval(1 / UPDATES_PER_S, self._tick)

    def on_unmount(self) -> None:
        """Lets the threads end: the process waits for them."""
        self._load_job.cancel()
        if self._exchange is not None:
            self._exchange.job.stop()

    async def _tick(self) -> None:
        """Brings what the running job has to the screen; rests while there is none."""
        if self.engine is None:
            await self._follow_loading(self._load_job)
        elif self._exchange is not None:
            await self._follow_answer(self._exchange)
        else:
            self._ticking.pause()

    # Loading

    async def _follow_loading(self, job: LoadJob) -> None:
        self._loading_view.show(job.fraction)
        if not job.done.is_set():
            return
        if job.engine is None:
            self.load_error = job.error
            self.exit()
            return
        self.engine = job.engine
        await self._loading_view.remove()
        self._conversation.display = True
        for text in (self.engine.description, *self.engine.notices):
            await self._conversation.add(Note(text))

    # Questions and answers

    async def on_composer_submitted(self, message: Composer.Submitted) -> None:
        if self.engine is None:
            self.notify("The model is still loading.", timeout=2)
            self._composer.restore(message.text)
        elif self._exchange is not None:
            self.notify("The answer is still coming; Esc stops it.", timeout=2)
            self._composer.restore(message.text)
        else:
            await self._ask(self.engine, message.text)

    async def _ask(self, engine: Engine, question: str) -> None:
        messages = [*self._messages, {"role": "user", "content": question}]
        job = AnswerJob(
            lambda: engine.generate(
                messages=messages,
                sampling=self._sampling.over(engine.recommended_sampling),
                max_tokens=self._max_tokens,
                spec=self._spec,
            )
        )
        exchange = self._exchange = Exchange(job, question)
        await self._conversation.add(exchange.user_message)
        await self._conversation.add(exchange.answer)
        self.run_worker(job.run, thread=True)
        self._ticking.resume()

    async def _follow_answer(self, exchange: Exchange) -> None:
        over = exchange.job.done.is_set()  # before taking, so that nothing comes after
        await exchange.answer.append(exchange.job.take())
        if exchange.job.report is not None:
            self._status.update(statistics(exchange.job.report, str(self._spec)))
        if over:
            await self._conclude(exchange)
            self._exchange = None

    async def _conclude(self, exchange: Exchange) -> None:
        """Keeps the exchange; one without any answer is taken back, its question to the input."""
        report = exchange.job.report
        if exchange.answer.text or (report is not None and report.finish_reason == "stop"):
            await exchange.answer.finish(report.finish_reason if report else "stopped")
            self._messages += [
                {"role": "user", "content": exchange.question},
                {"role": "assistant", "content": exchange.answer.text},
            ]
        else:
            await exchange.user_message.remove()
            await exchange.answer.remove()
            self._composer.restore(exchange.question)
        if exchange.job.error is not None:
            await self._conversation.add(Note(exchange.job.error, error=True))

    # Keys

    def action_stop(self) -> None:
        """Ends the running answer; what there is of it stays."""
        if self._exchange is not None:
            self._exchange.job.stop()

    async def action_new_chat(self) -> None:
        """Begins a new conversation, which has the whole context to itself."""
        if self.engine is None or self._exchange is not None:
            self.notify("Not while the model is busy; Esc stops it.", timeout=2)
            return
        self._messages = list(self._opening)
        await self._conversation.clear()
        await self._conversation.add(Note(self.engine.description))

    def action_interrupt(self) -> None:
        """Copies what is selected; else stops the answer; else leaves, at the second time."""
        selected = self.screen.get_selected_text() or self._composer.selected_text
        if selected:
            self.copy_to_clipboard(selected)
            self.screen.clear_selection()
            self._composer.move_cursor(self._composer.cursor_location)
        elif self._exchange is not None:
            self.action_stop()
        elif time.monotonic() - self._last_interrupt < LEAVE_WITHIN_S:
            self.exit()
        else:
            self._last_interrupt = time.monotonic()
            self.notify("Press Ctrl+C again to leave.", timeout=LEAVE_WITHIN_S)

    def action_scroll_conversation(self, pages: int) -> None:
        """Scrolls a page up (-1) or down (1) while the keyboard stays with the input."""
        if pages < 0:
            self._conversation.scroll_page_up(animate=False)
        else:
            self._conversation.scroll_page_down(animate=False)


def run_chat(
    choice: ModelChoice,
    spec: Spec,
    sampling: SamplingChoice,
    max_tokens: int | None,
    system: str | None,
) -> int:
    """Opens the chat and returns the exit code when the user leaves it.

    Raises what stopped the model from loading (SpecfitError, ModelFileError, OSError).
    """

    def load(progress: Callable[[float], bool]) -> Engine:
        options = choice.load_options(drafting=spec.drafts)
        from specfit.backend import Engine

        return Engine.load(options, progress=progress)

    app = ChatApp(load, spec, sampling, max_tokens, system)
    app.run()
    if app.engine is not None:
        app.engine.close()
    if app.load_error is not None:
        raise app.load_error
    return app.return_code or 0
