"""Work for a thread beside the chat's event loop: loading the engine, and one answer.

The thread only leaves what it has in the job, and the chat looks at it some 25 times a second. So
a fast stream costs the chat no more than a slow one, and nothing ever waits for the other side.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Lock
from typing import TYPE_CHECKING

from .entry import user_sentence

if TYPE_CHECKING:
    from specfit.backend import Engine, Generation, Report
    from specfit.backend.plan import Plan
    from specfit.backend.view import CycleView

Load = Callable[[Callable[[float], bool], Callable[["Plan"], None]], "Engine"]
REPORT_EVERY_S = 0.2
# What nobody took in the meantime is not worth keeping.
MOST_VIEWS = 256


class LoadJob:
    """Loads an engine.

    Read `fraction` (0..1; None before anything is known), `plan` (where it goes; None before that
    is known), and once `done` is set, `engine` or `error`. One that was cancelled has no engine,
    unless it had it by then.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._lock = Lock()
        self.cancelled = False
        self.fraction: float | None = None
        self.plan: Plan | None = None
        self.engine: Engine | None = None
        self.error: Exception | None = None
        self.done = Event()

    def run(self) -> None:
        """In the thread. An error that the user can put right is kept; others are raised."""
        try:
            if not self.cancelled:
                self._keep(self._load(self._advance, self._place))
        except Exception as error:
            if user_sentence(error) is None:
                raise
            # Its frames hold what was loaded so far, and another model may need the room.
            self.error = error.with_traceback(None)
        finally:
            self.done.set()

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True

    def _advance(self, fraction: float) -> bool:
        self.fraction = fraction
        return not self.cancelled

    def _place(self, plan: Plan) -> None:
        self.plan = plan

    def _keep(self, engine: Engine) -> None:
        with self._lock:
            if not self.cancelled:
                self.engine = engine
        if self.engine is None:
            engine.close()


class AnswerJob:
    """Generates one answer.

    Read `take()`, `take_views()` and `report` while it runs; `opens_thinking` is None until the
    prompt is made. Once `done` is set, `report` and `drafted_spans` are final, and `error` says in
    a sentence why the answer failed, if it did.
    """

    def __init__(self, start: Callable[[], Generation]) -> None:
        self._start = start
        self._generation: Generation | None = None
        self._stopping = Event()
        self._lock = Lock()
        self._pieces: list[str] = []
        self._views: list[CycleView] = []
        self.opens_thinking: bool | None = None
        self.report: Report | None = None
        self.error: str | None = None
        self.done = Event()

    def run(self) -> None:
        """In the thread. An error that the user can put right is kept; others are raised."""
        try:
            self._generate()
        except Exception as error:
            self.error = user_sentence(error)
            if self.error is None:
                raise
        finally:
            self.done.set()

    def stop(self) -> None:
        """Ends the answer after the present cycle; what there is stays."""
        self._stopping.set()
        if self._generation is not None:
            self._generation.stop()

    def take(self) -> str:
        """The text that came since the last call."""
        with self._lock:
            text = "".join(self._pieces)
            self._pieces.clear()
        return text

    def take_views(self) -> list[CycleView]:
        """The cycles since the last call."""
        with self._lock:
            views = list(self._views)
            self._views.clear()
        return views

    @property
    def drafted_spans(self) -> list[tuple[int, int]]:
        """Where text of accepted drafts lies in the answer."""
        return [] if self._generation is None else list(self._generation.drafted_spans)

    def _generate(self) -> None:
        self._generation = generation = self._start()
        generation.watch = self._see
        self.opens_thinking = generation.opens_thinking
        if self._stopping.is_set():  # asked for while it was starting
            generation.stop()
        reported = time.monotonic()
        for piece in generation:
            with self._lock:
                self._pieces.append(piece)
            if time.monotonic() - reported >= REPORT_EVERY_S:
                self.report = generation.report
                reported = time.monotonic()
        self.report = generation.report

    def _see(self, view: CycleView) -> None:
        with self._lock:
            self._views.append(view)
            del self._views[:-MOST_VIEWS]
