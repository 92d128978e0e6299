"""Keys of one burst take effect in the order in which they were pressed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from screencases import until
from test_chat_tui import answered, chat
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.pilot import Pilot
from textual.screen import ModalScreen
from textual.widgets import Button, Input

from specfit.app.key_order import KeysInOrder
from specfit.app.widgets.composer import Composer
from specfit.app.widgets.help_screen import HelpScreen


class Asking(ModalScreen[str]):
    """Enter gives what was written."""

    def compose(self) -> ComposeResult:
        yield Input()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class Desk(KeysInOrder):
    """An input box, and keys that the app has taken for itself; notes what they saw."""

    BINDINGS = [  # noqa: RUF012
        Binding("f1", "note", priority=True),
        Binding("f2", "ask", priority=True),
        Binding("f3", "lose", priority=True),
    ]

    def __init__(self, early: str = "") -> None:
        """early: what is typed before there is a screen."""
        super().__init__()
        self.composer = Composer()
        self.early = early
        self.noted: list[str] = []

    def compose(self) -> ComposeResult:
        yield Button("a")
        yield self.composer

    def on_mount(self) -> None:
        for letter in self.early:
            self.post_message(events.Key(letter, letter))
        self.composer.focus()

    def on_composer_submitted(self, message: Composer.Submitted) -> None:
        self.noted.append(f"sent {message.text}")

    def action_note(self) -> None:
        self.noted.append(self.composer.text)

    def action_ask(self) -> None:
        self.push_screen(Asking(), lambda answer: self.noted.append(f"answered {answer}"))

    async def action_lose(self) -> None:
        await self.composer.remove()


@asynccontextmanager
async def desk() -> AsyncIterator[Pilot[None]]:
    async with Desk().run_test() as pilot:
        await pilot.pause()
        yield pilot


def burst(pilot: Pilot[None], *keys: str) -> None:
    for key in keys:
        pilot.app.post_message(events.Key(key, key if len(key) == 1 else None))


async def test_a_key_of_the_app_comes_after_the_letters_before_it():
    async with desk() as pilot:
        burst(pilot, *"abc", "f1", *"de", "f1", "backspace", "f1", "ctrl+u", "f1", *"fg", "f1")
        await until(lambda: len(pilot.app.noted) == 5)
        assert pilot.app.noted == ["abc", "abcde", "abcd", "", "fg"]


async def test_a_key_of_the_app_comes_after_what_the_key_before_it_led_to():
    async with desk() as pilot:
        burst(pilot, *"hello", "enter", "f1", *"x", "f1")
        await until(lambda: len(pilot.app.noted) == 3)
        assert pilot.app.noted == ["sent hello", "", "x"]


async def test_letters_behind_a_key_that_asks_something_go_to_what_it_opens():
    async with desk() as pilot:
        burst(pilot, *"abc", "f2", *"tea", "enter", *"de", "f1")
        await until(lambda: len(pilot.app.noted) == 2)
        assert pilot.app.noted == ["answered tea", "abcde"]


async def test_a_paste_keeps_its_place():
    async with desk() as pilot:
        burst(pilot, "a", "left")
        pilot.app.post_message(events.Paste("1\n2"))
        burst(pilot, "f1", "home", "b", "f2")
        pilot.app.post_message(events.Paste("tea"))
        burst(pilot, "enter", "f1")
        await until(lambda: len(pilot.app.noted) == 3)
        assert pilot.app.noted == ["1\n2a", "answered tea", "1\nb2a"]


async def test_keys_go_on_when_the_field_is_gone():
    async with desk() as pilot:
        burst(pilot, *"abc", "f3", *"de", "tab", "f1")
        await until(lambda: pilot.app.noted)
        assert pilot.app.noted == ["abc"]
        burst(pilot, "f1")
        await until(lambda: len(pilot.app.noted) == 2)


async def test_a_long_burst_of_letters_is_not_drawn_letter_by_letter():
    async with desk() as pilot:
        drawn = 0
        render = Composer.render_line

        def counted(self: Composer, y: int):
            nonlocal drawn
            drawn += 1
            return render(self, y)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Composer, "render_line", counted)
            burst(pilot, "home", *"x" * 400, "f1")
            await until(lambda: pilot.app.noted)
        assert pilot.app.noted == ["x" * 400]
        assert drawn < 200


async def test_the_chat_obeys_keys_in_order(bundled_engine):
    async with chat(bundled_engine, max_tokens=3) as pilot:
        burst(pilot, *"abc", "f1", "escape", *"d", "enter", "ctrl+n")
        opened = []
        push = pilot.app.push_screen
        pilot.app.push_screen = lambda *args, **more: (
            opened.append(pilot.app.composer.text),
            push(*args, **more),
        )[1]
        await until(lambda: pilot.app.session.path)
        await answered(pilot)
        await asyncio.sleep(0.05)
        assert opened == ["abc"]
        assert not isinstance(pilot.app.screen, HelpScreen)
        assert pilot.app.session.path[0].content == "abcd"


async def test_what_is_typed_before_there_is_a_screen_is_not_lost():
    async with Desk("early").run_test() as pilot:
        await until(lambda: pilot.app.composer.text == "early")
