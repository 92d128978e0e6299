"""What is said to a model that is still loading, and what is seen meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event

import pytest
from flowcases import Scripted, answers, notices, press, setup_of
from resting import rested
from screencases import screen_text, seen, until
from storecases import talk
from textual.pilot import Pilot

from specfit.app.chat_setup import set_up
from specfit.app.parameters import Parameters
from specfit.app.session import Session
from specfit.app.settings import read_settings
from specfit.app.store import Store
from specfit.app.tui import ChatApp
from specfit.app.widgets.model_picker import Choice
from specfit.app.widgets.note import Note
from specfit.backend import SpecfitError
from specfit.backend.plan import Gpu, Machine, Part, Placement, Plan

GIB = 1 << 30
PLAN = Plan(
    Placement(37, 30),
    Machine(64 * GIB, 64 * GIB, (Gpu("one", 8 * GIB),)),
    1,
    (
        Part("layers", GIB, 0, "37 of 37 on the GPU"),
        Part("experts", 4 * GIB, 12 * GIB, "of 12 of 36 layers on the GPU"),
    ),
    (5 * GIB,),
)
WAITS = "waits for the model"


class Slow:
    """Loads that end when they are told to, with `engine` or, once it is None, with an error."""

    def __init__(self, *answers: str) -> None:
        self.engine: Scripted | None = Scripted(*answers)
        self.go_on = Event()
        self.loads: list[Path | None] = []

    def __call__(self, model, progress: Callable[[float], bool], planned) -> Scripted:
        self.loads.append(model.model)
        planned(PLAN)
        while not self.go_on.wait(0.005):
            if not progress(0.5):
                raise SpecfitError("loading was cancelled")
        if self.engine is None or model.model == Path("/broken.gguf"):
            raise SpecfitError("it is broken")
        return self.engine


@asynccontextmanager
async def loading(
    slow: Slow, store: Store | None = None, conversation: int | None = None
) -> AsyncIterator[Pilot[None]]:
    """The chat while its model loads."""
    session = Session(store)
    if conversation is not None:
        session.open(conversation)
    app = ChatApp(setup_of(slow, session))
    app.animation_level = "none"
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: slow.loads)
        yield pilot
        await rested(pilot)


async def send(pilot: Pilot[None], text: str) -> None:
    pilot.app.composer.insert(text)
    await press(pilot, "enter")


async def test_a_message_waits_for_the_model_and_is_kept_at_once(store):
    slow = Slow("A drink.")
    async with loading(slow, store) as pilot:
        await send(pilot, "What is tea?")
        await seen(pilot, WAITS)
        await seen(pilot, "Esc takes the message back")
        (kept,) = store.conversations()
        assert [one.content for one in store.messages(kept.id)] == ["What is tea?"]
        slow.go_on.set()
        await until(lambda: answers(pilot) == ["A drink."] and pilot.app.exchange is None)
        await until(lambda: WAITS not in screen_text(pilot))
        assert [one.content for one in store.messages(kept.id)] == ["What is tea?", "A drink."]


async def test_escape_takes_it_back_and_only_then_cancels(store):
    slow = Slow("A drink.")
    async with loading(slow, store) as pilot:
        app = pilot.app
        await send(pilot, "What is tea?")
        await until(lambda: app.queued is not None)
        await press(pilot, *"mm", "escape")
        await until(lambda: app.queued is None)
        assert app.composer.text == "What is tea?\nmm"
        assert not app.session.path
        assert store.conversations() == []
        assert app.is_loading and not app._load_job.cancelled
        await press(pilot, "escape")
        await until(lambda: not app.is_loading)
        assert app.composer.text == "What is tea?\nmm"


async def test_one_message_waits_and_the_next_stays_in_the_input(store):
    slow = Slow("A drink.")
    async with loading(slow, store) as pilot:
        await send(pilot, "What is tea?")
        await send(pilot, "Why?")
        await until(lambda: notices(pilot) == ["A message waits already; Esc takes it back."])
        await until(lambda: pilot.app.composer.text == "Why?")
        slow.go_on.set()
        await until(lambda: answers(pilot) == ["A drink."])
        assert pilot.app.composer.text == "Why?"


async def test_an_edited_message_that_is_taken_back_leaves_all_as_it_was(store):
    tea = talk(store, "What is tea?", "A drink.")
    async with loading(Slow(), store, tea) as pilot:
        app = pilot.app
        await seen(pilot, "A drink.")  # it is read meanwhile
        await press(pilot, "up", "!", "enter")
        await until(lambda: app.queued is not None and "A drink." not in screen_text(pilot))
        assert [one.content for one in app.session.path] == ["What is tea?!"]
        await press(pilot, "escape")
        await seen(pilot, "A drink.")
        assert app.composer.text == "What is tea?!"
        assert [one.content for one in store.messages(tea)] == ["What is tea?", "A drink."]


async def test_nothing_is_lost_where_the_first_model_does_not_load(store, path):
    slow = Slow()
    slow.engine = None
    async with loading(slow, store) as pilot:
        await send(pilot, "What is tea?")
        await until(lambda: pilot.app.queued is not None)
        slow.go_on.set()
        await until(lambda: pilot.app._exit)
    assert str(pilot.app.load_error) == "it is broken"
    again = Store(path)
    async with loading(Slow(), again) as pilot:
        await until(lambda: pilot.app.composer.text == "What is tea?")
        assert "Ctrl+C empties it" in notices(pilot)[0]
    again.close()


async def test_what_waits_for_a_model_that_does_not_load_is_not_sent_to_the_one_before(store):
    slow = Slow("A drink.")
    slow.go_on.set()
    async with loading(slow, store) as pilot:
        app = pilot.app
        await until(lambda: app.engine is not None)
        slow.go_on.clear()
        app._choose_model(Choice(Path("/broken.gguf"), None))
        await send(pilot, "What is tea?")
        await until(lambda: app.queued is not None)
        slow.go_on.set()
        await until(lambda: len(slow.loads) == 3 and not app.is_loading)
        assert app.composer.text == "What is tea?"
        assert not app.session.path


async def test_where_the_model_goes_is_told_while_it_loads_and_by_stats():
    slow = Slow("A drink.")
    there = "GPU 5.0 GiB: layers 37 of 37, experts of 12 of 36 · host memory 12.0 GiB"
    async with loading(slow) as pilot:
        await seen(pilot, there, "Loading the model: 50%", "Esc cancels")
        slow.go_on.set()
        await until(lambda: pilot.app.engine is not None)
        pilot.app.composer.insert("/stats")
        await press(pilot, "escape", "enter")
        await until(lambda: there in str(pilot.app.query(Note).last().render()))


@pytest.mark.parametrize("folder", ["/proc/nowhere", "file"])
async def test_a_store_that_cannot_be_opened_is_told_at_once(folder, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / folder))
    slow = Slow("A drink.")
    model = setup_of(slow, Session(None)).model
    setup = set_up(model, Parameters(), read_settings(tmp_path / "none.toml"), None, None)
    object.__setattr__(setup, "load", slow)
    app = ChatApp(setup)
    async with app.run_test(size=(80, 24)) as pilot:
        await seen(pilot, "What is said in this window is not kept: ")
        assert app.is_loading
        slow.go_on.set()
        await send(pilot, "What is tea?")
        await until(lambda: answers(pilot) == ["A drink."])
