"""The screen follows an answer only as often as leaves the machine to the model."""

from __future__ import annotations

import time

import numpy as np
from flowcases import Scripted, press, scripted
from screencases import until

from specfit.app.pace import PATIENCE_S, SHARE, Pace
from specfit.app.widgets.answer import Answer
from specfit.app.widgets.status_line import StatusLine


def test_updates_take_no_more_than_their_share_of_the_time():
    now = used = 0.0
    pace = Pace(lambda: now, lambda: used)
    drawn = 0
    for tick in range(1000):
        now = max(now, tick * 0.04)
        if pace.allows():
            drawn += 1
            used += 0.03
            now += 0.03
    assert used / now <= SHARE
    assert 0.9 < drawn / (SHARE * now / 0.03) <= 1


def test_quick_updates_are_all_let_through():
    now = used = 0.0
    pace = Pace(lambda: now, lambda: used)
    for tick in range(100):
        now = tick * 0.04
        assert pace.allows()
        used += 0.004


def test_nobody_waits_for_long():
    now = used = 0.0
    pace = Pace(lambda: now, lambda: used)
    assert pace.allows()
    now = used = 0.2
    assert not pace.allows()
    now += PATIENCE_S
    assert pace.allows()


async def test_an_answer_that_is_slow_to_draw_is_drawn_less_often(monkeypatch):
    drawn = []

    async def slow(_answer: Answer, _text: str) -> None:
        drawn.append(time.monotonic())
        begun = time.thread_time()
        while time.thread_time() - begun < 0.03:
            pass

    monkeypatch.setattr(Answer, "append", slow)
    async with scripted(Scripted("word " * 2000, per_s=100)) as pilot:
        pilot.app.composer.insert("Go on.")
        await press(pilot, "enter")
        await until(lambda: len(drawn) == 8)
        await press(pilot, "escape")
    assert np.median(np.diff(drawn)) > 0.1


async def test_the_status_line_lays_nothing_out_anew(monkeypatch):
    async with scripted(Scripted("Hot leaves.")) as pilot:
        line, asked = pilot.app.query_one(StatusLine), []
        refresh = line.refresh
        monkeypatch.setattr(
            line, "refresh", lambda **named: asked.append(named) or refresh(**named)
        )
        line.clear("one")
        line.clear("one")
        line.clear("two")
        assert [one.get("layout") for one in asked] == [False, False]
