"""Loading models, and being without one, after a load that was cancelled or failed."""

from __future__ import annotations

from functools import partial

from textual.containers import Horizontal
from textual.timer import Timer

from .chat_conversations import ConversationActions
from .chat_setup import Setup
from .entry import user_sentence
from .jobs import LoadJob
from .keys import key_name, keys_of
from .options import ModelChoice
from .widgets.loading_view import LoadingView
from .widgets.meters import all_memory

AGAIN = "Loading was cancelled; the model before is loaded again."


class LoadingActions(ConversationActions):
    """Follows the load that is under way; Esc cancels it."""

    loading_view: LoadingView
    middle: Horizontal
    _ticking: Timer

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
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

        self.loading_view.show(None)
        self.loading_view.display, self.middle.display = True, False
        self.run_worker(load, thread=True)
        self._ticking.resume()

    def action_stop(self) -> None:
        """Ends the running answer, or cancels the loading; else leaves what is begun."""
        if self.is_loading and self._load_job is not None:
            self._load_job.cancel()
        else:
            super().action_stop()

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
            self.engine, self.loaded = job.engine, self.wanted
            self.panel.meters.sample = all_memory
            await self._show_chat()
        elif job.done.is_set() or job.cancelled:
            await self._go_on_without(job)
        else:
            self.loading_view.show(job.fraction)

    async def _go_on_without(self, job: LoadJob) -> None:
        """The model is not loaded. The one before is loaded again; without one, or if it is that
        one, the chat goes on without any, except where it has never been open."""
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
            await self._show_chat()
            return
        if job.cancelled:
            self.notify(AGAIN, timeout=4)
        assert before is not None
        self.begin_loading(before)

    async def _show_chat(self) -> None:
        self.is_loading, self._opened_once = False, True
        self.loading_view.display, self.middle.display = False, True
        self.forget_figures()
        await self.show_conversation()
