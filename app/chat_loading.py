"""Loading models, what is asked meanwhile, and being without a model."""

from __future__ import annotations

from functools import partial

from textual.timer import Timer

from . import attachments
from .chat_conversations import ConversationActions
from .chat_setup import Setup
from .chat_words import notice
from .entry import user_sentence
from .jobs import LoadJob
from .keys import key_name, keys_of
from .options import ModelChoice
from .plan_table import plan_line
from .widgets.loading_view import LoadingView
from .widgets.meters import all_memory
from .widgets.note import Note
from .widgets.user_message import UserMessage

AGAIN = "Loading was cancelled; the model before is loaded again."
WAITS = "waits for the model"


class LoadingActions(ConversationActions):
    """Follows the load that is under way; Esc cancels it.

    queued: the message that waits for the load's end, by id. It is in the store like any other, and
    no more than one waits.
    """

    loading_view: LoadingView
    _ticking: Timer

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.queued: int | None = None
        self._load_job: LoadJob | None = None
        self._opened_once = False

    @property
    def no_model(self) -> str:
        """What is said while there is none."""
        by = " or ".join([*map(key_name, keys_of("model", self.keys)), "/model"])
        return f"No model is loaded; {by} chooses one."

    def begin_loading(self, model: ModelChoice) -> None:
        """Loads `model` in a thread, in place of the loaded one; a load that was cancelled may take
        its time to end."""
        before, self.engine = self.engine, None
        last, job = self._load_job, LoadJob(partial(self.setup.load, model))
        self._load_job, self.wanted, self.is_loading = job, model, True

        def load() -> None:
            if last is not None:
                last.done.wait()
            if before is not None:
                before.close()
            job.run()

        self._hint("cancels")
        self.loading_view.show(None)
        self.loading_view.display = True
        self.call_later(self.show_head)
        self.run_worker(load, thread=True)
        self._ticking.resume()

    async def show_head(self) -> None:
        """Says above the conversation what is loaded, and what one should know."""
        head = [] if self.is_loading else [self.no_model]
        if self.engine is not None:
            told = [notice(one, self.keys) for one in self.engine.notices]
            head = [self.engine.description, *told]
        await self.conversation.set_head([Note(text) for text in (*head, *self.setup.notices)])

    async def action_stop(self) -> None:
        """Ends the running answer; else takes back what waits for the model, else cancels the
        loading; else leaves what is begun."""
        if self.queued is not None:
            await self._take_back()
        elif self.is_loading and self._load_job is not None:
            self._load_job.cancel()
        else:
            await super().action_stop()

    async def action_regenerate(self) -> None:
        """Answers the last question, or that of the selected answer, once more."""
        if self.engine is None and not self.is_loading:
            self.notify(self.no_model, timeout=3)
        else:
            await super().action_regenerate()

    async def follow_loading(self) -> None:
        """Brings what the load has come to to the screen."""
        job = self._load_job
        assert job is not None
        if job.done.is_set() and job.engine is not None:
            self.engine, self.loaded, self.plan = job.engine, self.wanted, job.plan
            self.panel.meters.sample = all_memory
            await self._end_loading()
        elif job.done.is_set() or job.cancelled:
            await self._go_on_without(job)
        else:
            placed = "" if job.plan is None else plan_line(job.plan)
            self.loading_view.show(job.fraction, placed)

    async def _go_on_without(self, job: LoadJob) -> None:
        """The model is not loaded. The one before is loaded again; without one, or if it is that
        one, the chat goes on without any, except where it has never been open."""
        await self._take_back()
        before, self.loaded = self.loaded, None
        if not job.cancelled:
            if not self._opened_once:
                self.load_error = job.error
                self.exit()
                return
            why = None if job.error is None else user_sentence(job.error)
            self.notify(
                why or "The model was not loaded.", severity="error", timeout=10, markup=False
            )
        if before in (None, self.wanted):
            await self._end_loading()
            return
        if job.cancelled:
            self.notify(AGAIN, timeout=4)
        assert before is not None
        self.begin_loading(before)

    async def _end_loading(self) -> None:
        self.is_loading, self._opened_once = False, True
        self.loading_view.display = False
        self.forget_figures()
        await self.show_head()
        self.measure_context()
        if self.queued is not None:
            await self._answer_queued(self.queued)

    # What waits

    def queue(self, message: UserMessage) -> None:
        """Has `message`, which was asked and is the last one, answered when the load ends."""
        self.queued = message.message_id
        message.set_waiting(WAITS)
        self._hint("takes the message back")

    async def _take_back(self) -> None:
        """Puts what waits into the input again."""
        if self.queued is None:
            return
        self.queued = None
        question = self.session.withdraw()
        if question is not None:
            self.composer.restore(attachments.split_files(question)[0])
        self._hint("cancels")
        await self.show_conversation()

    async def _answer_queued(self, message: int) -> None:
        self.queued = None
        for widget in self.conversation.messages:
            if isinstance(widget, UserMessage) and widget.message_id == message:
                widget.set_waiting("")
        await self.begin_answer()

    def _hint(self, what: str) -> None:
        keys = keys_of("stop", self.keys)
        self.loading_view.hint = f"{key_name(keys[0])} {what}" if keys else ""
