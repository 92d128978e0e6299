"""What a chat does where something is not as it was: deleted, continued elsewhere, or defective."""

from __future__ import annotations

import io

import pytest
from flowcases import Scripted, answers, notices, opened, press, say, scripted, setup_of
from rich.console import Console
from screencases import screen_text, seen, until
from storecases import kept, said, talk, turn

from specfit.app.session import Session
from specfit.app.store import Unsent
from specfit.app.unsent import UnsentText
from specfit.app.widgets.user_message import UserMessage


async def delete_the_open_one(pilot, question: str) -> None:
    await press(pilot, "ctrl+o")
    await seen(pilot, f"messages  {question}")
    await press(pilot, "ctrl+d", "enter")
    await seen(pilot, "There is no conversation yet.")


# What was deleted


async def test_the_open_conversation_leaves_the_screen_as_it_is_deleted(store):
    engine = Scripted("A1")
    async with scripted(engine, store=store) as pilot:
        await say(pilot, "/system Be brief.")
        await say(pilot, "Q1 hello")
        await press(pilot, "up")
        assert pilot.app.composer.editing is not None
        await delete_the_open_one(pilot, "Q1 hello")
        await press(pilot, "escape")
        await until(lambda: not pilot.app.screen.is_modal)
        assert pilot.app.composer.editing is None
        assert pilot.app.composer.text == ""
        assert answers(pilot) == [] and not pilot.app.query(UserMessage)
        await until(lambda: "Q1 hello" not in screen_text(pilot))
        await press(pilot, "alt+up", "ctrl+r", "alt+left", "up")
        await say(pilot, "/branch 1")
        assert "/branch: no message has other versions" in notices(pilot)
        await press(pilot, "ctrl+c")
        await say(pilot, "Q2")
        asked = [message["content"] for message in engine.asked[-1].messages]
        assert asked == ["Be brief.", "Q2"]


async def test_nothing_said_has_no_title(store):
    async with scripted(Scripted("A1"), store=store) as pilot:
        await say(pilot, "/system Be brief.")
        await say(pilot, "/rename Tea")
        assert "/rename: there is nothing to give a title to yet" in notices(pilot)


@pytest.mark.parametrize("keys", [("ctrl+r",), ("alt+left",), ("up", "enter")])
async def test_a_message_that_is_not_there_any_more_is_told_and_the_text_stays(keys):
    async with scripted(Scripted("A1", "A2")) as pilot:
        await say(pilot, "Q1")
        await say(pilot, "Q2")
        for widget in pilot.app.conversation.messages:
            widget.message_id += 1000
        await press(pilot, *keys[:-1])
        if keys[0] == "ctrl+r":
            await press(pilot, "alt+up")
        await press(pilot, keys[-1])
        await until(lambda: "that message is not in this conversation any more" in notices(pilot))
        assert pilot.app.composer.text == ("Q2" if "enter" in keys else "")
        await press(pilot, "ctrl+n")
        await say(pilot, "Q3")


# What another window does


async def test_a_conversation_that_goes_on_in_two_windows_parts_and_says_so(store):
    tea = talk(store, "What is tea?", "A drink.")
    mine, theirs = Session(store), Session(store)
    for session in (mine, theirs):
        session.open(tea)
    turn(theirs, "And coffee?", "Another.")
    async with opened(setup_of(Scripted("Red.").load, mine)) as pilot:
        await say(pilot, "And wine?")
        assert notices(pilot) == [
            "Another window has gone on from here, too. Both are kept; Alt+Left shows the other."
        ]
        await seen(pilot, "version 2/2")
        await say(pilot, "Why?")
        assert len(notices(pilot)) == 1
        await press(pilot, "alt+left")
        await until(lambda: answers(pilot) == ["A drink.", "Another."])
        await say(pilot, "Which?")
        assert len(notices(pilot)) == 1
    assert said(mine) == kept(mine)
    assert said(mine) == ["What is tea?", "A drink.", "And coffee?", "Another.", "Which?", "Red."]


# What is no file


async def test_the_name_of_a_package_is_sent_as_it_is_written():
    engine = Scripted("A1")
    async with scripted(engine) as pilot:
        await say(pilot, "What is @angular/core?")
        assert engine.asked[-1].messages[-1]["content"] == "What is @angular/core?"
        assert notices(pilot) == ["@angular/core is no file here: sent as text"]


# Defects


async def test_a_defect_keeps_what_is_written_and_tells_nothing_of_it(store, monkeypatch):
    with pytest.raises(KeyError):
        async with scripted(Scripted("A1"), store=store) as pilot:
            app = pilot.app
            told = io.StringIO()
            monkeypatch.setattr(app, "error_console", Console(file=told, width=200))

            def fail() -> None:
                secret = "a secret of mine"
                raise KeyError(secret)

            await press(pilot, *"unsent")
            monkeypatch.setattr(app, "action_panel", fail)
            app.simulate_key("ctrl+t")
            await until(lambda: app._exit_renderables or not app.is_running)
            await until(lambda: not app.is_running)
    lines = told.getvalue()
    assert "secret" not in lines and "unsent" not in lines
    assert "(KeyError)" in lines and "issue tracker" in lines and "is kept" in lines
    assert "tests/test_chat_trouble.py:" in lines
    assert UnsentText(store).take(None) == Unsent("unsent")
    assert not UnsentText(store).take(None)
