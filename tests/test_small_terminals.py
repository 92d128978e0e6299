"""Terminals with little room: the chat is written to and read, dialogs are gone through."""

from __future__ import annotations

import pytest
from screencases import given, press, seen, showing, until
from test_chat_tui import answered, ask, chat
from test_chat_tui import press as press_in_chat
from test_pickers import looked, machine  # noqa: F401 -- a fixture
from test_screens import Found, Line
from textual.widget import Widget
from textual.widgets import Input, OptionList, Select

from specfit.app.keys import KEYS
from specfit.app.parameters import Parameters
from specfit.app.widgets.answer import Answer
from specfit.app.widgets.composer import Composer
from specfit.app.widgets.conversation import Conversation
from specfit.app.widgets.conversations_screen import ConversationsScreen
from specfit.app.widgets.head_list import HeadList
from specfit.app.widgets.help_screen import HelpScreen
from specfit.app.widgets.model_picker import ModelPicker
from specfit.app.widgets.model_table import ModelTable
from specfit.app.widgets.panel import Panel
from specfit.app.widgets.parameter_panel import ParameterPanel
from specfit.app.widgets.search_screen import SearchScreen
from specfit.app.widgets.system_prompt_screen import SystemPromptScreen

SIZES = pytest.mark.parametrize("size", [(20, 5), (30, 8), (40, 10)])
TWO_SIZES = pytest.mark.parametrize("size", [(20, 5), (40, 10)])
TINY = (20, 5)
WIDEST_LETTERS = 8


def is_seen(widget: Widget, columns: int = 6) -> bool:
    """Whether a row of it is on the screen, so many columns wide."""
    seen = widget.screen.find_widget(widget).visible_region
    return seen.height >= 1 and seen.width >= columns


@SIZES
async def test_the_chat_is_written_to_and_read(bundled_engine, size):
    async with chat(bundled_engine, max_tokens=12, size=size) as pilot:
        await ask(pilot, "Tea? 🍵")
        await answered(pilot)
        composer, conversation = (pilot.app.query_one(kind) for kind in (Composer, Conversation))
        last_word = pilot.app.query_one(Answer).text.split()[-1]
        await seen(pilot, last_word)
        composer.insert("many words " * 40 + "end")
        await seen(pilot, "end", last_word[:WIDEST_LETTERS])
        assert composer.content_size.height >= 1
        assert conversation.region.height >= 2


@TWO_SIZES
async def test_the_panel_takes_the_place_of_the_conversation(bundled_engine, size):
    async with chat(bundled_engine, spec="chain:3", max_tokens=12, size=size) as pilot:
        await ask(pilot, "Tea?")
        await answered(pilot)
        await press_in_chat(pilot, "ctrl+t")
        panel = pilot.app.query_one(Panel)
        await until(lambda: "3 drafts:" in str(panel.query_one("#why").render()))
        assert panel.region.width == size[0]
        assert is_seen(pilot.app.query_one(Composer))
        for _ in range(40):  # it is being laid out meanwhile
            await press_in_chat(pilot, "pagedown")
            if is_seen(panel.meters):
                break
        assert is_seen(panel.meters)
        await press_in_chat(pilot, "ctrl+t")
        last_word = pilot.app.query_one(Answer).text.split()[-1]
        await seen(pilot, last_word)


@TWO_SIZES
async def test_every_parameter_is_reached_and_what_is_wrong_is_told(size):
    screen = ParameterPanel(Parameters())
    async with showing(screen, size) as pilot:
        fields = [field for field in screen.focus_chain if isinstance(field, Input | Select)]
        fields[0].focus()
        for field in fields:
            await until(lambda field=field: screen.focused is field and is_seen(field))
            pilot.app.simulate_key("tab")
        await until(lambda: screen.focused is fields[0])
        screen.query_one("#top_p").focus()
        await press(pilot, "9")
        await seen(pilot, "Top-p: ")
        assert is_seen(screen.query_one("#help"))
        assert screen.query_one("#help").has_class("-error")
        await press(pilot, "escape")
        assert await given(pilot) is None


@TWO_SIZES
async def test_a_system_prompt_is_written(size, tmp_path):
    screen = SystemPromptScreen("Be brief.", tmp_path / "prompts.json")
    async with showing(screen, size) as pilot:
        for field in screen.focus_chain:
            field.focus()
            await until(lambda field=field: is_seen(field))
        await seen(pilot, "Be brief.")
        await press(pilot, "escape")
        assert await given(pilot) is None


@TWO_SIZES
async def test_models_and_heads_are_chosen_from(machine, size):  # noqa: F811
    async with showing(ModelPicker(), size) as pilot:
        await looked(pilot)
        await seen(pilot, "✓ tiny")  # it fits
        await press(pilot, "down")
        await looked(pilot)
        await seen(pilot, "✗ Qwen3-30B")
        assert is_seen(pilot.app.screen.query_one(ModelTable))
        heads = pilot.app.screen.query_one(HeadList)
        assert is_seen(heads)
        heads.focus()
        await press(pilot, "down", "down", "escape")
        assert await given(pilot) is None


async def test_conversations_are_chosen_from_and_deleting_asks():
    lines = [Line(n, f"Title {n}") for n in range(9)]
    screen = ConversationsScreen(lambda: lines, lambda _: None)
    async with showing(screen, TINY) as pilot:
        await seen(pilot, "Title 0")
        await press(pilot, *["down"] * 8)
        await seen(pilot, "Title 8")
        await press(pilot, "ctrl+d")
        await seen(pilot, "Enter deletes")
        await press(pilot, "escape", "escape")
        assert await given(pilot) is None


async def test_what_is_found_is_read():
    hits = [Found(n, n, f"Title {n}", "user", "blue sky", (0, 4)) for n in range(9)]
    screen = SearchScreen(lambda _: hits, words="blue")
    async with showing(screen, TINY) as pilot:
        await seen(pilot, "Title 0")
        await press(pilot, *["down"] * 8)
        await seen(pilot, "blue sky")
        assert is_seen(screen.query_one(OptionList))
        await press(pilot, "enter")
        assert (await given(pilot)).message == 8


async def test_help_is_read_to_its_end():
    async with showing(HelpScreen(KEYS), TINY) as pilot:
        await seen(pilot, "Enter")
        await press(pilot, "end")
        await seen(pilot, "messages")
        await press(pilot, "escape")
        assert await given(pilot) is None
