"""What people do in the chat, from key to screen, wide and in 80x24, over a scripted engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from flowcases import Scripted, answers, notices, opened, press, say, scripted, setup_of
from screencases import SMALL, WIDE, screen_text, seen, until
from storecases import talk
from textual.pilot import Pilot
from textual.widgets import Input
from textual.widgets._toast import Toast

from specfit.app import library
from specfit.app.chat_setup import set_up
from specfit.app.library import Memory, ModelEntry
from specfit.app.options import ModelChoice
from specfit.app.parameters import Parameters
from specfit.app.session import Session
from specfit.app.settings import read_settings
from specfit.app.store import Store
from specfit.app.widgets.composer import Composer
from specfit.app.widgets.conversation import Conversation
from specfit.app.widgets.note import Note, Unseen
from specfit.app.widgets.status_line import StatusLine

SIZES = pytest.mark.parametrize("size", [WIDE, SMALL])
MARKDOWN = "# Tea\n\nIt is **hot**:\n\n```python\ndef brew(leaves):\n    return 'tea'\n```\n"
THOUGHT = "It grows in hills.</think>Tea grows in hills."


def layout_holds(pilot: Pilot[None]) -> bool:
    """Conversation, status line and input stand below each other and fill the screen."""
    parts = [pilot.app.query_one(kind).region for kind in (Conversation, StatusLine, Composer)]
    ends = [part.bottom for part in parts]
    return [part.y for part in parts] == [0, *ends[:-1]] and ends[-1] == pilot.app.size.height


def styles_of(pilot: Pilot[None], text: str) -> list[str]:
    """The colours of the line on the screen that begins with `text`."""
    for strip in pilot.app.screen._compositor.render_strips():
        if strip.text.strip().startswith(text):
            return [str(s.style.color) for s in strip if s.text.strip() and s.style]
    return []


def underlined(pilot: Pilot[None]) -> list[str]:
    strips = pilot.app.screen._compositor.render_strips()
    return [s.text for strip in strips for s in strip if s.style and s.style.underline]


# Conversation


@SIZES
async def test_a_question_is_answered_in_markdown_with_code_in_colours(size):
    async with scripted(Scripted(MARKDOWN), size) as pilot:
        await say(pilot, "What is tea?")
        screen = await seen(pilot, "def brew(leaves):", "It is hot:", "2.10 tokens a step")
        assert "#" not in screen and "```" not in screen
        assert len(set(styles_of(pilot, "def brew"))) > 2
        assert layout_holds(pilot)


async def test_thinking_is_asked_for_folded_timed_and_not_sent_again():
    engine = Scripted(THOUGHT, opens=True)
    async with scripted(engine) as pilot:
        await say(pilot, "/think")
        await say(pilot, "Where does tea grow?")
        assert engine.asked[-1].thinking is True
        screen = await seen(pilot, "▸ Thought for 0 s", "Tea grows in hills.")
        assert "It grows in hills." not in screen
        await press(pilot, "alt+t")
        await seen(pilot, "It grows in hills.")
        await say(pilot, "/no_think")
        await say(pilot, "Why?")
        assert engine.asked[-1].thinking is False
        said = [message["content"] for message in engine.asked[-1].messages]
        assert said == ["Where does tea grow?", "Tea grows in hills.", "Why?"]


async def test_keys_are_echoed_at_once_while_200_tokens_a_second_stream():
    async with scripted(Scripted("many words " * 2000, per_s=200)) as pilot:
        composer = pilot.app.composer
        composer.insert("Go on.")
        await press(pilot, "enter")
        await until(lambda: pilot.app.exchange is not None and answers(pilot)[0])
        passes = []  # of the event loop, in which there may be tokens
        for _ in range(20):
            before = composer.text
            pilot.app.simulate_key("x")
            passes.append(0)
            while composer.text == before:
                await asyncio.sleep(0)
                passes[-1] += 1
            await asyncio.sleep(0.01)
        assert pilot.app.exchange is not None
        await press(pilot, "escape")
        assert max(passes) < 20


# Branches and the store


async def test_versions_are_gone_through_by_key_and_by_number():
    async with scripted(Scripted("Hot leaves.", "A drink.", "A plant.")) as pilot:
        await say(pilot, "What is tea?")
        await press(pilot, "ctrl+r")
        await seen(pilot, "version 2/2 (Alt+Left Alt+Right)")
        await until(lambda: pilot.app.exchange is None)
        await say(pilot, "/regen")
        await seen(pilot, "version 3/3")
        await until(lambda: pilot.app.exchange is None)
        await press(pilot, "alt+left")
        await seen(pilot, "version 2/3")
        assert answers(pilot) == ["A drink."]
        await say(pilot, "/branch 1")
        await seen(pilot, "version 1/3")
        assert answers(pilot) == ["Hot leaves."]


@SIZES
async def test_a_message_is_found_in_another_conversation_and_opened(size, store):
    talk(store, "What is tea?", "Leaves in hot water.")
    talk(store, "What is snow?", "Frozen water.")
    async with scripted(Scripted("Yes."), size, store=store) as pilot:
        await press(pilot, "ctrl+f")
        await until(lambda: isinstance(pilot.app.focused, Input))
        await press(pilot, *"leaves")
        await seen(pilot, "What is tea? · model")
        await press(pilot, "enter")
        await until(lambda: answers(pilot) == ["Leaves in hot water."])
        await seen(pilot, "What is tea?")
        await until(lambda: pilot.app.conversation.selected is not None)
        assert pilot.app.conversation.selected.text == "Leaves in hot water."
        await say(pilot, "/rename All  about tea")
        await until(lambda: "All about tea" in [one.title for one in store.conversations()])


async def test_a_conversation_is_chosen_and_another_deleted(store):
    talk(store, "What is tea?", "Leaves in hot water.")
    talk(store, "What is snow?", "Frozen water.")
    async with scripted(Scripted("Yes."), store=store) as pilot:
        await press(pilot, "ctrl+o")
        await seen(pilot, "2 messages  What is snow?")
        await press(pilot, *"tea")
        await until(lambda: "What is snow?" not in screen_text(pilot))
        await seen(pilot, "2 messages  What is tea?")
        await press(pilot, "enter")
        await until(lambda: answers(pilot) == ["Leaves in hot water."])
        await press(pilot, "ctrl+o")
        screen = await seen(pilot, "What is snow?")
        await press(pilot, *(["down"] if "tea" not in screen else []))
        await press(pilot, "ctrl+d", "enter")
        await until(lambda: len(store.conversations()) == 1)


@pytest.mark.parametrize("words", ["", "tea"])
async def test_a_conversation_is_gone_on_with_from_the_shell(words, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    store = Store()
    talk(store, "What is tea?", "Leaves in hot water.")
    store.close()
    model = ModelChoice(None, None, None, False, None, None, 1, None)
    setup = set_up(model, Parameters(), read_settings(tmp_path / "config.toml"), None, words)
    engine = Scripted("In Yunnan.")
    object.__setattr__(setup, "load", engine.load)
    async with opened(setup) as pilot:
        assert answers(pilot) == ["Leaves in hot water."]
        await say(pilot, "Where from?")
        assert engine.asked[-1].messages[0]["content"] == "What is tea?"


@pytest.mark.parametrize("is_lost", [False, True])
def test_continue_opens_what_is_rescued_of_a_damaged_store(is_lost, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    store = Store()
    talk(store, *(f"{number} because. " * 200 for number in range(60)))
    store.close()
    data = bytearray(store.path.read_bytes())
    for page in range(0 if is_lost else 4096 * 9, len(data), 4096 * (1 if is_lost else 8)):
        data[page : page + 4096] = b"U" * 4096
    store.path.write_bytes(data)
    model = ModelChoice(None, None, None, False, None, None, 1, None)
    setup = set_up(model, Parameters(), read_settings(tmp_path / "config.toml"), None, "")
    (told,) = setup.notices
    assert told.count("was damaged") == 1
    assert bool(setup.session.path) != is_lost


async def test_what_is_seen_of_a_conversation_is_counted_and_one_alone_opens_at_once(store):
    talk(store, "Dark matter?", "Nobody knows.")
    async with scripted(Scripted("Blue.", "Red."), store=store) as pilot:
        await say(pilot, "/system Be brief.")
        await say(pilot, "Which sky?")
        await press(pilot, "ctrl+r")
        await until(lambda: pilot.app.exchange is None and answers(pilot) == ["Red."])
        assert [one.shown for one in store.conversations()] == [2, 2]
        assert store.conversations()[0].count == 4
        await say(pilot, "/open dark")
        await until(lambda: answers(pilot) == ["Nobody knows."])
        assert not pilot.app.screen.is_modal


async def test_what_can_be_done_with_a_selected_message_is_said():
    async with scripted(Scripted("Yes.")) as pilot:
        composer = pilot.app.composer
        await say(pilot, "Is it?")
        await say(pilot, "And now?")
        await press(pilot, "alt+up")
        await until(lambda: "Ctrl+R answers anew · Alt+C copies" in str(composer.border_subtitle))
        await press(pilot, "alt+up", "alt+up", "alt+up")
        await until(lambda: str(composer.border_subtitle).startswith("Up edits"))
        await press(pilot, "up")
        await until(lambda: "what follows stays in the version" in str(composer.border_title))
        await press(pilot, "escape", "escape")
        await until(lambda: "Enter sends" in str(composer.border_subtitle))


async def test_thinking_is_not_offered_where_the_model_has_none():
    engine = Scripted("Yes.")
    for engine.model.knows_thinking in (True, False):
        async with scripted(engine, (80, 40)) as pilot:
            await press(pilot, "f3")
            screen = await seen(pilot, "Speculation")
            assert ("as the model likes" in screen) == engine.model.knows_thinking


# Keys and commands


@SIZES
async def test_a_command_is_found_in_the_palette(size):
    async with scripted(Scripted("Hot leaves."), size) as pilot:
        await say(pilot, "What is tea?")
        await press(pilot, "ctrl+p")
        await until(lambda: isinstance(pilot.app.focused, Input))
        await press(pilot, *"/stats")
        await seen(pilot, "Show the numbers of the last answer")
        await press(pilot, "enter")
        await until(lambda: "tok/s" in str(pilot.app.query(Note).last().render()))
        assert not pilot.app.screen.is_modal


async def test_the_answer_or_its_code_or_what_is_selected_is_copied():
    async with scripted(Scripted(MARKDOWN)) as pilot:
        await say(pilot, "What is tea?")
        for keys, copied in (
            (("alt+c",), MARKDOWN),
            (("alt+k",), "def brew(leaves):\n    return 'tea'\n"),
            (("alt+up", "alt+up", "alt+c"), "What is tea?"),
        ):
            await press(pilot, *keys)
            await until(lambda copied=copied: pilot.app.clipboard.strip() == copied.strip())
        await press(pilot, "escape")
        await say(pilot, "/copy code")
        await until(lambda: pilot.app.clipboard.startswith("def brew"))


async def test_keys_are_the_users_own(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('[keys]\nregenerate = "ctrl+g"\nsend = "ctrl+s"\n')
    async with scripted(Scripted("Hot leaves.", "A drink."), settings=config) as pilot:
        pilot.app.composer.insert("What is tea?")
        await press(pilot, "ctrl+s")
        await until(lambda: answers(pilot) == ["Hot leaves."] and pilot.app.exchange is None)
        await press(pilot, "ctrl+r")
        assert answers(pilot) == ["Hot leaves."]
        await press(pilot, "ctrl+g")
        await until(lambda: answers(pilot) == ["A drink."])
        await press(pilot, "f1")
        await seen(pilot, "Ctrl+S")


async def test_a_theme_is_chosen_and_kept(tmp_path):
    config = tmp_path / "config.toml"
    async with scripted(Scripted("Hot."), settings=config) as pilot:
        dark = pilot.app.screen.background_colors[1]
        await say(pilot, "/theme textual-light")
        await until(lambda: pilot.app.screen.background_colors[1].brightness > 0.5)
        assert dark.brightness < 0.5
    assert read_settings(config).theme == "textual-light"
    async with scripted(Scripted("Hot."), settings=config) as pilot:
        assert not pilot.app.current_theme.dark


# Model and parameters


async def test_parameters_belong_to_the_conversation(store):
    engine = Scripted("Hot leaves.")
    async with scripted(engine, store=store) as pilot:
        await press(pilot, "f3")
        await seen(pilot, "Parameters of this conversation")
        await press(pilot, *"0.25", "enter")
        await until(lambda: not pilot.app.screen.is_modal)
        await say(pilot, "What is tea?")
        assert engine.asked[-1].sampling.temp == 0.25
        await press(pilot, "ctrl+n")
        await until(lambda: not answers(pilot))
        await say(pilot, "What is snow?")
        assert engine.asked[-1].sampling.temp == 0.6
        await say(pilot, "/open tea")
        await until(lambda: pilot.app.session.title == "What is tea?")
        await seen(pilot, "This conversation keeps its own values: temp 0.25.")
        await say(pilot, "More.")
        assert engine.asked[-1].sampling.temp == 0.25


async def test_the_speculation_mode_is_chosen_and_kept_with_the_conversation(store):
    async with scripted(Scripted("Yes."), store=store) as pilot:
        await say(pilot, "Is it?")
        await say(pilot, "/spec eagle9")
        await seen(pilot, "/spec: ")
        assert pilot.app.parameters.spec == "specfit"
        pilot.app.composer.text = ""
        pilot.app.composer.insert("/spec eag")
        await seen(pilot, "Trees of 30 drafts")
        await press(pilot, "enter")
        await until(lambda: pilot.app.parameters.spec == "eagle3:31")
        await say(pilot, "/stats")
        await seen(pilot, "Speculation from now on: eagle3:31")
        assert store.conversations()[0].meta["parameters"]["spec"] == "eagle3:31"
        await say(pilot, "/new")
        assert pilot.app.parameters.spec == "specfit"


async def test_a_system_prompt_is_written_saved_and_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    engine = Scripted("Yes.")
    async with scripted(engine) as pilot:
        await say(pilot, "/system Be brief.")
        await press(pilot, "f5")
        await seen(pilot, "Be brief.")
        await press(pilot, "tab", *"short", "ctrl+s")
        await until(lambda: "short is saved." in notices(pilot))
        await press(pilot, "escape")
        await until(lambda: not pilot.app.screen.is_modal)
        await say(pilot, "Tea?")
        await press(pilot, "ctrl+n")
        await until(lambda: not answers(pilot))
        await say(pilot, "Snow?")
        system = {"role": "system", "content": "Be brief."}
        assert [asked.messages[0] for asked in engine.asked] == [system, system]


@SIZES
async def test_another_model_is_picked_and_the_conversation_goes_on(size, monkeypatch):
    entry = ModelEntry(
        Path("/m/other.gguf"), "Other", "qwen3moe", "Q4_K_M", 10**9, context_length=2048
    )
    monkeypatch.setattr(library, "find", lambda _folders: iter([entry]))
    monkeypatch.setattr(library, "free_memory", lambda: Memory(8 * 10**9))
    engine = Scripted("Hot leaves.", "In hills.")
    async with scripted(engine, size, ctx_size=8192) as pilot:
        await say(pilot, "What is tea?")
        await press(pilot, "f2")
        await seen(pilot, "fits: 1.0 GB, 8.0 GB free")
        await press(pilot, "enter")
        await until(lambda: len(engine.loads) == 2 and not pilot.app.is_loading)
        await until(lambda: answers(pilot) == ["Hot leaves."])
        # More than the model was made for it is not loaded with.
        assert (engine.loads[1].model, engine.loads[1].ctx_size) == (entry.path, 2048)
        await say(pilot, "Where does it grow?")
        assert len(engine.asked[-1].messages) == 3


# The rest


async def test_a_full_context_drops_the_oldest_turns_but_not_the_system_prompt():
    engine = Scripted("many words " * 20, ctx=110)
    async with scripted(engine) as pilot:
        await say(pilot, "/system Be brief.")
        for number in range(3):
            await say(pilot, f"Question {number}?")
        await seen(pilot, "The model no longer sees what is above")
        messages = [message["content"] for message in engine.asked[-1].messages]
        assert messages[0] == "Be brief."
        assert messages[1] == "Question 1?"
        pilot.app.composer.insert("word " * 200)
        await press(pilot, "enter")
        await seen(pilot, "Shorten one of them")


async def test_the_input_and_the_panel_tell_of_one_measure_what_the_next_request_takes():
    engine = Scripted("many words " * 20, ctx=110)
    async with scripted(engine, (120, 30)) as pilot:
        composer, meters = pilot.app.composer, pilot.app.panel.meters

        async def is_told(taken: int) -> None:
            await until(lambda: meters._tokens == (taken, 110))

        await say(pilot, "Question 0?")
        await is_told(2 + 40)
        composer.insert("And now?")
        await until(lambda: composer.border_title == "2 tokens · 44 of 110")
        await is_told(44)
        await press(pilot, "enter")
        await until(lambda: len(answers(pilot)) == 2 and pilot.app.exchange is None)
        # Both turns are more than three quarters of the context: the next one begins with this.
        await is_told(2 + 40)
        composer.insert("word " * 60)
        # With as much of the end of the last answer as three quarters have room for.
        await until(lambda: composer.border_title == "60 tokens · 83 of 110")
        await is_told(83)


def column(pilot: Pilot[None]) -> list[str]:
    """What stands in the conversation, the mark as a line."""
    children = pilot.app.conversation._column.children
    return ["---" if isinstance(one, Unseen) else one.written for one in children]


async def test_the_mark_of_what_is_no_longer_seen_follows_the_conversation(store):
    engine = Scripted("many words " * 10, ctx=70)
    async with scripted(engine, (80, 30), store=store) as pilot:
        for number in range(3):
            await say(pilot, f"Question {number}?")
        await until(lambda: "---" in column(pilot))
        # Two turns of 22 words are what 53 have room for, of which the next question is one.
        await until(lambda: column(pilot).index("---") == 2)
        await say(pilot, "/new")
        await until(lambda: column(pilot) == [])
        await pilot.app._open(store.conversations()[0].id)
        await until(lambda: "---" in column(pilot))
        assert column(pilot)[column(pilot).index("---") + 1] == "Question 1?"


async def test_what_the_next_request_takes_grows_with_the_answer():
    engine = Scripted("many words " * 40, ctx=1000, per_s=40)
    async with scripted(engine, (120, 30)) as pilot:
        composer = pilot.app.composer
        composer.insert("Question?")
        await press(pilot, "enter")
        composer.insert("And now?")
        seen = set()
        await until(lambda: seen.add(composer.border_title) or len(seen) > 3)
        told = int(composer.border_title.split()[3])
        taken, _ = pilot.app.panel.meters._tokens
        assert told == taken
        await press(pilot, "escape")


async def test_toasts_take_two_lines_and_what_is_longer_is_said_in_the_conversation():
    async with opened(setup_of(Scripted("Yes.").load, Session(None)), toasts=True) as pilot:
        await say(pilot, "/theme nosuch")
        assert notices(pilot) == ["/theme: there is no such theme; /theme alone lists them"]
        pilot.app.notify("word " * 20)
        await until(lambda: len(pilot.app.query(Toast)) == 2)
        await until(lambda: max(toast.size.height for toast in pilot.app.query(Toast)) == 2)
        assert max(toast.outer_size.width for toast in pilot.app.query(Toast)) <= 60
        pilot.app.notify("long " * 40 + "end", severity="error")
        await seen(pilot, "long end")
        assert len(pilot.app.query(Toast)) == 2


async def test_drafted_words_are_marked_on_demand():
    async with scripted(Scripted("Hot leaves.")) as pilot:
        await say(pilot, "What is tea?")
        await press(pilot, "f4")
        await until(lambda: underlined(pilot) == ["Hot "])
        await press(pilot, "f4")
        await until(lambda: underlined(pilot) == [])
