"""Loading a model, cancelling that, and a chat without any model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Lock

import pytest
from screencases import PATIENCE_S
from test_chat_tui import answered, app_of, ask, press, text_of, until
from textual.widgets import ProgressBar, Static

from specfit.app.jobs import LoadJob
from specfit.app.options import ModelChoice
from specfit.app.widgets.answer import Answer
from specfit.app.widgets.composer import Composer
from specfit.app.widgets.model_picker import Choice, ModelPicker
from specfit.app.widgets.note import Note
from specfit.backend import Engine, LoadOptions, SpecfitError

SLOW, BROKEN, OTHER = Path("/slow.gguf"), Path("/broken.gguf"), Path("/other.gguf")
BUNDLED = None


class Loader:
    """Loads by name. What is slow takes until it is cancelled, and then until `release`; so does
    what is named in `slow`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.slow: set[Path | None] = {SLOW}
        self.broken: set[Path | None] = {BROKEN}
        self.loads: list[Path | None] = []
        self.cancelled: list[Path | None] = []
        self.release = Event()
        self.release.set()
        self._alone = Lock()

    def __call__(
        self, model: ModelChoice, progress: Callable[[float], bool], _planned: object
    ) -> Engine:
        assert not self._alone.locked(), "two models at once"
        with self._alone:
            self.loads.append(model.model)
            if model.model in self.slow:
                while progress(0.5):
                    time.sleep(0.005)
                self.cancelled.append(model.model)
                self.release.wait(PATIENCE_S)
                raise SpecfitError("loading was cancelled")
            if model.model in self.broken:
                raise SpecfitError(f"{model.model} is broken")
            return self.engine


@pytest.fixture
def loader(bundled_engine, monkeypatch) -> Iterator[Loader]:
    bundled_engine.forget()
    monkeypatch.setattr(bundled_engine, "close", lambda: None)
    found = Loader(bundled_engine)
    yield found
    found.release.set()


def is_open(app) -> bool:
    return not app.is_loading and len(app.query(Note)) > 0


def told(app) -> list[str]:
    return [notice.message for notice in app._notifications]


async def test_loading_shows_progress_and_typing_is_kept(loader):
    loader.slow = {BUNDLED}
    app = app_of(loader)
    async with app.run_test() as pilot:
        bar = app.loading_view.query_one(ProgressBar)
        await until(pilot, lambda: bar.progress == 0.5)
        assert str(app.loading_view.query_one("#keys", Static).render()) == "Esc cancels"
        await press(pilot, *"early")
        assert app.query_one(Composer).text == "early"


async def test_leaving_cancels_loading(loader):
    loader.slow = {BUNDLED}
    app = app_of(loader)
    async with app.run_test() as pilot:
        await until(pilot, lambda: loader.loads)
        await app.action_quit()
    await asyncio.to_thread(app._load_job.done.wait, PATIENCE_S)
    assert loader.cancelled == [BUNDLED]


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_the_first_load_can_be_cancelled_and_another_model_picked(loader, key):
    loader.slow = {BUNDLED}
    loader.release.clear()
    app = app_of(loader, max_tokens=3)
    async with app.run_test() as pilot:
        await until(pilot, lambda: loader.loads)
        await press(pilot, *"hello", key)
        await until(pilot, lambda: is_open(app))  # at once, though the load has not ended yet
        assert not app.loading_view.display
        assert text_of(pilot, Note) == "No model is loaded; F2 or /model chooses one."
        await press(pilot, "enter")
        await until(pilot, lambda: app.composer.text == "hello")
        assert told(app)[-1] == text_of(pilot, Note)
        await press(pilot, "f2")
        await until(pilot, lambda: isinstance(app.screen, ModelPicker))
        details = app.screen.query_one("#details", Static)
        await until(pilot, lambda: "specfit-tiny" in str(details.render()))
        assert "loaded now" not in str(details.render())
        app.screen.dismiss(Choice(OTHER, None))
        await until(pilot, lambda: app.is_loading)
        assert loader.loads == [BUNDLED]
        loader.release.set()
        await until(pilot, lambda: is_open(app) and app.engine is not None)
        assert loader.loads == [BUNDLED, OTHER]
        await press(pilot, "enter")
        await until(pilot, lambda: len(app.query(Answer)) == 1)
        await answered(pilot)


async def test_control_c_asks_before_leaving_once_nothing_is_to_be_cancelled_or_emptied(loader):
    loader.slow = {BUNDLED}
    app = app_of(loader)
    async with app.run_test() as pilot:
        await until(pilot, lambda: loader.loads)
        app.composer.insert("words")
        app.composer.select_all()
        await press(pilot, "ctrl+c")
        assert app.clipboard == "words"
        assert app.is_loading
        await press(pilot, "ctrl+c")
        await until(pilot, lambda: is_open(app))
        await press(pilot, "ctrl+c")
        assert app.composer.text == ""
        await press(pilot, "up", "ctrl+c")
        assert told(app) == ["Up brings it back."] * 2
        await press(pilot, "ctrl+c")
        assert not app._exit
        await press(pilot, "ctrl+c")
        assert app._exit


async def test_escape_closes_what_is_open_before_it_cancels(loader):
    loader.slow = {BUNDLED}
    app = app_of(loader)
    async with app.run_test() as pilot:
        await until(pilot, lambda: loader.loads)
        await press(pilot, "f1")
        await until(pilot, lambda: app.screen.is_modal)
        await press(pilot, "escape")
        await until(pilot, lambda: not app.screen.is_modal)
        assert app.is_loading
        assert not loader.cancelled


async def test_a_switch_that_is_cancelled_brings_the_model_before_back(loader):
    app = app_of(loader, max_tokens=4)
    async with app.run_test() as pilot:
        await until(pilot, lambda: is_open(app))
        await ask(pilot, "What is tea?")
        await answered(pilot)
        app._choose_model(Choice(SLOW, None))
        await until(pilot, lambda: SLOW in loader.loads)
        assert app.engine is None
        await press(pilot, "escape")
        await until(pilot, lambda: app.engine is not None and is_open(app))
        assert loader.loads == [BUNDLED, SLOW, BUNDLED]
        assert "the model before is loaded again" in told(app)[-1]
        assert app.wanted.model == BUNDLED
        assert len(app.query(Answer)) == 1


async def test_a_model_that_does_not_load_is_told_and_the_one_before_brought_back(loader):
    app = app_of(loader, max_tokens=4)
    async with app.run_test() as pilot:
        await until(pilot, lambda: is_open(app))
        await ask(pilot, "What is tea?")
        await answered(pilot)
        app._choose_model(Choice(BROKEN, None))
        await until(pilot, lambda: len(loader.loads) == 3 and is_open(app))
        assert loader.loads == [BUNDLED, BROKEN, BUNDLED]
        assert "/broken.gguf is broken" in told(app)
        await until(pilot, lambda: len(app.query(Answer)) == 1)


@pytest.mark.parametrize("cancelled", [True, False])
async def test_without_any_model_the_chat_stays_open(loader, cancelled):
    app = app_of(loader, max_tokens=4)
    async with app.run_test() as pilot:
        await until(pilot, lambda: is_open(app))
        await ask(pilot, "What is tea?")
        await answered(pilot)
        loader.slow, loader.broken = ({SLOW, BUNDLED}, set()) if cancelled else (set(), {BUNDLED})
        loader.broken.add(BROKEN)
        app._choose_model(Choice(SLOW if cancelled else BROKEN, None))
        if cancelled:
            await until(pilot, lambda: SLOW in loader.loads)
            await press(pilot, "escape")
            await until(pilot, lambda: loader.loads[-1] is BUNDLED)
            await press(pilot, "escape")
        await until(pilot, lambda: is_open(app))
        assert len(loader.loads) == 3
        assert text_of(pilot, Note).startswith("No model is loaded")
        assert len(app.query(Answer)) == 1
        await press(pilot, "ctrl+r")
        await until(pilot, lambda: told(app)[-1].startswith("No model is loaded"))
        await press(pilot, "ctrl+t", "f4", "ctrl+n", "f3")
        await until(pilot, lambda: app.screen.is_modal and app.focused is not None)
        await press(pilot, "escape")
        await until(pilot, lambda: not app.screen.is_modal and not app.query(Answer))
        app._choose_model(Choice(BROKEN, None))
        await until(pilot, lambda: "/broken.gguf is broken" in told(app) and is_open(app))
        app._choose_model(Choice(OTHER, None))
        await until(pilot, lambda: app.engine is not None and is_open(app))
        assert app.load_error is None


async def test_a_first_model_that_does_not_load_ends_the_chat_with_the_reason(loader):
    loader.broken = {BUNDLED}
    app = app_of(loader)
    async with app.run_test() as pilot:
        await until(pilot, lambda: app._exit)
    assert str(app.load_error) == "None is broken"


def test_an_engine_that_came_after_all_is_closed():
    closed = []

    class Late:
        def close(self) -> None:
            closed.append(self)

    def load(*_):
        job.cancel()
        return Late()

    job = LoadJob(load)
    job.run()
    assert job.done.is_set()
    assert job.engine is None
    assert len(closed) == 1


def test_what_a_cancelled_load_had_loaded_is_freed():
    kept = []

    def load(progress, _planned):
        job.cancel()
        try:
            return Engine.load(LoadOptions(ctx=256, threads=1), progress)
        except SpecfitError as error:
            kept.append(error)
            raise

    job = LoadJob(load)
    job.run()
    assert job.engine is None
    assert "cancelled" in str(job.error)
    assert kept[0].__traceback__ is None  # its frames hold the weights


def test_a_load_that_is_cancelled_before_it_begins_does_not_begin():
    job = LoadJob(lambda *_: pytest.fail("it begins"))
    job.cancel()
    job.run()
    assert job.done.is_set()
