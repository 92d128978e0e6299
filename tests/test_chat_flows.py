"""What one does with conversations in the chat, through Textual's pilot and the real model."""

from __future__ import annotations

import asyncio
import json
import os

import pytest
from test_chat_tui import answered, ask, chat, mark_of, press, until
from textual.pilot import Pilot

from specfit.app.parameters import Parameters
from specfit.app.session import Session
from specfit.app.store import Store
from specfit.app.widgets.answer import Answer
from specfit.app.widgets.composer import Composer
from specfit.app.widgets.conversations_screen import ConversationsScreen
from specfit.app.widgets.help_screen import HelpScreen
from specfit.app.widgets.model_picker import ModelPicker
from specfit.app.widgets.note import Note
from specfit.app.widgets.panel import Panel
from specfit.app.widgets.parameter_panel import ParameterPanel
from specfit.app.widgets.search_screen import SearchScreen
from specfit.app.widgets.system_prompt_screen import SystemPromptScreen
from specfit.app.widgets.user_message import UserMessage


async def say(pilot: Pilot[None], command: str) -> None:
    pilot.app.query_one(Composer).insert(command)
    await press(pilot, "escape", "enter")  # the list of completions is in the way
    await asyncio.sleep(0.1)


def answers(pilot: Pilot[None]) -> list[Answer]:
    return list(pilot.app.query(Answer))


async def test_a_regenerated_answer_is_a_version_beside_the_first(bundled_engine):
    async with chat(bundled_engine, max_tokens=12) as pilot:
        await ask(pilot, "What is tea?")
        await answered(pilot)
        first = answers(pilot)[0].text
        pilot.app.parameters = Parameters(temp=3, min_p=0, seed=7, max_tokens=12)
        await press(pilot, "ctrl+r")
        # Not by its being on its way: a short answer may be there before one looks.
        await until(pilot, lambda: len(pilot.app.session.current.tree.messages) == 3)
        await answered(pilot)
        second = answers(pilot)[0].text
        assert second != first
        assert pilot.app.session.branch(answers(pilot)[0].message_id) == (2, 2)
        await press(pilot, "alt+left")
        await until(pilot, lambda: answers(pilot) and answers(pilot)[0].text == first)
        assert len(pilot.app.query(UserMessage)) == 1


async def test_an_edited_message_keeps_what_it_was(bundled_engine):
    async with chat(bundled_engine, max_tokens=6) as pilot:
        for question in ("What is tea?", "Why?"):
            await ask(pilot, question)
            await answered(pilot)
        await press(pilot, "up")
        composer = pilot.app.query_one(Composer)
        assert composer.text == "Why?"
        composer.text = "Where does it grow?"
        await press(pilot, "enter")
        await until(pilot, lambda: len(pilot.app.session.path) == 4 and len(answers(pilot)) == 2)
        await answered(pilot)
        shown = [message.text for message in pilot.app.query(UserMessage)]
        assert shown == ["What is tea?", "Where does it grow?"]
        tree = pilot.app.session.current.tree
        assert {m.content for m in tree.messages.values() if m.role == "user"} == {
            "What is tea?",
            "Why?",
            "Where does it grow?",
        }


async def test_what_was_said_is_there_in_the_next_window(bundled_engine, tmp_path):
    path = tmp_path / "specfit.db"
    async with chat(bundled_engine, max_tokens=6, store=Store(path)) as pilot:
        await ask(pilot, "What is tea?")
        await answered(pilot)
        text = answers(pilot)[0].text
    again = Store(path)
    async with chat(bundled_engine, max_tokens=6, store=again) as pilot:
        assert not answers(pilot)
        await press(pilot, "ctrl+o")
        await until(pilot, lambda: isinstance(pilot.app.screen, ConversationsScreen))
        await asyncio.sleep(0.3)
        await press(pilot, "enter")
        await until(pilot, lambda: len(answers(pilot)) == 1)
        assert answers(pilot)[0].text == text


async def test_leaving_in_the_middle_of_an_answer_keeps_it(bundled_engine, tmp_path):
    store = Store(tmp_path / "specfit.db")
    async with chat(bundled_engine, store=store) as pilot:
        await ask(pilot, "Write a long story about a fox.")
        await until(pilot, lambda: len(answers(pilot)[0].text) > 20)
        pilot.app.exit()
    store = Store(tmp_path / "specfit.db")
    kept = Session(store)
    kept.open(store.conversations()[0].id)
    assert kept.path[-1].status in ("stopped", "complete")
    assert len(kept.path[-1].content) > 20


async def test_commands_do_what_they_say(bundled_engine, tmp_path):
    async with chat(bundled_engine, max_tokens=6, store=Store(tmp_path / "a.db")) as pilot:
        await ask(pilot, "What is tea?")
        await answered(pilot)
        for command, screen in {
            "/help": HelpScreen,
            "/params": ParameterPanel,
            "/model": ModelPicker,
            "/system": SystemPromptScreen,
            "/search": SearchScreen,
            "/open": ConversationsScreen,
        }.items():
            await say(pilot, command)
            await until(pilot, lambda kind=screen: isinstance(pilot.app.screen, kind))
            await press(pilot, "escape")
            await until(pilot, lambda: not pilot.app.screen.is_modal)
        await say(pilot, "/panel")
        assert pilot.app.query_one(Panel).display
        await say(pilot, "/stats")
        assert "tok/s" in str(pilot.app.query(Note).last().render())
        await say(pilot, f"/export {tmp_path / 'tea.md'}")
        assert "What is tea?" in (tmp_path / "tea.md").read_text()
        await say(pilot, f"/export {tmp_path / 'tea.json'}")
        assert json.loads((tmp_path / "tea.json").read_text())["title"] == "What is tea?"
        await say(pilot, "/new")
        assert not answers(pilot)
        await say(pilot, f"/import {tmp_path / 'tea.json'}")
        await until(pilot, lambda: len(answers(pilot)) == 1)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("/exprt", "no command /exprt"),
        ("/new now", "takes nothing"),
        ("/import /nowhere.json", "/nowhere.json"),
        ("/export tea.txt", ".md or .json"),
        ("/branch 3", "no message has other versions"),
    ],
)
async def test_what_cannot_be_done_is_told_and_stays_in_the_input(bundled_engine, typed, told):
    async with chat(bundled_engine, max_tokens=3) as pilot:
        notified = []
        pilot.app.notify = lambda message, **_: notified.append(message)
        await say(pilot, typed)
        assert told in notified[0]
        assert pilot.app.query_one(Composer).text == typed
        assert not answers(pilot)


async def test_a_pipe_is_not_waited_for(bundled_engine, tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    async with chat(bundled_engine, max_tokens=3) as pilot:
        notified = []
        pilot.app.notify = lambda message, **_: notified.append(message)
        await say(pilot, f"/import {tmp_path / 'pipe.json'}")
        assert "not an ordinary file" in notified[0]


async def test_a_file_goes_with_the_message(bundled_engine, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("The tea is in the blue box.")
    async with chat(bundled_engine, max_tokens=3) as pilot:
        await ask(pilot, f"Where is the tea? @{notes} ")
        await answered(pilot)
        assert "blue box" in pilot.app.session.path[0].content
        shown = str(pilot.app.query_one(UserMessage).render())
        assert "blue box" not in shown and "notes.txt" in shown


async def test_drafted_text_can_be_marked(bundled_engine):
    async with chat(bundled_engine, spec="chain:3", max_tokens=24) as pilot:
        await ask(pilot, "What is tea?")
        await answered(pilot)
        answer = answers(pilot)[0]
        await press(pilot, "f4")
        marked = answer.query_one(".drafted")
        assert marked.display
        assert marked.render().spans
        await press(pilot, "f4")
        assert not marked.display


async def test_a_repeating_answer_is_stopped_and_says_so(bundled_engine, monkeypatch):
    monkeypatch.setattr("specfit.app.loops.MIN_UNITS", 4)
    monkeypatch.setattr("specfit.app.loops.MIN_OF_FEW", 4)
    monkeypatch.setattr("specfit.app.loops.REPEATS", 1)
    async with chat(bundled_engine) as pilot:
        await ask(pilot, "Write a long story about a fox.")
        await answered(pilot)
        assert "repeats itself" in mark_of(answers(pilot)[0])


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (20, 5)])
async def test_any_terminal_holds_the_chat_and_its_panel(bundled_engine, size):
    async with chat(bundled_engine, spec="chain:3", max_tokens=12, size=size) as pilot:
        await press(pilot, "ctrl+t")
        await ask(pilot, "Tea? 🍵 茶 é")
        await answered(pilot)
        await asyncio.sleep(0.4)
        assert answers(pilot)[0].text
        assert pilot.app.query_one(Panel).display


async def test_tab_goes_through_the_fields_of_a_dialog(bundled_engine):
    async with chat(bundled_engine) as pilot:
        await press(pilot, "f3")
        await until(pilot, lambda: isinstance(pilot.app.screen, ParameterPanel))
        first = pilot.app.focused
        await press(pilot, "tab")
        await until(pilot, lambda: pilot.app.focused is not first)
        await press(pilot, "7")
        await until(pilot, lambda: "7" in pilot.app.focused.value)


async def test_leaving_with_something_unsaved_is_asked_about(bundled_engine, monkeypatch):
    async with chat(bundled_engine, max_tokens=3) as pilot:
        monkeypatch.setattr(pilot.app.session, "save", lambda: "the disk is full")
        for _ in range(2):  # once for everything that is said
            await ask(pilot, "Tea?")
            await answered(pilot)
            await say(pilot, "/quit")
            assert not pilot.app._exit
        await say(pilot, "/quit")
        assert pilot.app._exit


async def test_so_it_is_while_an_answer_comes(bundled_engine, monkeypatch):
    async with chat(bundled_engine) as pilot:
        monkeypatch.setattr(pilot.app.session, "save", lambda: "the disk is full")
        await ask(pilot, "Repeat: la la la la la la la")
        await say(pilot, "/quit")
        assert not pilot.app._exit
        await press(pilot, "escape")
        await answered(pilot)


async def test_the_input_says_how_long_it_is_with_its_files(bundled_engine, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("The tea is in the blue box.")
    async with chat(bundled_engine) as pilot:
        composer = pilot.app.query_one(Composer)
        composer.insert(f"Where? @{notes} ")
        await until(pilot, lambda: "tokens" in str(composer.border_title))
        assert "27 B" in composer.border_title
        assert "of 1,024" in composer.border_title


async def test_a_model_that_cannot_think_is_not_told_to(bundled_engine):
    async with chat(bundled_engine) as pilot:
        notified = []
        pilot.app.notify = lambda message, **_: notified.append(message)
        await say(pilot, "/think")
        assert "no switch for thinking" in notified[0]
        assert pilot.app.parameters.thinking is None


async def test_the_palette_needs_some_rows(bundled_engine):
    async with chat(bundled_engine, size=(30, 4)) as pilot:
        await press(pilot, "ctrl+p", "pageup", "pagedown")
        assert not pilot.app.screen.is_modal
