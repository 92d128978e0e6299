"""A screen alone in an app, for the tests of those that ask something."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen

WIDE, SMALL, TINY = (120, 40), (80, 24), (20, 5)
PATIENCE_S = 20
GB = 10**9
NOT_CLOSED = object()


class Host(App[None]):
    """Shows one screen and keeps what it gives."""

    def __init__(self, screen: Screen[object]) -> None:
        super().__init__()
        self._shown = screen
        self.animation_level = "none"
        self.result: object = NOT_CLOSED

    def on_mount(self) -> None:
        self.push_screen(self._shown, self._keep)

    def _keep(self, result: object) -> None:
        self.result = result


@asynccontextmanager
async def showing(screen: Screen, size=SMALL) -> AsyncIterator[Pilot[None]]:
    async with Host(screen).run_test(size=size) as pilot:
        await pilot.pause(0.02)
        yield pilot


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Presses keys at once; the pilot's own way rests after each."""
    for key in keys:
        pilot.app.simulate_key(key)
    await pilot.pause(0.02)
    await pilot.pause(0.02)


async def write(pilot: Pilot[None], text: str) -> None:
    """Writes into the focused field."""
    pilot.app.focused.insert_text_at_cursor(text)
    await pilot.pause(0.02)


async def until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, "nothing happened"
        await asyncio.sleep(0.01)


async def given(pilot: Pilot[None]) -> object:
    """What the screen gives when it closes."""
    await until(lambda: pilot.app.result is not NOT_CLOSED)
    return pilot.app.result


async def seen(pilot: Pilot[None], *texts: str) -> str:
    """Waits until all of `texts` are on the screen, and gives what is on it then.

    What a widget was told reaches the screen with a refresh of its own, some time later on a
    busy machine, so no pause is long enough.
    """
    await until(lambda: all(text in screen_text(pilot) for text in texts))
    return screen_text(pilot)


def screen_text(pilot: Pilot[None]) -> str:
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def notices(pilot: Pilot[None]) -> list[str]:
    return [notice.message for notice in pilot.app._notifications]
