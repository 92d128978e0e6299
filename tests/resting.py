"""When a chat in a test has nothing under way."""

from __future__ import annotations

import asyncio
import time

from textual.pilot import Pilot

PATIENCE_S = 20.0


async def rested(pilot: Pilot[None]) -> None:
    """Waits until every key has gone to its widget and back, unless the chat was left.

    Textual's harness takes the screens away beside what is under way, which the chat itself never
    does.
    """
    app, deadline = pilot.app, time.monotonic() + PATIENCE_S
    while app.is_running and not app._exit and (app._pressed or app._marked is not None):
        assert time.monotonic() < deadline, "a key does not arrive"
        await asyncio.sleep(0.01)
    for _ in range(3):
        if app.is_running and not app._exit:
            await pilot.pause()
