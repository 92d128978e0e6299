"""Ctrl+C in the chat and in what is open over it."""

from __future__ import annotations

import pytest
from flowcases import Scripted, notices, press, scripted
from screencases import seen, until
from textual.widgets import Input, TextArea

from specfit.app import chat_leaving
from specfit.app.widgets.system_prompt_screen import SystemPromptScreen


async def write_prompt(pilot, text: str) -> None:
    app = pilot.app
    await until(lambda: isinstance(app.screen, SystemPromptScreen) and app.focused is not None)
    await pilot.pause()  # whatever else the screen puts the focus on as it opens
    app.screen.query_one(TextArea).focus()
    await until(lambda: isinstance(app.focused, TextArea))
    await press(pilot, *text)
    await until(lambda: app.screen.query_one(TextArea).text.endswith(text))


@pytest.mark.parametrize("key", ["f1", "f2", "f3", "f5", "ctrl+o", "ctrl+f", "ctrl+p"])
async def test_control_c_closes_what_is_open_and_leaves_what_is_behind_alone(key, store):
    async with scripted(Scripted("Yes."), store=store) as pilot:
        app = pilot.app
        app.composer.insert("unsent words")
        app.composer.select_all()
        await press(pilot, key)
        await until(lambda: app.screen.is_modal)
        await press(pilot, "ctrl+c")
        await until(lambda: not app.screen.is_modal)
        assert app.composer.text == app.composer.selected_text == "unsent words"
        assert app.clipboard == "" and not app._exit and notices(pilot) == []


async def test_control_c_in_the_choice_of_colours_closes_it():
    async with scripted(Scripted("Yes.")) as pilot:
        pilot.app.search_themes()
        await until(lambda: pilot.app.screen.is_modal)
        await press(pilot, "ctrl+c")
        await until(lambda: not pilot.app.screen.is_modal)


async def test_control_c_copies_what_is_selected_in_a_field_and_then_closes(store):
    async with scripted(Scripted("Yes."), store=store) as pilot:
        app = pilot.app
        await press(pilot, "ctrl+f")
        await until(lambda: isinstance(app.focused, Input))
        await press(pilot, *"leaves")
        await until(lambda: app.focused.value == "leaves")
        app.focused.action_select_all()
        await press(pilot, "ctrl+c")
        await until(lambda: app.clipboard == "leaves")
        assert app.screen.is_modal
        await press(pilot, "ctrl+c")
        await until(lambda: not app.screen.is_modal)


async def test_a_system_prompt_that_is_not_saved_is_lost_neither_by_escape_nor_by_control_c():
    async with scripted(Scripted("Yes.")) as pilot:
        app = pilot.app
        await press(pilot, "f5")
        await write_prompt(pilot, "Brief!")
        await press(pilot, "ctrl+c")
        await until(lambda: notices(pilot) == ["Something is not saved; once more leaves."])
        assert app.screen.query_one(TextArea).text == "Brief!"
        await press(pilot, "ctrl+c")
        await until(lambda: not app.screen.is_modal)
        assert not app._exit


@pytest.mark.parametrize("size", [(80, 24), (40, 5)])
async def test_the_first_control_c_says_in_the_input_that_the_second_leaves(size):
    async with scripted(Scripted("Yes."), size) as pilot:
        app = pilot.app
        await press(pilot, "ctrl+c")
        await seen(pilot, "Press Ctrl+C again to leave")
        assert notices(pilot) == []
        await press(pilot, "a")
        assert app.composer.text == "a"
        await press(pilot, "ctrl+c", "ctrl+c")
        assert not app._exit  # the one before emptied the input
        await press(pilot, "ctrl+c")
        assert app._exit


async def test_the_hint_goes_when_the_time_is_over(monkeypatch):
    monkeypatch.setattr(chat_leaving, "LEAVE_WITHIN_S", 0.1)
    async with scripted(Scripted("Yes.")) as pilot:
        await press(pilot, "ctrl+c")
        await seen(pilot, "Write a message")
        await press(pilot, "ctrl+c")
        assert not pilot.app._exit
