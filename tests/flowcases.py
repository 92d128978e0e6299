"""A chat over an engine that says what it is told to say, for the tests of whole flows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from resting import rested
from screencases import until
from textual import events
from textual.pilot import Pilot

from specfit.app.chat_setup import Setup
from specfit.app.options import ModelChoice
from specfit.app.parameters import Parameters
from specfit.app.session import Session
from specfit.app.settings import read_settings
from specfit.app.store import Store
from specfit.app.tui import ChatApp
from specfit.app.widgets.answer import Answer
from specfit.app.widgets.note import Note
from specfit.backend import CycleMeans, Report, Sampling, SpecfitError
from specfit.backend.view import CycleView

REST_S = 0.02  # what keys led to reaches the screen
Messages = Sequence[dict[str, str]]
Load = Callable[..., Any]


@dataclass(frozen=True)
class Asked:
    """What an answer was asked for with."""

    messages: tuple[dict[str, str], ...]
    sampling: Sampling
    thinking: bool | None


class Said:
    """A generation of a given text, in pieces of some characters, `per_s` of them a second."""

    def __init__(self, text: str, opens_thinking: bool, per_s: float) -> None:
        self._pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
        self._pause = 1 / per_s if per_s else 0.0
        self._given: list[str] = []
        self._reason = ""
        self.opens_thinking = opens_thinking
        self.watch: Callable[[CycleView], None] | None = None
        self.drafted_spans = [(0, 4)]

    @property
    def report(self) -> Report:
        n = len(self._given)
        means = CycleMeans(2.1, 3.1, 14.2, measured_cycle_ms=24, verify_ms=20, plan_ms=1)
        return Report("".join(self._given), self._reason, 20, n, 100.0, 1.0, n, 2 * n, n, means)

    def stop(self) -> None:
        self._reason = "stopped"

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            if self._reason:
                return
            time.sleep(self._pause)
            self._given.append(piece)
            yield piece
        self._reason = "stop"


class Scripted:
    """An engine that gives `answers` in turn, the last one again and again.

    A token is a word. loads: the models that were loaded, the first included.
    """

    drafts, notices, description = True, (), "Scripted, 2 layers"
    recommended_sampling = Sampling(temp=0.6)

    def __init__(self, *answers: str, ctx: int = 1000, opens: bool = False, per_s: float = 0):
        self._answers = list(answers)
        self._opens, self._per_s = opens, per_s
        self.ctx = ctx
        self.asked: list[Asked] = []
        self.loads: list[ModelChoice] = []
        self.model = SimpleNamespace(
            knows_thinking=True,
            tokenize=lambda text, **_: text.split(),
            info=SimpleNamespace(context_length=4 * ctx),
        )

    def load(self, model: ModelChoice, *_: object) -> Scripted:
        self.loads.append(model)
        return self

    def count_tokens(self, messages: Messages) -> int:
        return sum(len(message["content"].split()) for message in messages)

    def generate(
        self, messages: Messages, *, sampling: Sampling, thinking: bool | None, **_: object
    ) -> Said:
        if self.count_tokens(messages) >= self.ctx:
            raise SpecfitError("too long")
        self.asked.append(Asked(tuple(messages), sampling, thinking))
        text = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return Said(text, self._opens, self._per_s)

    def trouble(self) -> None: ...

    def close(self) -> None: ...


@asynccontextmanager
async def scripted(
    engine: Scripted,
    size: tuple[int, int] = (80, 24),
    *,
    store: Store | None = None,
    settings: Path = Path("/nowhere/config.toml"),
    ctx_size: int | None = None,
) -> AsyncIterator[Pilot[None]]:
    """The chat, its model loaded."""
    setup = setup_of(engine.load, Session(store), settings=settings, ctx_size=ctx_size)
    async with opened(setup, size) as pilot:
        yield pilot


def setup_of(
    load: Load,
    session: Session,
    *,
    settings: Path = Path("/nowhere/config.toml"),
    ctx_size: int | None = None,
) -> Setup:
    model = ModelChoice(None, None, None, False, None, ctx_size, 1, None)
    return Setup(model, Parameters(), read_settings(settings), session, load=load)


@asynccontextmanager
async def opened(
    setup: Setup, size: tuple[int, int] = (80, 24), *, toasts: bool = False
) -> AsyncIterator[Pilot[None]]:
    app = ChatApp(setup)
    app.animation_level = "none"
    async with app.run_test(size=size, notifications=toasts) as pilot:
        await until(lambda: app.engine is not None and len(app.query(Note)) > 0)
        yield pilot
        await rested(pilot)


async def say(pilot: Pilot[None], text: str) -> None:
    """Sends a message and waits until it is answered, or a command."""
    app = pilot.app
    before = app.session.path

    def is_answered() -> bool:
        path = app.session.path
        return path != before and path[-1].role == "assistant" and app.exchange is None

    app.post_message(events.Paste(text))  # in its order among the keys
    if text.startswith("/"):
        await press(pilot, "escape", "enter")
        await until(lambda: app.composer.sent._messages[-1:] == [text])
    else:
        await press(pilot, "enter")
        await until(is_answered)
    await asyncio.sleep(REST_S)


async def press(pilot: Pilot[None], *keys: str) -> None:
    for key in keys:
        pilot.app.simulate_key(key)
    await asyncio.sleep(REST_S)


def answers(pilot: Pilot[None]) -> list[str]:
    return [answer.text for answer in pilot.app.query(Answer)]


def notices(pilot: Pilot[None]) -> list[str]:
    return [notice.message for notice in pilot.app._notifications]
