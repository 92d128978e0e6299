"""The screens that choose a model, parameters and a system prompt, driven by Textual's pilot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from test_library import SHAPE, write_model
from textual import events
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Button, Input, OptionList, Select, TextArea

from specfit.app import library
from specfit.app.library import HeadEntry, Memory, ModelEntry
from specfit.app.parameters import Parameters
from specfit.app.system_prompts import read_prompts, save_prompt
from specfit.app.widgets import model_picker
from specfit.app.widgets.model_picker import Choice, ModelPicker
from specfit.app.widgets.model_table import MOST_ROWS, ModelTable
from specfit.app.widgets.parameter_panel import ParameterPanel
from specfit.app.widgets.system_prompt_screen import SystemPromptScreen
from specfit.models import bundled_head

WIDE, SMALL, TINY = (120, 40), (80, 24), (20, 5)
PATIENCE_S = 10
GB = 10**9
NOT_CLOSED = object()


class Host(App[None]):
    """Shows one screen and keeps what it gives."""

    def __init__(self, screen: Screen[object]) -> None:
        super().__init__()
        self._shown = screen
        self.result: object = NOT_CLOSED

    def on_mount(self) -> None:
        self.push_screen(self._shown, self._keep)

    def _keep(self, result: object) -> None:
        self.result = result


@asynccontextmanager
async def showing(screen: Screen, size=SMALL) -> AsyncIterator[Pilot[None]]:
    async with Host(screen).run_test(size=size) as pilot:
        await pilot.pause(0.02)
        yield pilot


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Presses keys at once; the pilot's own way rests after each."""
    for key in keys:
        pilot.app.simulate_key(key)
    await pilot.pause(0.02)
    await pilot.pause(0.02)


async def write(pilot: Pilot[None], text: str) -> None:
    """Writes into the focused field."""
    pilot.app.focused.insert_text_at_cursor(text)
    await pilot.pause(0.02)


async def until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, "nothing happened"
        await asyncio.sleep(0.01)


async def given(pilot: Pilot[None]) -> object:
    """What the screen gives when it closes."""
    await until(lambda: pilot.app.result is not NOT_CLOSED)
    return pilot.app.result


def screen_text(pilot: Pilot[None]) -> str:
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def notices(pilot: Pilot[None]) -> list[str]:
    return [notice.message for notice in pilot.app._notifications]


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
        text = screen_text(pilot)
        row = next(line for line in text.splitlines() if "Qwen3-30B" in line)
        assert [word for word in row.strip("│ ").split() if "Qwen3" not in word] == [
            *("qwen3moe", "Q4_K_M", "18.6", "GB", "128/8", "40k", "too", "big")
        ]
        assert "damaged" in text
        assert "5 models" not in text
        assert "4 models · 3 heads · 1 damaged" in text
        assert {cell_len(line) for line in text.splitlines()} == {size[0]}


async def test_escape_sequences_and_markup_of_a_file_are_only_shown(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await write(pilot, "evil")
        await looked(pilot)
        text = screen_text(pilot)
        assert "␛]0;owned␇[red]x[/]" in text
        assert not {"\x1b", "\x07"} & set(text)


async def test_the_bundled_model_is_chosen_with_its_own_head(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        assert "● EAGLE-3 head bundled/eagle3" in screen_text(pilot)
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
        text = screen_text(pilot)
        assert "too big: 18.6 GB, 12.0 GB free" in text
        assert "● EAGLE-3 head a/right" in text
        await press(pilot, "enter")
        assert await given(pilot) == Choice(MODELS[1].path, HEADS[2].path)


async def test_enter_waits_until_it_is_known_which_heads_fit(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        for key in (*"30b", "enter"):
            pilot.app.simulate_key(key)
        assert await given(pilot) == Choice(MODELS[1].path, HEADS[2].path)


async def test_drafts_can_be_done_without(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await press(pilot, "down")
        await looked(pilot)
        await press(pilot, "tab", "down", "enter")
        assert await given(pilot) == Choice(MODELS[1].path, None)


async def test_a_head_that_does_not_fit_says_why_and_is_refused(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await press(pilot, "tab", "end", "enter")
        await pilot.pause(0.02)
        assert "made for another model" in screen_text(pilot)
        assert "made for another model" in notices(pilot)[-1]
        assert pilot.app.result is NOT_CLOSED


async def test_a_damaged_model_says_why_and_is_refused(machine):
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        await write(pilot, "cut")
        await looked(pilot)
        assert "Cannot be used: /m/cut.gguf is cut short" in screen_text(pilot)
        await press(pilot, "enter")
        assert "cut short" in notices(pilot)[-1]
        assert pilot.app.result is NOT_CLOSED


async def test_the_loaded_model_is_where_the_cursor_begins(machine):
    async with showing(ModelPicker(current=MODELS[2].path)) as pilot:
        await looked(pilot)
        assert pilot.app.screen.query_one(ModelTable).highlighted == MODELS[2]
        assert "loaded now" in screen_text(pilot)


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
        assert await given(pilot) == Choice(path, None)


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
        assert await given(pilot) == Choice(MODELS[1].path, HEADS[2].path)


async def test_thousands_of_models_do_not_hold_the_keys_up(machine, monkeypatch):
    many = [
        ModelEntry(Path(f"/m/model-{n:04}.gguf"), f"M{n}", "llama", "Q8_0", GB) for n in range(4000)
    ]
    monkeypatch.setattr(library, "find", lambda _folders: iter(many))
    async with showing(ModelPicker()) as pilot:
        await looked(pilot)
        assert f"{4000 - MOST_ROWS:,} not shown" in screen_text(pilot)
        began = time.perf_counter()
        await write(pilot, "3999")
        took = time.perf_counter() - began
        assert pilot.app.screen.query_one(ModelTable).highlighted == many[-1]
        assert took < 2


async def test_a_scan_in_progress_is_seen_and_ends_with_the_screen(machine, monkeypatch):
    taken = []

    def endless(_folders):
        while True:
            taken.append(1)
            time.sleep(0.01)
            yield MODELS[1]

    monkeypatch.setattr(library, "find", endless)
    async with showing(ModelPicker()) as pilot:
        await until(lambda: "looking" in screen_text(pilot))
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


# The parameter panel

# A Sampling's fields: the engine itself takes seconds to import.
RECOMMENDED = SimpleNamespace(temp=0.6, top_k=20, top_p=0.95, min_p=0.0)


def value_of(pilot: Pilot[None], name: str) -> str:
    return pilot.app.screen.query_one(f"#{name}", Input).value


@pytest.mark.parametrize("size", [WIDE, SMALL])
async def test_the_panel_shows_values_and_what_empty_fields_mean(size):
    panel = ParameterPanel(Parameters(top_k=7, thinking=False), RECOMMENDED)
    async with showing(panel, size) as pilot:
        text = screen_text(pilot)
        assert "0.6 (the model's own)" in text
        assert (value_of(pilot, "top_k"), value_of(pilot, "temp")) == ("7", "")
        assert "own values" in text
        for seen in ("Thinking", "Speculation", "Seed", "How daring", "Apply", "Cancel"):
            assert seen in text
        assert all(field.tooltip for field in pilot.app.screen.query(Input))
        assert all(field.tooltip for field in pilot.app.screen.query(Select))


async def test_enter_applies_what_the_fields_say():
    async with showing(ParameterPanel(Parameters(seed=3, spec="off"), RECOMMENDED)) as pilot:
        await write(pilot, "0.25")
        await press(pilot, "down")
        await write(pilot, "40")
        await press(pilot, "enter")
        expected = Parameters(temp=0.25, top_k=40, seed=3, spec="off")
        assert await given(pilot) == expected


async def test_nothing_changed_gives_the_same_values():
    values = Parameters(temp=1 / 3, top_k=1, seed=9, max_tokens=5, thinking=True, spec="chain:2")
    async with showing(ParameterPanel(values)) as pilot:
        await press(pilot, "enter")
        assert await given(pilot) == values


async def test_a_wrong_value_is_told_at_once_and_not_applied():
    async with showing(ParameterPanel(Parameters(), RECOMMENDED)) as pilot:
        await write(pilot, "hot")
        await pilot.pause(0.02)
        assert "Temperature: 'hot' will not do: give a number" in screen_text(pilot)
        await press(pilot, "down")
        await write(pilot, "5")
        await press(pilot, "enter")
        await pilot.pause(0.02)
        assert pilot.app.result is NOT_CLOSED
        assert pilot.app.focused.id == "temp"
        await press(pilot, "escape")
        assert await given(pilot) is None


async def test_a_preset_fills_the_fields_and_leaves_the_rest():
    async with showing(ParameterPanel(Parameters(seed=4), RECOMMENDED)) as pilot:
        await press(pilot, "shift+tab", "enter")
        await press(pilot, "down", "down", "enter")
        await pilot.pause(0.02)
        assert [value_of(pilot, name) for name in ("temp", "top_p", "top_k", "min_p")] == [
            *("0.7", "0.8", "20", "0")
        ]
        await press(pilot, "tab", "enter")
        assert await given(pilot) == Parameters(0.7, 20, 0.8, 0.0, seed=4, thinking=False)


async def test_a_changed_preset_is_the_users_own():
    async with showing(ParameterPanel(Parameters(), RECOMMENDED)) as pilot:
        preset = pilot.app.screen.query_one("#preset", Select)
        assert preset.value == "The model's own"
        await press(pilot, "0")
        await pilot.pause(0.02)
        assert preset.value == "Greedy"
        await press(pilot, ".", "1")
        await pilot.pause(0.02)
        assert preset.value is Select.NULL


async def test_a_pasted_escape_sequence_is_only_shown():
    async with showing(ParameterPanel(Parameters())) as pilot:
        pilot.app.focused.post_message(events.Paste("\x1b[2Jx\nsecond line"))
        await pilot.pause(0.02)
        assert value_of(pilot, "temp") == "␛[2Jx"
        assert "\x1b" not in screen_text(pilot)


async def test_the_panel_bears_a_tiny_terminal():
    async with showing(ParameterPanel(Parameters())) as pilot:
        await pilot.resize_terminal(*TINY)
        await press(pilot, *["down"] * 12, "1", "escape")
        assert await given(pilot) is None


# System prompts


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "prompts.json"
    save_prompt(path, "Brief", "Be brief.")
    save_prompt(path, "日本", "日本語で答えて 😀")
    return path


@pytest.mark.parametrize("size", [WIDE, SMALL])
async def test_a_saved_prompt_is_used(prompts, size):
    async with showing(SystemPromptScreen("", prompts), size) as pilot:
        assert "日本" in screen_text(pilot)
        await press(pilot, "down", "down")
        await pilot.pause(0.02)
        assert "日本語で答えて" in screen_text(pilot)
        await press(pilot, "enter")
        assert await given(pilot) == "日本語で答えて 😀"


async def test_the_conversations_prompt_is_where_the_cursor_begins(prompts):
    async with showing(SystemPromptScreen("Be brief.", prompts)) as pilot:
        assert pilot.app.screen.query_one(OptionList).highlighted == 1
        await press(pilot, "escape")
        assert await given(pilot) is None


async def test_a_prompt_is_written_saved_and_changed(prompts):
    async with showing(SystemPromptScreen("Mine.", prompts)) as pilot:
        await press(pilot, "tab")
        await write(pilot, "New")
        await press(pilot, "ctrl+s")
        await pilot.pause(0.02)
        assert read_prompts(prompts)["New"] == "Mine."
        pilot.app.screen.query_one(TextArea).text = "Other."
        await pilot.pause(0.02)
        await press(pilot, "ctrl+s")
        await pilot.pause(0.02)
        assert read_prompts(prompts)["New"] == "Other."
        await press(pilot, "escape")
        assert await given(pilot) is None


async def test_an_emptied_prompt_means_none(prompts):
    async with showing(SystemPromptScreen("Mine.", prompts)) as pilot:
        pilot.app.screen.query_one(TextArea).text = "  "
        await pilot.pause(0.02)
        pilot.app.screen.query_one("#use", Button).press()
        assert await given(pilot) == ""


async def test_deleting_needs_a_second_word(prompts):
    async with showing(SystemPromptScreen("", prompts)) as pilot:
        await press(pilot, "down", "delete")
        await pilot.pause(0.02)
        assert "Brief" in read_prompts(prompts)
        await press(pilot, "delete")
        await pilot.pause(0.02)
        assert list(read_prompts(prompts)) == ["日本"]
        assert "Brief" not in str(pilot.app.screen.query_one(OptionList).options[1].prompt)


async def test_unsaved_text_stays_while_looking_at_others_and_is_asked_about(prompts):
    async with showing(SystemPromptScreen("", prompts)) as pilot:
        await press(pilot, "down")
        pilot.app.screen.query_one(TextArea).text = "Half"
        await pilot.pause(0.02)
        await press(pilot, "down", "up")
        await pilot.pause(0.02)
        assert pilot.app.screen.query_one(TextArea).text == "Half"
        await press(pilot, "escape")
        await pilot.pause(0.02)
        assert pilot.app.result is NOT_CLOSED
        await press(pilot, "escape")
        assert await given(pilot) is None
        assert read_prompts(prompts)["Brief"] == "Be brief."


async def test_a_damaged_file_of_prompts_is_told(tmp_path):
    (tmp_path / "prompts.json").write_text("{")
    async with showing(SystemPromptScreen("Mine.", tmp_path / "prompts.json")) as pilot:
        assert "not valid JSON" in notices(pilot)[-1]
        await press(pilot, "enter")
        assert await given(pilot) == "Mine."


async def test_escape_sequences_in_prompts_are_only_shown(tmp_path):
    save_prompt(tmp_path / "p.json", "\x1b[31mred", "x")
    (tmp_path / "q.json").write_text('{"\\u001b[2J": "\\u001b]0;t\\u0007"}')
    for name in ("p.json", "q.json"):
        async with showing(SystemPromptScreen("\x1b[1m", tmp_path / name)) as pilot:
            await press(pilot, "down")
            await pilot.pause(0.02)
            assert not {"\x1b", "\x07"} & set(screen_text(pilot))


async def test_the_prompts_bear_a_tiny_terminal(prompts):
    async with showing(SystemPromptScreen("", prompts)) as pilot:
        await pilot.resize_terminal(*TINY)
        await press(pilot, "down", "tab", "a", "tab", "b", "escape", "escape")
        assert await given(pilot) is None
