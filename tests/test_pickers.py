"""The screen that chooses a model, driven by Textual's pilot."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from counting import counted
from rich.cells import cell_len
from screencases import (
    GB,
    NOT_CLOSED,
    SMALL,
    TINY,
    WIDE,
    given,
    notices,
    press,
    seen,
    showing,
    until,
    write,
)
from test_library import SHAPE, write_model
from textual.pilot import Pilot
from textual.widgets import Input

from specfit.app import library
from specfit.app.library import HeadEntry, Memory, ModelEntry
from specfit.app.widgets import model_picker
from specfit.app.widgets.model_picker import Choice, ModelPicker
from specfit.app.widgets.model_table import MOST_ROWS, ModelTable
from specfit.models import bundled_head

# The model picker

MODELS = [
    ModelEntry(
        Path("/m/tiny.gguf"), "Tiny", "qwen3moe", "Q4_0", 23 * 10**6, bundled=True, n_experts=128
    ),
    ModelEntry(
        Path("/m/Qwen3-30B-A3B-Q4_K_M.gguf"),
        "Qwen3 30B A3B",
        "qwen3moe",
        "Q4_K_M",
        18_600_000_000,
        n_experts=128,
        n_experts_used=8,
        context_length=40960,
    ),
    ModelEntry(Path("/m/日本語モデル😀e\u0301.gguf"), "日本語", "llama", "F16", 2 * GB),
    ModelEntry(
        Path("/m/cut.gguf"), "cut", bytes=5, problem="/m/cut.gguf is cut short; copy it again."
    ),
    ModelEntry(Path("/m/evil.gguf"), "\x1b]0;owned\x07[red]x[/]", "llama", "Q8_0", GB),
]
HEADS = [
    HeadEntry(bundled_head()),
    HeadEntry(Path("/h/models--a--wrong/snapshots/1")),
    HeadEntry(Path("/h/models--a--right/snapshots/1")),
]


def problem(model: ModelEntry, head: HeadEntry) -> str:
    if (model.bundled and head == HEADS[0]) or ("30B" in model.label and head == HEADS[2]):
        return ""
    return f"The draft head {head.path} was made for another model."


@pytest.fixture
def machine(monkeypatch):
    """A machine with the models above and 12 GB free, and a picker in a hurry."""
    monkeypatch.setattr(model_picker, "UPDATES_PER_S", 50)
    monkeypatch.setattr(model_picker, "SETTLED_S", 0.01)
    monkeypatch.setattr(library, "find", lambda _folders: iter([*MODELS, *HEADS]))
    monkeypatch.setattr(library, "free_memory", lambda: Memory(12 * GB))
    monkeypatch.setattr(library, "head_problem", problem)


async def looked(pilot: Pilot[None]) -> None:
    """All is found, and all heads are tried with the highlighted model."""
    screen = pilot.app.screen
    await until(lambda: not screen._scanning and len(screen._models) >= len(MODELS))
    await until(lambda: not screen._is_waiting())
    await pilot.pause(0.05)


@pytest.mark.parametrize("size", [WIDE, SMALL])
async def test_the_table_says_what_each_model_is_and_whether_it_fits(machine, size):
    async with showing(ModelPicker(), size) as pilot:
        await looked(pilot)
        text = await seen(pilot, "damaged", "4 models · 3 heads · 1 damaged")
        row = next(line for line in text.splitlines() if "Qwen3-30B" in line)
        assert [word for word in row.strip("│ ").split() if "Qwen3" not in word] == [
            *("qwen3moe", "Q4_K_M", "18.6", "GB", "128/8", "40k", "too", "big")
        ]
        assert "5 models" not in text
        assert {cell_len(line) for line in text.splitlines()} == {size[0]}


async def test_escape_sequences_and_markup_of_a_file_are_only_shown(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await write(pilot, "evil")
        await looked(pilot)
        text = await seen(pilot, "␛]0;owned␇[red]x[/]")
        assert not {"\x1b", "\x07"} & set(text)


async def test_the_bundled_model_is_chosen_with_its_own_head(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await seen(pilot, "● EAGLE-3 head bundled/eagle3")
        await press(pilot, "enter")
        assert await given(pilot) == Choice(None, None)


async def test_typing_filters_and_enter_takes_the_head_that_fits(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await write(pilot, "30b moe")
        await looked(pilot)
        assert [entry.label for entry in pilot.app.screen.query_one(ModelTable).entries] == [
            "Qwen3-30B-A3B-Q4_K_M"
        ]
        await seen(pilot, "too big: 18.6 GB, 12.0 GB free", "● EAGLE-3 head a/right")
        await press(pilot, "enter")
        assert await given(pilot) == Choice(MODELS[1].path, HEADS[2].path, 40960)


async def test_enter_waits_until_it_is_known_which_heads_fit(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        for key in (*"30b", "enter"):
            pilot.app.simulate_key(key)
        assert await given(pilot) == Choice(MODELS[1].path, HEADS[2].path, 40960)


async def test_drafts_can_be_done_without(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await press(pilot, "down")
        await looked(pilot)
        await press(pilot, "tab", "down", "enter")
        assert await given(pilot) == Choice(MODELS[1].path, None, 40960)


async def test_a_head_that_does_not_fit_says_why_and_is_refused(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await press(pilot, "tab", "end", "enter")
        await seen(pilot, "made for another model")
        assert "made for another model" in notices(pilot)[-1]
        assert pilot.app.result is NOT_CLOSED


async def test_a_damaged_model_says_why_and_is_refused(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await write(pilot, "cut")
        await looked(pilot)
        await seen(pilot, "Cannot be used: /m/cut.gguf is cut short")
        await press(pilot, "enter")
        assert "cut short" in notices(pilot)[-1]
        assert pilot.app.result is NOT_CLOSED


async def test_the_loaded_model_is_where_the_cursor_begins(machine):
    async with showing(ModelPicker(current=MODELS[2].path)) as pilot:
        await looked(pilot)
        assert pilot.app.screen.query_one(ModelTable).highlighted == MODELS[2]
        await seen(pilot, "loaded now")


async def test_escape_leaves_everything_as_it_is(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await press(pilot, "down", "escape")
        assert await given(pilot) is None


async def test_any_path_can_be_typed(machine, tmp_path):
    path = write_model(tmp_path / "typed.gguf", **SHAPE)
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        pilot.app.screen.query_one(Input).value = str(path)
        await press(pilot, "enter")
        await until(lambda: pilot.app.screen.query_one(ModelTable).highlighted.path == path)
        assert pilot.app.screen.query_one(Input).value == ""
        await looked(pilot)
        await press(pilot, "enter")
        assert await given(pilot) == Choice(path, None, 40960)


async def test_a_path_to_nothing_is_told(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await write(pilot, "/no/where")
        await press(pilot, "enter")
        await until(lambda: notices(pilot))
        assert "/no/where" in notices(pilot)[-1]


async def test_a_second_click_chooses(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await pilot.click(ModelTable, offset=(3, 2))
        await looked(pilot)
        assert pilot.app.result is NOT_CLOSED
        await pilot.click(ModelTable, offset=(3, 2))
        assert await given(pilot) == Choice(MODELS[1].path, HEADS[2].path, 40960)


async def test_thousands_of_models_do_not_hold_the_keys_up(machine, monkeypatch):
    many = [
        ModelEntry(Path(f"/m/model-{n:04}.gguf"), f"M{n}", "llama", "Q8_0", GB) for n in range(4000)
    ]
    monkeypatch.setattr(library, "find", lambda _folders: iter(many))
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await seen(pilot, f"{4000 - MOST_ROWS:,} not shown")
        with counted() as calls:
            await write(pilot, "3999")
        assert pilot.app.screen.query_one(ModelTable).highlighted == many[-1]
        assert calls.n < 4 * 4000 * 40  # four keys, and what is looked at of a model


async def test_a_scan_in_progress_is_seen_and_ends_with_the_screen(machine, monkeypatch):
    taken = []

    def endless(_folders):
        while True:
            taken.append(1)
            time.sleep(0.01)
            yield MODELS[1]

    monkeypatch.setattr(library, "find", endless)
    async with showing(ModelPicker()) as pilot:
        await seen(pilot, "looking")
        await press(pilot, "escape")
        assert await given(pilot) is None
        await asyncio.sleep(0.05)
        before = len(taken)
        await asyncio.sleep(0.1)
        assert len(taken) == before


async def test_the_picker_bears_a_tiny_terminal(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await pilot.resize_terminal(*TINY)
        await press(pilot, "down", "tab", "down", "pageup", "a")
        await pilot.resize_terminal(*WIDE)
        await press(pilot, "escape")
        assert await given(pilot) is None
