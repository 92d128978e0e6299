"""The chat app: puts the widgets together and follows loading and answers.

All inference runs in threads (`jobs`); a timer looks at the running job and moves what it has to
the screen, so the event loop never waits and the screen changes no more often than eyes can see.
What keys and commands do is in `chat_actions`, `chat_view` and `chat_conversations`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import BindingsMap
from textual.containers import Horizontal

from . import attachments
from .chat_actions import Exchange
from .chat_loading import LoadingActions
from .chat_setup import Setup
from .chat_words import fitting_messages, refusal
from .entry import AppError, say
from .hangup import STDIN, leave_with_terminal
from .jobs import AnswerJob
from .key_order import KeysInOrder
from .keys import bindings, key_name, keys_of
from .loops import LoopDetector
from .pace import SWITCH_S, Pace
from .paste_parser import with_whole_pastes
from .store import Message, StoreError
from .thinking import OPENED
from .why import why
from .widgets.answer import Answer
from .widgets.composer import Composer
from .widgets.conversation import Conversation
from .widgets.dialog import HEIGHTS, WIDTHS
from .widgets.loading_view import LoadingView
from .widgets.note import Note
from .widgets.panel import Panel
from .widgets.status_line import StatusLine
from .widgets.user_message import UserMessage

if TYPE_CHECKING:
    from textual.driver import Driver

    from specfit.backend import Engine, Generation

UPDATES_PER_S = 25
SAVED_AGAIN_S = 1.0
# What is being written, so that no key waits for it.
KEPT_EVERY_S = 0.25
TERMINATED = 128 + signal.SIGTERM
LOOPING = "stopped: it repeats itself"
PARTED = "Another window has gone on from here, too. Both are kept; {} shows the other."
BUSY_ANSWERING = "The answer is still coming; Esc stops it."
BUSY_QUEUED = "A message waits already; Esc takes it back."


class ChatApp(KeysInOrder, LoadingActions):
    """The chat. After `run`, `load_error` is why the model could not be loaded, if so."""

    TITLE = "SpecFit"
    # Toasts above the conversation, where they hide neither the input nor the newest text.
    CSS = """
    ToastRack {
        dock: top;
        align: right top;
        margin: 0;
    }
    Toast {
        width: auto;
        max-width: 60;
        max-height: 2;
        margin: 0;
        padding: 0 1;
    }
    .-low StatusLine, .-low LoadingView #below, .-narrow LoadingView #keys {
        display: none;
    }
    .-low Composer {
        min-height: 1;
        max-height: 2;
        border: none;
    }
    .-low Answer {
        .mark, Markdown > :last-child {
            margin: 0;
        }
    }
    .-middle Composer {
        max-height: 4;
    }
    CommandPalette.-middle > Vertical {
        margin-top: 0;
    }
    .-narrow {
        Toast {
            max-width: 100%;
        }
        & > Horizontal {
            layers: below above;
        }
        Conversation {
            layer: below;
        }
        Panel {
            layer: above;
            width: 100%;
            max-width: 100%;
        }
    }
    """
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        theme = setup.settings.theme
        if theme is not None and theme not in self.available_themes:
            raise setup.settings.wrong("theme", "there is no such theme")
        self._pace = Pace()
        self._bindings = BindingsMap.merge([self._bindings, BindingsMap(bindings(self.keys))])

    def get_driver_class(self) -> type[Driver]:
        return with_whole_pastes(super().get_driver_class())

    def compose(self) -> ComposeResult:
        self.conversation = Conversation()
        self.panel = Panel()
        self.panel.display = False
        self.status = StatusLine(self.parameters.spec)
        self.composer = Composer(self.keys)
        self.loading_view = LoadingView()
        yield Horizontal(self.conversation, self.panel)
        yield self.loading_view
        yield self.status
        yield self.composer

    async def on_mount(self) -> None:
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, lambda: self.exit(return_code=TERMINATED)
        )
        if self.setup.settings.theme is not None:
            self.theme = self.setup.settings.theme
        self.composer.focus()
        self._ticking = self.set_interval(1 / UPDATES_PER_S, self._tick)
        self.begin_loading(self.setup.model)
        await self.show_conversation()
        await self.begin_with_unsent()
        self.set_interval(KEPT_EVERY_S, self.keep_unsent)
        self.set_interval(SAVED_AGAIN_S, self._save_again)

    def on_unmount(self) -> None:
        """Lets the threads end: the process waits for them."""
        if self._load_job is not None:
            self._load_job.cancel()
        if self.exchange is not None:
            self.exchange.job.stop()
            self._keep_rest(self.exchange)
        self.session.close()
        self.note_unsent()
        with suppress(StoreError):
            self.unsent.leave()

    async def _tick(self) -> None:
        """Brings what the running job has to the screen; rests while there is none."""
        if self.is_loading:
            await self.follow_loading()
        elif self.engine is not None and self.exchange is not None:
            await self._follow_answer(self.exchange)
        else:
            self._ticking.pause()

    # Questions and answers

    async def on_composer_submitted(self, message: Composer.Submitted) -> None:
        try:
            if await self.obey(message.text):
                return
            question = self.spoken(message.text)
            refused = self._not_now()
            if not refused:
                await self._ask(question, message.editing)
                return
            self.notify(refused, timeout=2)
        except AppError as error:
            self.complain(error)
        self.composer.restore(message.text)

    def _not_now(self) -> str:
        """Why nothing can be asked at present, if so."""
        if self.exchange is not None:
            return BUSY_ANSWERING
        if self.queued is not None:
            return BUSY_QUEUED
        return "" if self.is_loading or self.engine is not None else self.no_model

    async def _ask(self, question: str, editing: object) -> None:
        widget = next((w for w in self.conversation.messages if w.message_id == editing), None)
        if isinstance(editing, int):
            asked = self.session.edit(editing, question)
            if widget is not None:
                await self.conversation.cut(widget)
        else:
            asked = self.session.ask(question)
        self.keep_unsent()
        if self.session.parted:
            by = [*map(key_name, keys_of("switch_branch(-1)", self.keys)), "/branch"][0]
            self.notify(PARTED.format(by), timeout=8)
        message = UserMessage(question, message_id=asked.id)
        await self.conversation.add(message)
        self.show_version(message)
        if self.is_loading:
            self.queue(message)
        else:
            await self.begin_answer()

    async def begin_answer(self) -> None:
        """Has the model answer the question that the session looks at."""
        assert self.engine is not None
        path = self.session.path
        row = self.session.begin_answer()
        job = AnswerJob(partial(self._generation, self.engine, path))
        answer = Answer(message_id=row.id)
        self.exchange = Exchange(job, answer, LoopDetector())
        await self.conversation.add(answer)
        if self.drafted_shown:
            await answer.show_drafted(True)
        self.run_worker(job.run, thread=True)
        self._ticking.resume()

    def _generation(self, engine: Engine, path: tuple[Message, ...]) -> Generation:
        """In the job's thread: the messages that fit, and their answer begun."""
        from specfit.backend import Spec, SpecfitError

        parameters = self.parameters
        messages, first = fitting_messages(engine, path)
        try:
            generation = engine.generate(
                messages=messages,
                sampling=parameters.over(engine.recommended_sampling),
                max_tokens=parameters.max_tokens,
                spec=Spec.parse(parameters.spec),
                thinking=parameters.thinking,
            )
        except SpecfitError as error:
            raise refusal(engine, messages, error) from error
        self.call_from_thread(self.call_later, self.conversation.mark_unseen, first)
        return generation

    async def _follow_answer(self, exchange: Exchange) -> None:
        job = exchange.job
        over = job.done.is_set()  # before taking, so that nothing comes after
        if not (over or self._pace.allows()):
            return
        await self._bring(exchange)
        views = job.take_views()
        if views:
            exchange.why = why(views[-1].reason, self.parameters.spec, views[-1].report.drafted)
            self.panel.show(views, self.parameters.spec)
        if job.report is not None:
            self.follow_context(job.report)
            self.status.show(job.report, self.parameters.spec, exchange.why)
        if over:
            await self._conclude(exchange)
            self.exchange = None
            trouble = None if self.engine is None else self.engine.trouble()
            if trouble is not None:
                self.notify(trouble, severity="warning", timeout=15, markup=False)
            self.measure_context()

    async def _bring(self, exchange: Exchange) -> None:
        """Brings the text that came since to the screen and the store."""
        piece = exchange.job.take()
        if not piece:
            return
        if not exchange.answer.text and exchange.job.opens_thinking:
            exchange.answer.open_thinking()
            self.session.grow(OPENED)
        self.session.grow(piece)
        await exchange.answer.append(piece)
        if self.drafted_shown:
            exchange.answer.set_spans(exchange.job.drafted_spans)
        if exchange.loops.feed(piece) and not exchange.looping:
            exchange.looping = True
            exchange.job.stop()

    async def _conclude(self, exchange: Exchange) -> None:
        """Keeps the answer; one without any text is taken back, its question to the input."""
        job, answer = exchange.job, exchange.answer
        report = job.report
        reason = "stopped" if report is None else report.finish_reason
        if answer.text or reason == "stop":
            status = "complete" if reason == "stop" else reason
            await answer.finish(status, LOOPING if exchange.looping else "")
            answer.set_spans(job.drafted_spans)
            kept = self.session.finish(status, self.meta_of(exchange))
            answer.message_id = kept.id
            self.show_version(answer)
            self.last_report = report
        else:
            question = self.session.take_back()
            if question is not None:  # before anything that takes time: the chat may be left
                self.composer.restore(attachments.split_files(question)[0])
            await self.show_conversation()
        if job.error is not None:
            await self.conversation.add(Note(job.error, error=True))
        self._tell_trouble()

    def _save_again(self) -> None:
        """What could not be saved."""
        if not self.session.is_saved:
            self.session.retry()
            self._tell_trouble()

    def _tell_trouble(self) -> None:
        trouble = self.session.take_trouble()
        if trouble:
            self.notify(trouble, severity="warning", timeout=10, markup=False)

    def _keep_rest(self, exchange: Exchange) -> None:
        """When leaving in the middle of an answer; a question without any stays, to be answered
        some other time."""
        if not self.session.is_answering:  # it came to its end just now
            return
        piece = exchange.job.take()
        if piece:
            self.session.grow(piece)
        if exchange.answer.text or piece:
            self.session.finish("stopped", self.meta_of(exchange))
        else:
            self.session.take_back(question_too=False)


def run_chat(setup: Setup) -> int:
    """Opens the chat and returns the exit code when the user leaves it.

    Raises what stopped the model from loading (SpecfitError, ModelFileError, OSError).
    """
    app = ChatApp(setup)
    sys.setswitchinterval(SWITCH_S)
    try:
        leave_with_terminal(STDIN)
        app.run()
    finally:
        if setup.session.store is not None:
            setup.session.store.close()
    if app.engine is not None:
        app.engine.close()
        if app.engine.not_kept:
            say(app.engine.not_kept)
    if app.load_error is not None:
        raise app.load_error
    return app.return_code or 0
