"""The chat, driven through Textual's pilot with the bundled model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import screencases
from flowcases import Scripted, scripted
from resting import rested
from screencases import seen
from textual import events
from textual.pilot import Pilot
from textual.widgets import Markdown

from specfit.app.chat_setup import Setup
from specfit.app.options import ModelChoice
from specfit.app.parameters import Parameters
from specfit.app.session import Session
from specfit.app.settings import read_settings, settings_path
from specfit.app.store import Store
from specfit.app.tui import ChatApp
from specfit.app.widgets.answer import Answer
from specfit.app.widgets.composer import Composer
from specfit.app.widgets.conversation import Conversation
from specfit.app.widgets.note import Note
from specfit.app.widgets.status_line import StatusLine
from specfit.app.widgets.user_message import UserMessage
from specfit.backend import Engine

# The bundled model repeats this until the context is full: long enough to be stopped.
ENDLESS = "Repeat: la la la la la la la"


def app_of(load, *, spec: str = "off", max_tokens: int | None = None, store=None) -> ChatApp:
    """A chat without a file to keep conversations in, unless `store` is given."""
    model = ModelChoice(None, None, None, False, None, None, 1, None)
    parameters = Parameters(temp=0, seed=1, max_tokens=max_tokens, spec=spec)
    settings = read_settings(settings_path())
    return ChatApp(Setup(model, parameters, settings, Session(store), load=load))


@asynccontextmanager
async def chat(
    engine: Engine,
    *,
    spec: str = "off",
    max_tokens: int | None = None,
    size=(100, 30),
    store: Store | None = None,
) -> AsyncIterator[Pilot[None]]:
    """A chat whose model has loaded."""
    engine.forget()
    app = app_of(lambda *_: engine, spec=spec, max_tokens=max_tokens, store=store)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.engine is not None and len(app.query(Note)) > 0)
        yield pilot
        await rested(pilot)


async def until(pilot: Pilot[None], reached: Callable[[], bool]) -> None:
    await screencases.until(reached)
    await pilot.pause(0.05)  # what it led to reaches the screen


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Presses keys at once; the pilot's own way waits until the process idles, and it generates."""
    for key in keys:
        pilot.app.simulate_key(key)
    await pilot.pause(0.05)


async def ask(pilot: Pilot[None], question: str) -> None:
    """Writes a question and sends it; it is being answered, or in the input again."""
    app = pilot.app
    composer = app.query_one(Composer)
    composer.insert(question)
    answers = len(app.query(Answer))
    await press(pilot, "enter")
    await until(pilot, lambda: len(app.query(Answer)) > answers or bool(composer.text))


async def answered(pilot: Pilot[None]) -> None:
    await until(pilot, lambda: pilot.app.exchange is None)


def text_of(pilot: Pilot[None], widget_type=StatusLine) -> str:
    return str(pilot.app.query(widget_type).last().render())


def mark_of(answer: Answer) -> str:
    mark = answer.query_one(".mark")
    return str(mark.render()) if mark.display else ""


async def test_an_answer_streams_and_the_next_turn_knows_it(bundled_engine):
    async with chat(bundled_engine, spec="chain:3", max_tokens=90, size=(120, 30)) as pilot:
        await pilot.press(*"Why is the sky blue?", "enter")
        await answered(pilot)
        assert pilot.app.query_one(Composer).text == ""
        answer = pilot.app.query_one(Answer)
        assert len(answer.text) > 10
        assert answer.query_one(Markdown).source == answer.text
        status = text_of(pilot)
        for part in ("chain:3", "tok/s", "tokens a step", "rows 4.0", "union"):
            assert part in status
        await ask(pilot, "And then?")
        await answered(pilot)
        path = pilot.app.session.path
        assert [one.role for one in path] == ["user", "assistant", "user", "assistant"]
        assert path[1].content == answer.text


async def test_an_answer_grows_on_the_screen_while_it_is_generated(bundled_engine):
    async with chat(bundled_engine, max_tokens=900) as pilot:
        await ask(pilot, ENDLESS)
        markdown = pilot.app.query_one(Answer).query_one(Markdown)
        lengths = set()
        while pilot.app.exchange is not None:
            lengths.add(len(markdown.source))
            await asyncio.sleep(0.03)
        assert len(lengths) > 2


async def test_escape_stops_and_keeps_the_partial_answer(bundled_engine):
    async with chat(bundled_engine) as pilot:
        await ask(pilot, ENDLESS)
        answer = pilot.app.query_one(Answer)
        await until(pilot, lambda: len(answer.text) > 20)
        await press(pilot, "escape")
        await answered(pilot)
        assert mark_of(answer) == "stopped"
        assert answer.query_one(Markdown).source == answer.text
        last = pilot.app.session.path[-1]
        assert (last.content, last.status) == (answer.text, "stopped")


async def test_an_answer_cut_by_the_limit_says_so(bundled_engine):
    async with chat(bundled_engine, max_tokens=5) as pilot:
        await ask(pilot, ENDLESS)
        await answered(pilot)
        assert mark_of(pilot.app.query_one(Answer)).startswith("cut off")


async def test_control_c_stops_then_leaves_at_the_second_time(bundled_engine):
    async with chat(bundled_engine) as pilot:
        await ask(pilot, ENDLESS)
        answer = pilot.app.query_one(Answer)
        await until(pilot, lambda: len(answer.text) > 20)
        await press(pilot, "ctrl+c")
        await answered(pilot)
        assert mark_of(answer) == "stopped"
        assert pilot.app.is_running
        await press(pilot, "ctrl+c")
        assert not pilot.app._exit
        await press(pilot, "ctrl+c")
        assert pilot.app._exit


async def test_control_c_copies_a_selection(bundled_engine):
    async with chat(bundled_engine) as pilot:
        composer = pilot.app.query_one(Composer)
        composer.insert("some words")
        composer.select_all()
        await press(pilot, "ctrl+c")
        assert pilot.app.clipboard == "some words"
        assert composer.selected_text == ""


async def test_new_lines_and_pastes_stay_one_message(bundled_engine):
    async with chat(bundled_engine, max_tokens=3) as pilot:
        await press(pilot, "a", "ctrl+j", "b", "shift+enter")
        composer = pilot.app.query_one(Composer)
        pilot.app.post_message(events.Paste("first\r\nsecond\rthird \x1b[31m\n"))
        pasted = "a\nb\nfirst\nsecond\nthird ␛[31m\n"
        await until(pilot, lambda: composer.text == pasted)
        assert not pilot.app.query(UserMessage)
        await press(pilot, "enter")
        await answered(pilot)
        assert pilot.app.session.path[0].content.startswith("a\nb\nfirst\nsecond")
        assert len(pilot.app.query(UserMessage)) == 1


async def test_blanks_are_not_sent(bundled_engine):
    async with chat(bundled_engine) as pilot:
        await press(pilot, "space", "enter")
        await asyncio.sleep(0.05)
        assert not pilot.app.query(UserMessage)


async def test_a_second_question_waits_for_the_answer(bundled_engine):
    async with chat(bundled_engine) as pilot:
        await ask(pilot, ENDLESS)
        await ask(pilot, "Too early")
        assert len(pilot.app.query(UserMessage)) == 1
        assert pilot.app.query_one(Composer).text == "Too early"
        await press(pilot, "escape")
        await answered(pilot)


async def test_a_prompt_that_is_too_long_is_one_sentence_and_the_text_stays(bundled_engine):
    async with chat(bundled_engine) as pilot:
        long = "word " * 2000
        await ask(pilot, long)
        await answered(pilot)
        error = pilot.app.query(Note).last()
        assert error.has_class("-error")
        assert "the context holds 1024" in str(error.render())
        assert pilot.app.query_one(Composer).text == long
        assert not pilot.app.query(Answer)
        assert not pilot.app.session.path


async def test_it_works_in_80_by_24(bundled_engine):
    async with chat(bundled_engine, spec="chain:3", max_tokens=200, size=(80, 24)) as pilot:
        await ask(pilot, ENDLESS)
        await answered(pilot)
        screen = pilot.app.screen.region
        for widget_type in (Conversation, StatusLine, Composer):
            region = pilot.app.query_one(widget_type).region
            assert region.area > 0
            assert screen.contains_region(region)
        assert len(text_of(pilot)) <= 78
        assert len(str(pilot.app.query_one(Composer).border_subtitle)) <= 76


async def test_scrolling_up_lets_go_and_the_end_takes_hold_again():
    words = " ".join(map(str, range(2000)))
    async with scripted(Scripted(words, "Hi.", per_s=200), (40, 14)) as pilot:
        await ask(pilot, "Count")
        conversation = pilot.app.query_one(Conversation)
        await until(pilot, lambda: conversation.max_scroll_y > 8)
        assert conversation.scroll_y == conversation.max_scroll_y
        await press(pilot, "pageup")
        place, end = conversation.scroll_y, conversation.max_scroll_y
        assert place < end
        await until(pilot, lambda: conversation.max_scroll_y > end)
        assert conversation.scroll_y == place
        await press(pilot, "escape")
        await answered(pilot)
        assert conversation.scroll_y == place
        await press(pilot, *["pagedown"] * 9)
        await ask(pilot, "Hi")
        await answered(pilot)
        assert conversation.scroll_y == conversation.max_scroll_y


async def test_escape_sequences_and_tags_in_an_answer_are_shown(bundled_engine):
    async with chat(bundled_engine) as pilot:
        answer = Answer()
        await pilot.app.query_one(Conversation).add(answer)
        for piece in ("<b>\n", "\x1b[2Jhm\n", "</b>\n\n", "```\n\x1b]0;x\x07", "\n```"):
            await answer.append(piece)
        await answer.finish("stop")
        assert "\x1b" not in await seen(pilot, "<b>", "␛[2Jhm", "␛]0;x␇")


async def test_notices_are_shown_once(bundled_engine, monkeypatch):
    monkeypatch.setattr(bundled_engine, "notices", ("decoding without drafts: no head",))
    async with chat(bundled_engine) as pilot:
        await until(pilot, lambda: len(pilot.app.query(Note)) == 2)
        assert text_of(pilot, Note) == "decoding without drafts: no head"


@pytest.mark.parametrize("width", [20, 200])
async def test_any_width_holds_an_answer(bundled_engine, width):
    async with chat(bundled_engine, max_tokens=20, size=(width, 10)) as pilot:
        await ask(pilot, "Hi")
        await answered(pilot)
        assert pilot.app.query_one(Answer).text


async def test_what_is_typed_right_after_sending_is_kept(bundled_engine):
    async with chat(bundled_engine) as pilot:
        composer = pilot.app.query_one(Composer)
        composer.insert(ENDLESS)
        for key in ("enter", "y", "o", "enter"):  # faster than the app handles the first message
            pilot.app.simulate_key(key)
        await until(pilot, lambda: len(pilot.app.query(Answer)) == 1)
        await until(pilot, lambda: composer.text == "yo")
        await press(pilot, "escape")
        await answered(pilot)


async def test_a_new_chat_has_the_whole_context_again(bundled_engine):
    async with chat(bundled_engine, max_tokens=8) as pilot:
        await ask(pilot, "Hello")
        await answered(pilot)
        await press(pilot, "ctrl+n")
        await until(pilot, lambda: len(pilot.app.query(UserMessage)) == 0)
        await ask(pilot, "Hello")
        await answered(pilot)
        assert len(pilot.app.session.path) == 2
