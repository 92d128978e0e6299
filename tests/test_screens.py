"""The screens over the chat: earlier conversations, search, and help."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
from screencases import until
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList

from specfit.app.commands import COMMANDS
from specfit.app.entry import AppError
from specfit.app.keys import KEYS, remapped
from specfit.app.widgets.conversations_screen import ConversationsScreen, ago
from specfit.app.widgets.help_screen import HelpScreen
from specfit.app.widgets.search_screen import SearchScreen

NOTHING = "nothing was returned"
SIZES = pytest.mark.parametrize("size", [(120, 40), (80, 24), (20, 5)])


class Host(App[None]):
    """Opens a screen and keeps what it returned."""

    def __init__(self, screen: ModalScreen[Any]) -> None:
        super().__init__()
        self.opened = screen
        self.returned: object = NOTHING

    def compose(self) -> ComposeResult:
        yield Input()

    def on_mount(self) -> None:
        self.push_screen(self.opened, self._keep)

    def _keep(self, result: object) -> None:
        self.returned = result


@dataclass(frozen=True)
class Line:
    id: int
    title: str
    shown: int = 2
    updated: float = 0.0


@dataclass(frozen=True)
class Found:
    conversation: int
    message: int
    title: str
    role: str
    snippet: str
    match: tuple[int, int]
    created: float = 0.0


class Shelf:
    """Conversations in memory."""

    def __init__(self, *titles: str) -> None:
        self.lines = [Line(number, title) for number, title in enumerate(titles)]
        self.trouble: str | None = None

    def conversations(self) -> list[Line]:
        if self.trouble:
            raise AppError(self.trouble)
        return list(self.lines)

    def delete(self, conversation: int) -> None:
        if self.trouble:
            raise AppError(self.trouble)
        self.lines = [line for line in self.lines if line.id != conversation]

    def screen(self) -> ConversationsScreen:
        return ConversationsScreen(self.conversations, self.delete, clock=lambda: 7200.0)


def rows(pilot: Pilot[None]) -> list[str]:
    options = pilot.app.screen.query_one(OptionList)
    return [str(options.get_option_at_index(i).prompt) for i in range(options.option_count)]


def hint(pilot: Pilot[None]) -> str:
    return str(pilot.app.screen.query_one(".hint").render())


@SIZES
async def test_a_conversation_is_chosen_from_the_newest_down(size):
    shelf = Shelf("Stars\nat night", "A 漢字 \x1b[2J [b]title[/b]", "")
    async with Host(shelf.screen()).run_test(size=size) as pilot:
        await until(lambda: len(rows(pilot)) == 3)
        wide = "   2 h ago     2 messages  Stars at night"
        assert rows(pilot)[0] == (wide if size[0] >= 50 else "Stars at night · 2 h ago")
        assert "A 漢字 ␛[2J [b]title[/b]" in rows(pilot)[1]
        assert "(no title)" in rows(pilot)[2]
        await pilot.press("down", "down", "up", "enter")
        assert pilot.app.returned == 1


async def test_conversations_are_filtered_while_typing():
    async with Host(Shelf("Stars at night", "Rain", "Night trains").screen()).run_test() as pilot:
        await until(lambda: len(rows(pilot)) == 3)
        await pilot.press(*"night")
        await until(lambda: len(rows(pilot)) == 2)
        await pilot.press(*" tr")
        await until(lambda: len(rows(pilot)) == 1)
        await pilot.press("enter")
        assert pilot.app.returned == 2


async def test_no_conversation_says_so_and_escape_leaves():
    async with Host(Shelf().screen()).run_test() as pilot:
        await until(lambda: rows(pilot) == ["There is no conversation yet."])
        await pilot.press("enter")
        assert pilot.app.returned == NOTHING
        await pilot.press("escape")
        assert pilot.app.returned is None


async def test_deleting_asks_first():
    shelf = Shelf("one", "two", "three")
    async with Host(shelf.screen()).run_test() as pilot:
        await until(lambda: len(rows(pilot)) == 3)
        await pilot.press("down", "ctrl+d")
        assert hint(pilot).startswith("Enter deletes “two” for good")
        await pilot.press("escape")
        assert hint(pilot).startswith("Enter opens")
        await pilot.press("ctrl+d", "down", "up")  # moving on is a no as well
        assert len(shelf.lines) == 3
        await pilot.press("ctrl+d", "enter")
        await until(lambda: len(rows(pilot)) == 2)
        assert [line.title for line in shelf.lines] == ["one", "three"]
        assert pilot.app.returned == NOTHING
        await pilot.press("enter")
        assert pilot.app.returned == 2


async def test_the_last_conversation_can_be_deleted_too():
    shelf = Shelf("one")
    async with Host(shelf.screen()).run_test() as pilot:
        await until(lambda: len(rows(pilot)) == 1)
        await pilot.press("ctrl+d", "enter")
        await until(lambda: rows(pilot) == ["There is no conversation yet."])


async def test_a_store_in_trouble_is_one_sentence():
    shelf = Shelf("one")
    async with Host(shelf.screen()).run_test() as pilot:
        await until(lambda: len(rows(pilot)) == 1)
        shelf.trouble = "the disk is full"
        await pilot.press("ctrl+d", "enter")
        await until(lambda: hint(pilot) == "the disk is full")
        assert len(rows(pilot)) == 1
        await pilot.press("o")
        await until(lambda: rows(pilot) == ["No title has these words."])
        assert hint(pilot) == "the disk is full"


@SIZES
async def test_a_search_shows_where_and_returns_what_was_found(size):
    hits = [
        Found(4, 40, "Sky", "assistant", "why the sky\nis \x1bblue", (8, 11), 1.7e9),
        Found(5, 50, "", "user", "blue", (0, 4)),
    ]
    asked: list[str] = []

    def search(words: str) -> list[Found]:
        asked.append(words)
        return [hit for hit in hits if words in hit.snippet]

    async with Host(SearchScreen(search)).run_test(size=size) as pilot:
        await pilot.press(*"blue")
        await until(lambda: len(rows(pilot)) == 2)
        assert rows(pilot)[0] == "Sky · model · 2023-11-14\n  why the sky is ␛blue"
        assert rows(pilot)[1].startswith("(no title) · you")
        await pilot.press("down", "enter")
        assert pilot.app.returned is hits[1]
    assert "" not in asked


async def test_a_search_may_begin_with_words_and_find_nothing():
    async with Host(SearchScreen(lambda _: [], words="xyzzy")).run_test() as pilot:
        await until(lambda: rows(pilot) == ["No message has these words."])
        await pilot.press("escape")
        assert pilot.app.returned is None


async def test_a_slow_search_does_not_hold_up_typing():
    found = threading.Event()

    def search(words: str) -> list[Found]:
        assert found.wait(10)
        return [Found(1, 1, "t", "user", words, (0, 1))]

    async with Host(SearchScreen(search)).run_test() as pilot:
        for key in "slow":
            pilot.app.simulate_key(key)
        await until(lambda: pilot.app.screen.query_one(Input).value == "slow")
        assert not any(rows(pilot))  # all was typed before anything was found
        found.set()
        await until(lambda: len(rows(pilot)) == 1 and "slow" in rows(pilot)[0])


@SIZES
async def test_help_is_made_of_the_keys_and_commands(size):
    keys = remapped({"regenerate": "ctrl+g", "panel": []})
    async with Host(HelpScreen(keys)).run_test(size=size) as pilot:
        shown = "\n".join(str(widget.render()) for widget in pilot.app.screen.query("Static"))
        assert "Ctrl+G" in shown and "Ctrl+R" not in shown and "Ctrl+T" not in shown
        for text in (*(spec.usage for spec in COMMANDS), *(key.help for key in KEYS[:9])):
            assert text in shown
        await pilot.press("pagedown", "f1")
        assert pilot.app.returned is None


def test_ages_are_a_word_or_two():
    assert [ago(s) for s in (5, 90, 7300, 90_000, -3)] == [
        "just now",
        "2 min ago",
        "2 h ago",
        "1 d ago",
        "just now",
    ]
