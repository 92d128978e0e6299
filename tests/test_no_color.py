"""NO_COLOR: no colour reaches the terminal, and what colours tell is told otherwise."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from rich.color import Color
from rich.style import Style
from screencases import PATIENCE_S, SMALL, Host, press, until
from test_screens import Line
from textual.app import ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import OptionList, ProgressBar, TextArea
from textual.widgets.text_area import Selection

from specfit.app.no_color import PlainApp, without_colours
from specfit.app.parameters import Parameters
from specfit.app.widgets.answer import Answer
from specfit.app.widgets.composer import Composer
from specfit.app.widgets.conversations_screen import ConversationsScreen
from specfit.app.widgets.draft_tree import DraftTreeView
from specfit.app.widgets.expert_strip import ExpertStrip
from specfit.app.widgets.loading_view import LoadingView
from specfit.app.widgets.meters import Memory, Meters
from specfit.app.widgets.note import Note
from specfit.app.widgets.parameter_panel import ParameterPanel
from specfit.app.widgets.system_prompt_screen import SystemPromptScreen
from specfit.app.widgets.user_message import UserMessage

SGR = re.compile(r"\x1b\[([0-9;:]*)m")
# The chat with a model that never gets loaded, driven through a terminal of its own.
CHAT = """
import os, time
from specfit.app.chat_setup import Setup
from specfit.app.options import ModelChoice
from specfit.app.parameters import Parameters
from specfit.app.session import Session
from specfit.app.settings import read_settings, settings_path
from specfit.app.tui import ChatApp

def load(_model, progress, _planned):
    while progress(0.5):
        time.sleep(0.02)
    raise OSError("left")

model = ModelChoice(None, None, None, False, None, None, 1, None)
ChatApp(Setup(model, Parameters(), read_settings(settings_path()), Session(None), load=load)).run()
"""


def colours(written: str) -> list[str]:
    """The colours among what a terminal is told; 39 and 49 are colours too."""
    found = []
    for match in SGR.finditer(written):
        numbers = [int(n or 0) for n in re.split("[;:]", match[1])]
        if any(30 <= n <= 49 or n == 58 or 90 <= n <= 107 for n in numbers):
            found.append(match[1])
    return found


@pytest.fixture(autouse=True)
def no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


class Terminal:
    """A process on a terminal of 80x24, and all that it wrote there."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        size = {"COLUMNS": "80", "LINES": "24"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHAT],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, **size, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        )
        os.close(slave)
        self.written = ""
        self._answered = 0

    def read_until(self, text: str) -> None:
        """Reads until `text` has come since the last keys."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in SGR.sub("", self.written[self._answered :]):
            assert time.monotonic() < deadline, self.written[-500:]
            if select.select([self._master], [], [], 0.1)[0]:
                self.written += os.read(self._master, 65536).decode(errors="replace")

    def type(self, keys: str) -> None:
        self._answered = len(self.written)
        os.write(self._master, keys.encode())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.close()


def test_no_colour_reaches_the_terminal(terminal):
    terminal.read_until("Loading the model: 50%")
    for keys, seen in (
        ("some words\x1b[1;2D", "some words"),  # the last letter selected
        ("\x1bOP", "Show keys and commands"),
        ("\x1b", "Loading the model"),
        ("\x1bOR", "Parameters of this conversation"),
        ("\t9x", "Top-k: "),
        ("\x1b", "Loading the model"),
        ("\x10", "Search for commands"),
    ):
        terminal.type(keys)
        terminal.read_until(seen)
    assert len(SGR.findall(terminal.written)) > 20
    assert colours(terminal.written) == []


@pytest.mark.parametrize("value", ["", None])
def test_without_a_value_nothing_is_asked_for(value, monkeypatch):
    if value is None:
        monkeypatch.delenv("NO_COLOR")
    else:
        monkeypatch.setenv("NO_COLOR", value)
    app = PlainApp()
    assert not app.no_color
    assert app.current_theme.name != "no-color"
    assert [type(one).__name__ for one in app.get_line_filters()] == ["ANSIToTruecolor"]


def test_a_filled_cell_is_reversed_and_muted_text_is_dim():
    white, grey, black = (Color.from_rgb(n, n, n) for n in (255, 153, 0))
    for style, attributes in (
        (Style(color=white, bgcolor=black), Style()),
        (Style(color=black, bgcolor=white), Style(reverse=True)),
        (Style(color=grey, bgcolor=black, italic=True), Style(dim=True, italic=True)),
        (Style(color=white, bgcolor=black, reverse=True), Style(reverse=True)),
        (Style(bold=True), Style(bold=True)),
    ):
        plain = without_colours(style, 0.0)
        assert (plain.color, plain.bgcolor) == (None, None)
        for name in ATTRIBUTES:
            assert bool(getattr(plain, name)) == bool(getattr(attributes, name))


def test_clicks_still_know_what_was_clicked():
    style = Style(color="red", meta={"@click": "app.bell"}, link="http://a.b")
    plain = without_colours(style, 0.0)
    assert plain.meta == {"@click": "app.bell"}
    assert plain.link == "http://a.b"


class Shelf(PlainApp):
    """Widgets below each other."""

    def __init__(self, *widgets: Widget) -> None:
        super().__init__()
        self._shown = widgets

    def compose(self) -> ComposeResult:
        yield from self._shown


class PlainHost(Host, PlainApp):
    """A screen of its own without colours."""


Look = list[tuple[str, frozenset[str]]]
ATTRIBUTES = ("bold", "dim", "italic", "reverse", "underline")


async def look(pilot: Pilot[None], widget: Widget) -> Look:
    """How a widget is drawn: its pieces of text, each with its attributes."""
    await pilot.pause(0.02)
    strips = pilot.app.screen._compositor.render_strips()
    x, y, width, height = widget.region
    segments = [s for strip in strips[y : y + height] for s in strip.crop(x, x + width)]
    assert all(s.style is None or s.style.color is s.style.bgcolor is None for s in segments)
    return [(s.text, frozenset(a for a in ATTRIBUTES if getattr(s.style, a, 0))) for s in segments]


async def test_the_field_with_the_focus_is_seen():
    screen = ParameterPanel(Parameters())
    async with PlainHost(screen).run_test(size=SMALL) as pilot:
        await pilot.pause(0.02)
        for name in ("#temp", "#thinking", "#apply"):
            field = screen.query_one(name)
            field.focus()
            with_focus = await look(pilot, field)
            pilot.app.set_focus(None)
            assert with_focus != await look(pilot, field)


async def test_the_list_with_the_focus_is_seen():
    screen = SystemPromptScreen("Be brief.")
    async with PlainHost(screen).run_test(size=SMALL) as pilot:
        listed = screen.query_one(OptionList)
        with_focus = await look(pilot, listed)
        screen.query_one(TextArea).focus()
        assert await look(pilot, listed) != with_focus


async def test_the_place_in_a_list_is_seen():
    lines = [Line(1, "one"), Line(2, "two")]
    screen = ConversationsScreen(lambda: lines, lambda _: None)
    async with PlainHost(screen).run_test(size=SMALL) as pilot:
        await until(lambda: screen.entries)
        listed = screen.query_one(OptionList)
        first = await look(pilot, listed)
        await press(pilot, "down")
        assert await look(pilot, listed) != first


async def test_messages_that_are_selected_drafted_or_wrong_are_seen():
    user, answer = UserMessage("Why?"), Answer("Because it is.", "complete")
    note, error = Note("It is so."), Note("It is so.", error=True)
    answer.set_spans([(8, 10)])
    async with Shelf(user, answer, note, error).run_test(size=SMALL) as pilot:
        for message in (user, answer):
            before = await look(pilot, message)
            message.add_class("-selected")
            assert await look(pilot, message) != before
        await answer.show_drafted(True)
        drafted = [text for text, style in await look(pilot, answer) if "underline" in style]
        assert drafted == ["it"]
        assert await look(pilot, note) != await look(pilot, error)


async def test_bars_and_strips_are_seen(monkeypatch):
    loading, strip, meters = LoadingView(), ExpertStrip(), Meters(lambda: [Memory("RAM", 1, 2)])
    view = SimpleNamespace(layers=np.array([1, 9, 1, 9]), report=SimpleNamespace(hits=0, misses=0))
    async with Shelf(loading, strip, meters).run_test(size=SMALL) as pilot:
        loading.show(0.5)
        strip.add([view])
        strip.draw()
        await until(lambda: meters.region.height > 1)
        bar = await look(pilot, loading.query_one(ProgressBar))
        assert len({style for text, style in bar if "━" in text}) == 2
        shown = "".join(text for text, _ in await look(pilot, strip))
        assert "▁█" in shown
        assert "████░░░░" in "".join(text for text, _ in await look(pilot, meters))


async def test_selected_text_and_the_cursor_are_seen():
    composer = Composer()
    async with Shelf(composer).run_test(size=SMALL) as pilot:
        composer.focus()
        composer.insert("some words")
        composer.cursor_blink = False
        assert (" ", {"reverse"}) in await look(pilot, composer)
        composer.selection = Selection((0, 0), (0, 4))
        assert ("some", {"reverse"}) in await look(pilot, composer)


async def test_a_draft_tree_with_the_focus_is_seen():
    tree = DraftTreeView()
    app = Shelf(tree)
    async with app.run_test(size=SMALL) as pilot:
        app.set_focus(None)
        without = await look(pilot, tree)
        tree.focus()
        assert await look(pilot, tree) != without
