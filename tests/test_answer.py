"""Messages and the conversation, in an app of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from counting import counted
from screencases import seen, until
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input, Markdown

from specfit.app.attachments import Attachment, with_files
from specfit.app.widgets.answer import Answer, marked
from specfit.app.widgets.conversation import Conversation
from specfit.app.widgets.markdown import code_blocks
from specfit.app.widgets.thinking_block import ThinkingBlock
from specfit.app.widgets.user_message import UserMessage

REPLY = (
    "Here is a *paragraph* with `code` that is long enough to wrap once or twice on a screen of "
    "a usual width.\n\n- one\n- two\n\n```python\ndef f(x):\n    return x\n```\n\nEnd.\n"
)


class Room(App[None]):
    def compose(self) -> ComposeResult:
        yield Conversation()
        yield Input()

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    @property
    def conversation(self) -> Conversation:
        return self.query_one(Conversation)


@asynccontextmanager
async def room(*messages: Widget, size=(80, 24)) -> AsyncIterator[Pilot[None]]:
    async with Room().run_test(size=size) as pilot:
        for message in messages:
            await pilot.app.conversation.add(message)
        await pilot.pause()
        yield pilot


def mark_of(answer: Answer) -> str:
    mark = answer.query_one(".mark")
    return str(mark.render()) if mark.display else ""


async def test_thinking_is_folded_and_timed_and_the_answer_stands_alone():
    answer = Answer()
    async with room(answer) as pilot:
        for piece in ("<thi", "nk>\nLet me", " see", "\n</think>", "\n\nIt is **four**."):
            await answer.append(piece)
        await answer.finish("complete")
        assert answer.query_one(Markdown).source == "It is **four**."
        assert answer.text == "<think>\nLet me see\n</think>\n\nIt is **four**."
        assert answer.written == "It is **four**."
        assert 0 <= answer.thought_s < 5
        screen = await seen(pilot, "▸ Thought for ", "It is four.")
        assert "Let me see" not in screen
        await pilot.click("ThinkingTitle")
        await seen(pilot, "▾ Thought", "Let me see")
        assert isinstance(pilot.app.focused, Input)


async def test_thinking_streams_while_unfolded_and_enter_folds_it():
    answer = Answer()
    answer.open_thinking()
    async with room(answer) as pilot:
        await answer.append("first ")
        await answer.thinking.toggle()
        assert answer.thinking.unfolded
        await answer.append("second")
        await seen(pilot, "first second", "Thinking …")
        answer.thinking.query_one("ThinkingTitle").focus()
        await pilot.press("enter")
        assert not answer.thinking.unfolded
        await answer.append(" third</think>Yes")
        await answer.finish("complete")
        await pilot.press("enter")
        await seen(pilot, "first second third")
        assert answer.text == "<think>\nfirst second third</think>Yes"


def test_the_time_of_thinking_is_the_thinkings_own():
    times = iter((1.0, 2.0, 13.4, 20.0))
    block = ThinkingBlock(running=True, clock=lambda: next(times))
    assert block._words() == "Thinking … 1 s"
    asyncio.run(block.finish())
    assert block._words() == "Thought for 12 s"
    assert ThinkingBlock("x")._words() == "Thought"


async def test_empty_thinking_shows_nothing():
    answer = Answer()
    async with room(answer, Answer("<think>\n\n</think>\n\nHi", "complete")) as pilot:
        await answer.append("<think>\n\n</think>\n\nHi")
        await answer.finish("complete")
        assert not pilot.app.query(ThinkingBlock)


@pytest.mark.parametrize(
    ("status", "mark"),
    [
        ("complete", ""),
        ("stopped", "stopped"),
        ("length", "cut off: the limit"),
        ("cut", "cut off: the program ended"),
        ("growing", "cut off: the program ended"),
    ],
)
async def test_a_stored_answer_tells_how_it_ended(status, mark):
    answer = Answer("<think>\nhm\n</think>\n\nHalf", status, thought_s=12.3, message_id=5)
    async with room(answer) as pilot:
        assert mark_of(answer).startswith(mark) and bool(mark_of(answer)) == bool(mark)
        await seen(pilot, "Thought for 12 s")
        answer.set_version(2, 3, "Alt+Left, Alt+Right")
        assert mark_of(answer).endswith("version 2/3 (Alt+Left, Alt+Right)")


async def test_a_loop_is_named_by_the_apps_own_note():
    answer = Answer()
    async with room(answer):
        await answer.append("la la")
        await answer.finish("stopped", note="stopped: it repeats itself")
        assert mark_of(answer) == "stopped: it repeats itself"


@pytest.mark.parametrize("size", [(80, 24), (20, 5)])
async def test_pieces_of_characters_never_break(size):
    text = "**漢字** 👩‍👩‍👧‍👦 e\u0301 🇩🇪 नमस्ते\n\n| a | b |\n|--|--|\n| 1 | 2 |\n" + "x" * 300
    answer = Answer()
    async with room(answer, size=size) as pilot:
        for character in text:
            await answer.append(character)
        await answer.finish("complete")
        await pilot.pause()
        assert answer.query_one(Markdown).source == text
        assert answer.text == text


PARTS = (
    "# Title\n\nOne\ntwo\n\nSetext\n---\n\n- a\n- b\n\n  loose\n\n> quote\n\n"
    "```py\nx = 1\n```\n\n1. x\n2. y\n\n***\n"
)


def looks(answer: Answer) -> list[tuple[object, ...]]:
    blocks = answer.query("MarkdownBlock")
    return [(type(block), block.name, str(block._content)) for block in blocks]


@pytest.mark.parametrize("step", [1, 7, 60])
@pytest.mark.parametrize(
    ("text", "rebuilt"),
    [
        (PARTS, False),
        (PARTS + "End [link].\n\n[link]: http://x.org\n", True),
        (PARTS + "| a | b |\n|---|---|\n| 1 | 2 |\n", True),
    ],
)
async def test_a_streamed_answer_ends_as_if_read_at_once(text, rebuilt, step):
    answer, whole = Answer(), Answer(text, "complete")
    async with room(answer, whole) as pilot:
        for i in range(0, len(text), step):
            await answer.append(text[i : i + step])
            await asyncio.sleep(0.002)
        await pilot.pause()
        first = answer.query_one(Markdown).children[0]
        await answer.finish("complete")
        await pilot.pause()
        assert looks(answer) == looks(whole)
        assert (answer.query_one(Markdown).children[0] is not first) == rebuilt


async def test_drafted_text_is_underlined_on_demand():
    answer = Answer()
    answer.open_thinking()
    async with room(answer) as pilot:
        await answer.append("hm</think>**one** two\x1b")
        await answer.show_drafted(True)
        answer.set_spans([(0, 2), (10, 17)])
        assert [answer.text[a:b] for a, b in answer.spans] == ["hm", "**one**"]
        await answer.append(" three")
        assert "\x1b" not in await seen(pilot, "**one**", "␛ three")
        assert not answer.query_one(Markdown).display
        await answer.show_drafted(False)
        await answer.finish("complete")
        await pilot.pause()
        assert answer.query_one(Markdown).display
        assert answer.query_one(Markdown).source == "**one** two␛ three"


def test_spans_count_characters_as_they_were_written():
    content = marked("a\x1b\x9bb漢c", [(1, 3), (4, 5)])
    assert content.plain == "a␛<9B>b漢c"
    assert [content.plain[s.start : s.end] for s in content.spans] == ["␛<9B>", "漢"]


def test_code_blocks_are_found_in_lists_too():
    text = "```py\na\n```\n\n- item\n\n  ~~~\n  b\n  ~~~\n\n    c\n"
    assert code_blocks(text)[:2] == ["a\n", "b\n"]
    assert code_blocks("`no`") == []


async def test_a_message_shows_its_files_by_name_and_a_long_one_folded():
    content = with_files("Look", [Attachment("notes.md", 9, "secret words")])
    long = UserMessage("\n".join(f"line {n}" for n in range(90)))
    async with room(UserMessage(content), long) as pilot:
        plain = "".join(str(message.render()) for message in pilot.app.query(UserMessage))
        assert "+ notes.md" in plain and "secret" not in plain
        assert "line 23" in plain and "line 24" not in plain and "709 B in all" in plain
        long.toggle()
        assert "line 89" in str(long.render())


async def test_a_message_of_a_megabyte_is_shown_at_once():
    with counted() as calls:
        message = UserMessage("word " * 200_000)
    async with room(message) as pilot:
        with counted() as rendering:
            assert "1.0 MB in all" in str(pilot.app.query_one(UserMessage).render())
    assert calls.n + rendering.n < 2_000  # for 200,000 words


def makers(count: int) -> list:
    def maker(n: int):
        if n % 2:
            return lambda: Answer(f"{n} {REPLY}", "complete", message_id=n)
        return lambda: UserMessage(f"Question {n}?", message_id=n)

    return [maker(n) for n in range(count)]


async def test_two_thousand_messages_open_as_fast_as_a_screenful_and_older_ones_follow():
    async with room() as pilot:
        conversation = pilot.app.conversation
        with counted() as calls:
            await conversation.show(makers(2000))
            await pilot.pause()
        assert calls.n < 3_000_000  # 12 messages take a million
        assert conversation.scroll_y == conversation.max_scroll_y > 0
        shown = len(conversation.messages)
        assert shown < 60 and conversation.messages[-1].message_id == 1999
        conversation.scroll_home(animate=False)
        top = conversation.messages[0]
        await until(lambda: len(conversation.messages) > shown)
        assert conversation.messages[0].message_id < top.message_id
        await until(lambda: 0 <= top.region.y <= 2)  # what was at the top still is
        await conversation.add(UserMessage("new"))
        await until(lambda: conversation.scroll_y == conversation.max_scroll_y)


async def test_a_high_screen_is_filled():
    async with room(size=(80, 90)) as pilot:
        await pilot.app.conversation.show([lambda n=n: UserMessage(f"{n}") for n in range(200)])
        await until(lambda: pilot.app.conversation.max_scroll_y > 0)


async def test_messages_are_selected_by_steps_and_by_clicks():
    async with room() as pilot:
        conversation = pilot.app.conversation
        await conversation.show(makers(30))
        await conversation.select(-1)
        assert conversation.selected.message_id == 29
        assert conversation.selected.has_class("-selected")
        for _ in range(20):  # further up than what was mounted at first
            await conversation.select(-1)
        assert conversation.selected.message_id == 9
        assert len(pilot.app.query(".-selected")) == 1
        screen = pilot.app.screen
        await until(lambda: screen.region.overlaps(conversation.selected.region))
        await conversation.select(1)
        assert conversation.selected.message_id == 10
        for _ in range(60):
            await conversation.select(-1)
        assert conversation.selected.message_id == 0
        for _ in range(30):
            await conversation.select(1)
        assert conversation.selected is None
        await pilot.pause()
        await pilot.click(conversation.messages[-1])
        assert conversation.selected is conversation.messages[-1]
        assert isinstance(pilot.app.focused, Input)


async def test_a_message_far_up_is_gone_to():
    async with room() as pilot:
        conversation = pilot.app.conversation
        await conversation.show(makers(80))
        for wanted in (2, 40, 79):
            await conversation.go_to(wanted)
            await pilot.pause()
            assert conversation.selected.message_id == wanted
            assert len(pilot.app.query(".-selected")) == 1
            assert conversation.region.overlaps(conversation.selected.region)


async def test_messages_behind_one_are_cut_off():
    async with room() as pilot:
        conversation = pilot.app.conversation
        await conversation.show(makers(6))
        await conversation.cut(conversation.messages[3])
        assert [message.message_id for message in conversation.messages] == [0, 1, 2]
        await conversation.clear()
        assert conversation.messages == []
