"""The input box, driven by keys in an app of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from counting import counted
from screencases import until
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.pilot import Pilot
from textual.widgets import Static

from specfit.app.history import History
from specfit.app.key_order import KeysInOrder
from specfit.app.keys import KEYS, remapped
from specfit.app.pastes import LARGEST, Pastes
from specfit.app.widgets.completions import Completions
from specfit.app.widgets.composer import Composer


class Desk(KeysInOrder):
    """An input box at the bottom, and what it posted."""

    def __init__(self, folder: Path, keys=KEYS) -> None:
        super().__init__()
        self.composer = Composer(keys, folder)
        self.sent: list[Composer.Submitted] = []
        self.edits = 0

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static("above", id="above")
        yield self.composer

    def on_mount(self) -> None:
        self.query_one("#above").styles.height = "1fr"
        self.composer.focus()

    def on_composer_submitted(self, message: Composer.Submitted) -> None:
        self.sent.append(message)

    def on_composer_edit_last(self) -> None:
        self.edits += 1


@asynccontextmanager
async def desk(folder: Path, *, size=(80, 24), keys=KEYS) -> AsyncIterator[Pilot[None]]:
    async with Desk(folder, keys).run_test(size=size) as pilot:
        await pilot.pause()
        yield pilot


def texts(pilot: Pilot[None]) -> list[str]:
    return [message.text for message in pilot.app.sent]


def listed(pilot: Pilot[None]) -> list[str]:
    completions = pilot.app.screen.query_one(Completions)
    if not completions.opened:
        return []
    return [entry.label for entry in completions._entries]


async def listing(pilot: Pilot[None]) -> list[str]:
    """Files are looked for in a thread."""
    await until(lambda: listed(pilot))
    return listed(pilot)


@pytest.fixture
def folder(tmp_path):
    for name in ("notes.md", "my plan.txt", "src/main.py", "photo.png", ".secret"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    (tmp_path / "notes.raw").write_bytes(b"\0")
    return tmp_path


async def test_enter_sends_and_other_keys_begin_a_line(folder):
    async with desk(folder) as pilot:
        await pilot.press("a", "ctrl+j", "b", "shift+enter", "c", "enter")
        assert texts(pilot) == ["a\nb\nc"]
        assert pilot.app.composer.text == ""
        await pilot.press("space", "enter")
        assert len(texts(pilot)) == 1


async def test_sending_can_be_another_key(folder):
    keys = remapped({"send": "ctrl+j", "new_line": "enter"})
    async with desk(folder, keys=keys) as pilot:
        await pilot.press("a", "enter", "b", "ctrl+j")
        assert texts(pilot) == ["a\nb"]
        assert "Ctrl+J sends · Enter new line" in str(pilot.app.composer.border_subtitle)


async def test_a_command_is_completed_by_tab_and_by_enter(folder):
    async with desk(folder) as pilot:
        await pilot.press("/", "e", "x")
        assert listed(pilot)[0] == "/export [FILE]"
        await pilot.press("tab")
        assert pilot.app.composer.text == "/export "
        assert listed(pilot) == ["/export [FILE]"]  # how it is used
        await pilot.press("a", ".", "m", "d", "enter")
        assert texts(pilot) == ["/export a.md"]
        await pilot.press("/", "r", "e", "g", "enter")  # nothing to add: sent at once
        assert texts(pilot)[-1] == "/regen"
        assert listed(pilot) == []


async def test_the_list_is_walked_with_arrows_and_closed_with_escape(folder):
    async with desk(folder) as pilot:
        await pilot.press("/", "s", "down", "down")
        assert listed(pilot)[:3] == ["/search [WORDS]", "/system [TEXT]", "/stats"]
        await pilot.press("escape")
        assert listed(pilot) == []
        await pilot.press("t")
        assert listed(pilot) == []
        await pilot.press("backspace", "backspace", "backspace", "/", "s", "down", "down", "tab")
        assert pilot.app.composer.text == "/stats"


async def test_a_command_that_is_written_out_is_sent(folder):
    async with desk(folder) as pilot:
        await pilot.press(*"/new", "enter")
        assert texts(pilot) == ["/new"]


@pytest.mark.parametrize(
    ("typed", "entries", "text"),
    [
        ("@{}/no", ["@{}/notes.md"], "@{}/notes.md "),
        ("@../my", ["@../my plan.txt"], '@"../my plan.txt" '),
        ('@"../my pl', ["@../my plan.txt"], '@"../my plan.txt" '),
        ("@~/no", ["@~/notes.md"], "@~/notes.md "),
        ("@../sr", ["@../src/"], "@../src/"),
        ("@..", ["@../src/", "@../my plan.txt", "@../notes.md", "@../photo.png"], ""),
        ("@../.s", ["@../.secret"], "@../.secret "),
    ],
)
async def test_files_elsewhere_are_completed_by_their_folders(
    folder, typed, entries, text, monkeypatch
):
    monkeypatch.setenv("HOME", str(folder))
    async with desk(folder / "src") as pilot:
        pilot.app.post_message(events.Paste(typed.format(folder)))
        assert sorted(await listing(pilot)) == sorted(one.format(folder) for one in entries)
        if len(entries) == 1:
            await pilot.press("tab")
            assert pilot.app.composer.text == text.format(folder)


async def test_a_folder_with_blanks_is_gone_into(folder):
    (folder / "my notes").mkdir()
    (folder / "my notes" / "day one.txt").write_text("x")
    async with desk(folder) as pilot:
        pilot.app.post_message(events.Paste(f"@{folder}/my"))
        assert f"@{folder}/my notes/" in await listing(pilot)
        await pilot.press("tab")
        assert pilot.app.composer.text == f'@"{folder}/my notes/'
        await until(lambda: listed(pilot) == [f"@{folder}/my notes/day one.txt"])
        await pilot.press("enter")
        assert pilot.app.composer.text == f'@"{folder}/my notes/day one.txt" '


async def test_files_are_completed_behind_an_at(folder):
    async with desk(folder) as pilot:
        await pilot.press(*"see @note")
        await until(lambda: listed(pilot) == ["@notes.md"])  # notes.raw is binary
        await pilot.press("enter")
        assert pilot.app.composer.text == "see @notes.md "
        await pilot.press(*"and @plan")
        await until(lambda: listed(pilot) == ["@my plan.txt"])
        await pilot.press("tab")
        assert pilot.app.composer.text == 'see @notes.md and @"my plan.txt" '
        await pilot.press("@")
        await until(lambda: listed(pilot) == ["@my plan.txt", "@notes.md", "@src/main.py"])
        await pilot.press(*"ann", "@")  # an address, not a file
        await asyncio.sleep(0.05)
        assert listed(pilot) == []


@pytest.mark.parametrize("size", [(80, 24), (20, 5)])
async def test_the_list_stays_on_the_screen(folder, size):
    async with desk(folder, size=size) as pilot:
        await pilot.press("/")
        await pilot.pause()
        region = pilot.app.screen.query_one(Completions).region
        assert region.height > 0
        assert pilot.app.screen.region.contains_region(region)


async def test_up_edits_the_last_message_where_nothing_is_written(folder):
    async with desk(folder) as pilot:
        await pilot.press("up")
        assert pilot.app.edits == 1
        composer = pilot.app.composer
        composer.edit_message("old words", 7)
        await pilot.pause()
        assert "editing" in str(composer.border_title)
        await pilot.press("!", "enter")
        assert (pilot.app.sent[0].text, pilot.app.sent[0].editing) == ("old words!", 7)
        assert "editing" not in str(composer.border_title)
        await pilot.press("x", "enter")
        assert pilot.app.sent[1].editing is None


async def test_escape_leaves_editing_and_brings_back_what_was_written(folder):
    async with desk(folder) as pilot:
        await pilot.press(*"new")
        pilot.app.composer.edit_message("old", 7)
        await pilot.press("x", "escape")
        assert pilot.app.composer.text == "new"
        assert pilot.app.composer.editing is None


async def test_sent_messages_are_recalled_as_in_a_shell(folder):
    async with desk(folder) as pilot:
        composer = pilot.app.composer
        await pilot.press("a", "enter", "b", "ctrl+j", "c", "enter", *"draft")
        await pilot.press("up")
        assert composer.text == "b\nc"
        await pilot.press("up")  # within the message first
        assert composer.text == "b\nc"
        await pilot.press("up")
        assert composer.text == "a"
        await pilot.press("up", "down", "down", "down")
        assert composer.text == "draft"
        assert pilot.app.edits == 0


async def test_the_counter_stands_in_the_border(folder):
    async with desk(folder) as pilot:
        pilot.app.composer.show_counter("12 of 4,096 tokens")
        assert str(pilot.app.composer.border_title) == "12 of 4,096 tokens"
        assert len(str(pilot.app.composer.border_subtitle)) <= 76


@pytest.mark.parametrize("text", ["word " * 200_000, "a line of text\n" * 70_000])
async def test_a_megabyte_is_pasted_as_one_message_without_delay(folder, text):
    async with desk(folder) as pilot:
        composer = pilot.app.composer
        with counted() as calls:
            composer.post_message(events.Paste(text))
            await pilot.press("x")
        assert calls.n < 60_000  # one for a line would be more
        assert composer.text in ("[pasted 1.0 MB]x", "[pasted 1.1 MB]x")
        await pilot.press("enter")
        assert texts(pilot) == [text + "x"]
        composer.restore(texts(pilot)[0])
        assert len(composer.text) < 50
        assert composer.message == text + "x"


async def test_control_characters_of_a_paste_are_shown(folder):
    async with desk(folder) as pilot:
        pilot.app.composer.post_message(events.Paste("one\r\ntwo\rthree\x1b[31m"))
        await pilot.pause()
        assert pilot.app.composer.text == "one\ntwo\nthree␛[31m"
        assert not pilot.app.sent


async def test_what_comes_from_elsewhere_is_shown_too(folder):
    async with desk(folder) as pilot:
        composer = pilot.app.composer
        composer.edit_message("old\x1b[31m\u202e", 7)
        assert composer.text == "old␛[31m<202E>"
        composer.clear()
        pilot.app._clipboard = "a\x1bb\r\nc" + "x" * LARGEST
        await pilot.press("ctrl+v")
        assert composer.text == "[pasted 20.0 kB]"
        assert composer.message.startswith("a␛b\nc")


async def test_characters_that_are_not_printable_are_typed_all_the_same(folder):
    typed = "👩\u200d🚀 क्\u200cष a\u3000b\u00a0c \ue0b0 🏴\U000e0067\U000e007f \U0001fae9"
    async with desk(folder) as pilot:
        for character in typed:
            pilot.app.post_message(events.Key("unknown", character))
        for character in "\x07\x1b\x9b\u202e\u2066\u2028":
            pilot.app.post_message(events.Key("unknown", character))
        await pilot.pause()
        assert pilot.app.composer.text == typed


BURSTS = {
    "home": ([*"abcdef", "home", "X", "end", "Y"], "XabcdefY"),
    "word": ([*"hello", "space", *"world", "ctrl+w", "X"], "hello X"),
    "line": ([*"old", "ctrl+u", *"new"], "new"),
    "rest": ([*"abc", "ctrl+j", *"de", "left", "left", "ctrl+k", "X", "ctrl+a", "Y"], "abc\nYX"),
    "arrows": ([*"ac", "left", "b", "right", "d", "backspace", "e"], "abce"),
    "delete": ([*"abc", "left", "left", "delete", "X"], "aXc"),
    "select": ([*"abc", "shift+left", "shift+left", "X", "f7", "Y"], "Y"),
    "undo": ([*"abc", "ctrl+u", "ctrl+z", "d"], "abcd"),
    "words": ([*"a b c", "ctrl+left", "X", "ctrl+left", "ctrl+left", "Y"], "a Yb Xc"),
    "word ahead": ([*"a bc d", "home", "alt+d", "alt+d", "X"], "X d"),
    "alt": ([*"ab", "alt+enter", "c", "alt+x", "d"], "ab\ncd"),
}


@pytest.mark.parametrize(("keys", "text"), BURSTS.values(), ids=BURSTS)
async def test_keys_of_one_burst_are_obeyed_in_order(folder, keys, text):
    async with desk(folder) as pilot:
        for key in keys:
            key = "space" if key == " " else key
            character = " " if key == "space" else key if len(key) == 1 else None
            pilot.app.post_message(events.Key(key, character))
        await pilot.pause()
        assert pilot.app.composer.text == text


async def test_a_list_that_came_late_takes_nothing_else(folder):
    async with desk(folder) as pilot:
        await pilot.press("/", "r")
        assert listed(pilot)[0] == "/regen"
        for key in (*"xyz", "enter"):
            pilot.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await pilot.pause()
        assert texts(pilot) == ["/rxyz"]
        for key in ("/", "e", "x", "tab"):
            pilot.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await pilot.pause()
        assert pilot.app.composer.text == "/export "


async def test_ctrl_u_and_ctrl_k_clear_the_line_however_many_rows_it_takes(folder):
    line = " ".join(["word"] * 60)
    async with desk(folder) as pilot:
        composer = pilot.app.composer
        composer.restore(f"first\n{line}")
        await pilot.press("ctrl+u")
        assert composer.text == "first\n"
        await pilot.press("ctrl+u", "ctrl+u")
        assert composer.text == ""
        composer.restore(f"{line}\nlast")
        composer.move_cursor((0, 10))
        await pilot.press("ctrl+k")
        assert composer.text == "word word \nlast"
        await pilot.press("ctrl+k")
        assert composer.text == "word word last"


@pytest.mark.parametrize("key", ["backspace", "ctrl+w"])
async def test_no_half_of_a_label_is_left(folder, key):
    async with desk(folder) as pilot:
        pilot.app.composer.post_message(events.Paste("y" * 30_000))
        await pilot.press(key)
        assert pilot.app.composer.text == ""


async def test_a_bare_at_lists_files_whatever_else_is_there(folder):
    for number in range(12):
        (folder / f"a{number}").write_bytes(b"\0")
    os.mkfifo(folder / "a_pipe")  # reading it would wait for ever
    async with desk(folder) as pilot:
        await pilot.press("@")
        await until(lambda: listed(pilot) == ["@my plan.txt", "@notes.md", "@src/main.py"])


async def test_a_bare_at_tells_where_no_files_are(tmp_path):
    async with desk(tmp_path) as pilot:
        await pilot.press("@")
        await until(lambda: listed(pilot) == ["there are no text files in this folder"])
        await pilot.press("space", *"home", "enter")
        assert texts(pilot) == ["@ home"]


def test_labels_of_different_texts_differ():
    pastes = Pastes()
    first, second = "a" * (LARGEST + 1), "b" * (LARGEST + 1)
    labels = [pastes.pasted(text) for text in (first, second, first)]
    assert labels[0] == labels[2] != labels[1]
    assert pastes.expanded(f"x {labels[1]} {labels[0]}") == f"x {second} {first}"
    assert pastes.expanded("[pasted 9 MB]") == "[pasted 9 MB]"
    assert pastes.pasted("short") == pastes.collapsed("short") == "short"


LONG_LINE, LONG_LINES = "word " * 9_000, "a line of text\n" * 4_000


@pytest.mark.parametrize(
    "text",
    [
        f"Sum this up: {LONG_LINE} please",
        f"Sum this up:\n\n{LONG_LINES}\nplease",
        f"{LONG_LINE}and this {LONG_LINES}please",
        LONG_LINE,
        "x" * 30_000,
        "\n" * 30_000,
    ],
)
def test_a_large_text_is_read_and_written_on_at_its_ends(text):
    pastes = Pastes()
    short = pastes.collapsed(text)
    assert len(short) < 400
    assert pastes.expanded(short) == text
    assert pastes.expanded(f"Now {short}!") == f"Now {text}!"
    for typed in ("Sum this up:", "please"):
        assert (typed in short) == (typed in text)


async def test_what_was_typed_around_a_paste_is_not_part_of_its_label(folder):
    async with desk(folder) as pilot:
        composer = pilot.app.composer
        await pilot.press(*"see")
        composer.post_message(events.Paste(LONG_LINE))
        await pilot.press(*"ok", "enter")
        shown = "see[pasted 45.0 kB]ok"
        for bring in (
            composer.look_back,
            lambda: composer.restore(texts(pilot)[0]),
            lambda: composer.edit_message(texts(pilot)[0], 1),
        ):
            composer.clear()
            bring()
            assert composer.text == shown
            assert composer.message == f"see{LONG_LINE}ok"


async def test_what_was_taken_away_comes_back_with_up(folder):
    async with desk(folder) as pilot:
        composer = pilot.app.composer
        composer.post_message(events.Paste(LONG_LINE))
        await pilot.press(*"ok", "left")
        assert composer.empty()
        await pilot.press("up", "!")
        assert composer.message == f"{LONG_LINE}ok!"
        assert composer.empty()
        await pilot.press("ctrl+z")
        assert composer.message == f"{LONG_LINE}ok!"
        await pilot.press("enter", "up")
        assert pilot.app.edits == 1  # what was sent is not brought back
        composer.edit_message("old", 7)
        assert not composer.empty()
        assert composer.editing is None


def test_history_ends_on_both_sides():
    history = History(["a"])
    history.add("a")
    assert [history.back("w"), history.back("a")] == ["a", None]
    assert [history.forward(), history.forward()] == ["w", None]
    assert History().back("") is None


@pytest.mark.parametrize("rows", [5, 24])
async def test_a_large_paste_can_be_undone_and_done_again(tmp_path, rows):
    """Where the scrollbar goes while the cursor is still behind what is left of the text."""
    async with desk(tmp_path, size=(20, rows)) as pilot:
        composer = pilot.app.query_one(Composer)
        pilot.app.post_message(events.Paste("line\n" * 20))
        await pilot.pause(0.1)
        assert composer.show_vertical_scrollbar
        await pilot.press("ctrl+z")
        assert composer.text == ""
        await pilot.press("ctrl+y")
        assert composer.text.count("line") == 20
