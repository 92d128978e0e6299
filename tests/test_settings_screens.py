"""The screens for parameters and system prompts, driven by Textual's pilot."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from screencases import (
    NOT_CLOSED,
    SMALL,
    TINY,
    WIDE,
    given,
    notices,
    press,
    screen_text,
    seen,
    showing,
    write,
)
from textual import events
from textual.pilot import Pilot
from textual.widgets import Button, Input, OptionList, Select, TextArea

from specfit.app.parameters import Parameters
from specfit.app.system_prompts import read_prompts, save_prompt
from specfit.app.widgets.parameter_panel import ParameterPanel
from specfit.app.widgets.system_prompt_screen import SystemPromptScreen

# The parameter panel

# A Sampling's fields: the engine itself takes seconds to import.
RECOMMENDED = SimpleNamespace(temp=0.6, top_k=20, top_p=0.95, min_p=0.0)


def value_of(pilot: Pilot[None], name: str) -> str:
    return pilot.app.screen.query_one(f"#{name}", Input).value


@pytest.mark.parametrize("size", [WIDE, SMALL])
async def test_the_panel_shows_values_and_what_empty_fields_mean(size):
    panel = ParameterPanel(Parameters(top_k=7, thinking=False), RECOMMENDED)
    async with showing(panel, size) as pilot:
        await seen(pilot, "0.6 (the model's own)", "own values")
        await seen(pilot, "Thinking", "Speculation", "Seed", "How daring", "Apply", "Cancel")
        assert (value_of(pilot, "top_k"), value_of(pilot, "temp")) == ("7", "")
        assert all(field.tooltip for field in pilot.app.screen.query(Input))
        assert all(field.tooltip for field in pilot.app.screen.query(Select))


async def test_enter_applies_what_the_fields_say():
    async with showing(ParameterPanel(Parameters(seed=3, spec="off"), RECOMMENDED)) as pilot:
        await write(pilot, "0.25")
        await press(pilot, "down")
        await write(pilot, "40")
        await press(pilot, "enter")
        expected = Parameters(temp=0.25, top_k=40, seed=3, spec="off")
        assert await given(pilot) == expected


async def test_nothing_changed_gives_the_same_values():
    values = Parameters(temp=1 / 3, top_k=1, seed=9, max_tokens=5, thinking=True, spec="chain:2")
    async with showing(ParameterPanel(values)) as pilot:
        await press(pilot, "enter")
        assert await given(pilot) == values


async def test_a_wrong_value_is_told_at_once_and_not_applied():
    async with showing(ParameterPanel(Parameters(), RECOMMENDED)) as pilot:
        await write(pilot, "hot")
        await seen(pilot, "Temperature: 'hot' will not do: give a number")
        await press(pilot, "down")
        await write(pilot, "5")
        await press(pilot, "enter")
        await pilot.pause(0.02)
        assert pilot.app.result is NOT_CLOSED
        assert pilot.app.focused.id == "temp"
        await press(pilot, "escape")
        assert await given(pilot) is None


async def test_a_preset_fills_the_fields_and_leaves_the_rest():
    async with showing(ParameterPanel(Parameters(seed=4), RECOMMENDED)) as pilot:
        await press(pilot, "shift+tab", "enter")
        await press(pilot, "down", "down", "enter")
        await pilot.pause(0.02)
        assert [value_of(pilot, name) for name in ("temp", "top_p", "top_k", "min_p")] == [
            *("0.7", "0.8", "20", "0")
        ]
        await press(pilot, "tab", "enter")
        assert await given(pilot) == Parameters(0.7, 20, 0.8, 0.0, seed=4, thinking=False)


async def test_a_changed_preset_is_the_users_own():
    async with showing(ParameterPanel(Parameters(), RECOMMENDED)) as pilot:
        preset = pilot.app.screen.query_one("#preset", Select)
        assert preset.value == "The model's own"
        await press(pilot, "0")
        await pilot.pause(0.02)
        assert preset.value == "Greedy"
        await press(pilot, ".", "1")
        await pilot.pause(0.02)
        assert preset.value is Select.NULL


async def test_a_pasted_escape_sequence_is_only_shown():
    async with showing(ParameterPanel(Parameters())) as pilot:
        pilot.app.focused.post_message(events.Paste("\x1b[2Jx\nsecond line"))
        await pilot.pause(0.02)
        assert value_of(pilot, "temp") == "␛[2Jx"
        assert "\x1b" not in await seen(pilot, "␛[2Jx")


async def test_the_panel_bears_a_tiny_terminal():
    async with showing(ParameterPanel(Parameters())) as pilot:
        await pilot.resize_terminal(*TINY)
        await press(pilot, *["down"] * 12, "1", "escape")
        assert await given(pilot) is None


# System prompts


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "prompts.json"
    save_prompt(path, "Brief", "Be brief.")
    save_prompt(path, "日本", "日本語で答えて 😀")
    return path


@pytest.mark.parametrize("size", [WIDE, SMALL])
async def test_a_saved_prompt_is_used(prompts, size):
    async with showing(SystemPromptScreen("", prompts), size) as pilot:
        await seen(pilot, "日本")
        await press(pilot, "down", "down")
        await seen(pilot, "日本語で答えて")
        await press(pilot, "enter")
        assert await given(pilot) == "日本語で答えて 😀"


async def test_the_conversations_prompt_is_where_the_cursor_begins(prompts):
    async with showing(SystemPromptScreen("Be brief.", prompts)) as pilot:
        assert pilot.app.screen.query_one(OptionList).highlighted == 1
        await press(pilot, "escape")
        assert await given(pilot) is None


async def test_a_prompt_is_written_saved_and_changed(prompts):
    async with showing(SystemPromptScreen("Mine.", prompts)) as pilot:
        await press(pilot, "tab")
        await write(pilot, "New")
        await press(pilot, "ctrl+s")
        await pilot.pause(0.02)
        assert read_prompts(prompts)["New"] == "Mine."
        pilot.app.screen.query_one(TextArea).text = "Other."
        await pilot.pause(0.02)
        await press(pilot, "ctrl+s")
        await pilot.pause(0.02)
        assert read_prompts(prompts)["New"] == "Other."
        await press(pilot, "escape")
        assert await given(pilot) is None


async def test_an_emptied_prompt_means_none(prompts):
    async with showing(SystemPromptScreen("Mine.", prompts)) as pilot:
        pilot.app.screen.query_one(TextArea).text = "  "
        await pilot.pause(0.02)
        pilot.app.screen.query_one("#use", Button).press()
        assert await given(pilot) == ""


async def test_deleting_needs_a_second_word(prompts):
    async with showing(SystemPromptScreen("", prompts)) as pilot:
        await press(pilot, "down", "delete")
        await pilot.pause(0.02)
        assert "Brief" in read_prompts(prompts)
        await press(pilot, "delete")
        await pilot.pause(0.02)
        assert list(read_prompts(prompts)) == ["日本"]
        assert "Brief" not in str(pilot.app.screen.query_one(OptionList).options[1].prompt)


async def test_unsaved_text_stays_while_looking_at_others_and_is_asked_about(prompts):
    async with showing(SystemPromptScreen("", prompts)) as pilot:
        await press(pilot, "down")
        pilot.app.screen.query_one(TextArea).text = "Half"
        await pilot.pause(0.02)
        await press(pilot, "down", "up")
        await pilot.pause(0.02)
        assert pilot.app.screen.query_one(TextArea).text == "Half"
        await press(pilot, "escape")
        await pilot.pause(0.02)
        assert pilot.app.result is NOT_CLOSED
        await press(pilot, "escape")
        assert await given(pilot) is None
        assert read_prompts(prompts)["Brief"] == "Be brief."


async def test_a_damaged_file_of_prompts_is_told(tmp_path):
    (tmp_path / "prompts.json").write_text("{")
    async with showing(SystemPromptScreen("Mine.", tmp_path / "prompts.json")) as pilot:
        assert "not valid JSON" in notices(pilot)[-1]
        await press(pilot, "enter")
        assert await given(pilot) == "Mine."


async def test_escape_sequences_in_prompts_are_only_shown(tmp_path):
    save_prompt(tmp_path / "p.json", "\x1b[31mred", "x")
    (tmp_path / "q.json").write_text('{"\\u001b[2J": "\\u001b]0;t\\u0007"}')
    for name in ("p.json", "q.json"):
        async with showing(SystemPromptScreen("\x1b[1m", tmp_path / name)) as pilot:
            await press(pilot, "down")
            await pilot.pause(0.02)
            assert not {"\x1b", "\x07"} & set(screen_text(pilot))


async def test_the_prompts_bear_a_tiny_terminal(prompts):
    async with showing(SystemPromptScreen("", prompts)) as pilot:
        await pilot.resize_terminal(*TINY)
        await press(pilot, "down", "tab", "a", "tab", "b", "escape", "escape")
        assert await given(pilot) is None
