"""The real model made to think: its own words, within a grammar, behind a template like Qwen3's."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from screencases import seen
from storecases import python
from test_chat_tui import answered, ask, chat, mark_of, press, until

from specfit.app.store import Store
from specfit.app.thinking import split
from specfit.app.widgets.answer import Answer
from specfit.backend import Engine
from specfit.backend.generation import Generation
from specfit.backend.guided import GuidedSampler

# The branches that Qwen3's template has: past thinking is left out, and what is not to be thought
# is written as thought already.
SWITCHED = """\
{%- for message in messages %}
    {%- set said = message.content %}
    {%- if message.role == 'assistant' and '</think>' in said %}
        {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + said + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
# Of the models that only think, the template begins it.
ALWAYS = SWITCHED.replace(
    SWITCHED[SWITCHED.index("    {%- if enable_thinking") : SWITCHED.rindex("{%- endif %}")],
    "{{- '<think>\\n' }}",
)
THOUGHT = r'[^<]{60,100} "\n</think>\n\n" [^<]{4,40}'
GRAMMARS = {"opened": f"root ::= {THOUGHT}", "own": f'root ::= "<think>\\n" {THOUGHT}'}
LONG = GRAMMARS["own"].replace("60,100", "1500,1900")


class Thinker:
    """The bundled engine, made to think where it is not told to leave it. prompts: what it read."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.grammars = dict(GRAMMARS)
        self.prompts: list[str] = []

    def generate(self, messages, *, sampling, max_tokens, spec, thinking) -> Generation:
        engine = self.engine
        prompt = engine.prompt(messages, thinking)
        pieces = map(engine.model.piece, prompt.tokens)
        self.prompts.append(b"".join(pieces).decode())
        grammar = self.grammars["opened" if prompt.opens_thinking else "own"]
        if thinking is False and not prompt.opens_thinking:
            grammar = None
        sampler = GuidedSampler(sampling, engine.model, grammar, None)
        return Generation(engine, prompt, engine.policy(spec), sampler, max_tokens, ())


@pytest.fixture
def thinker(bundled_engine, monkeypatch) -> Iterator[Thinker]:
    found = Thinker(bundled_engine)
    monkeypatch.setattr(bundled_engine.model, "_template", SWITCHED.encode())
    monkeypatch.setattr(bundled_engine, "generate", found.generate)
    return found


async def say(pilot, text: str) -> None:
    await ask(pilot, text)
    await answered(pilot)


async def command(pilot, text: str) -> None:
    pilot.app.composer.insert(text)
    await press(pilot, "escape", "enter")
    await until(pilot, lambda: not pilot.app.composer.text)


def parts(pilot) -> list[tuple[int, int]]:
    """How long thinking and answer of each answer are."""
    said = [split(one.text) for one in pilot.app.query(Answer)]
    return [(len(one.thinking), len(one.answer)) for one in said]


async def test_thinking_is_folded_timed_and_no_part_of_later_prompts(thinker):
    async with chat(thinker.engine, max_tokens=60) as pilot:
        await say(pilot, "What is tea?")
        ((thought, said),) = parts(pilot)
        assert thought > 40 and 4 <= said <= 40
        await seen(pilot, "▸ Thought for")
        await press(pilot, "alt+t")
        await seen(pilot, "▾ Thought for")
        await say(pilot, "Why?")
        answer = pilot.app.session.path[1]
        assert answer.meta["thought_s"] >= 0
        said = split(answer.content).answer
        prompt = f"user\nWhat is tea?\nassistant\n{said}\nuser\nWhy?\nassistant\n"
        assert thinker.prompts[-1] == prompt


async def test_thinking_is_switched_by_command(thinker):
    async with chat(thinker.engine, max_tokens=60) as pilot:
        await command(pilot, "/no_think")
        await say(pilot, "What is tea?")
        assert thinker.prompts[-1].endswith("assistant\n<think>\n\n</think>\n\n")
        assert parts(pilot)[0][0] == 0
        await command(pilot, "/think")
        await press(pilot, "ctrl+r")
        await until(pilot, lambda: len(pilot.app.session.current.tree.messages) == 3)
        await answered(pilot)
        assert parts(pilot)[0][0] > 40
        await press(pilot, "alt+left")
        await until(pilot, lambda: parts(pilot)[0][0] == 0)


async def test_thinking_that_the_template_begins_is_thinking(thinker, monkeypatch):
    monkeypatch.setattr(thinker.engine.model, "_template", ALWAYS.encode())
    async with chat(thinker.engine, max_tokens=60) as pilot:
        await say(pilot, "What is tea?")
        assert thinker.prompts[-1].endswith("assistant\n<think>\n")
        assert parts(pilot)[0][0] > 40
        assert pilot.app.session.path[-1].content.startswith("<think>\n")
        pilot.app.composer.insert("/no_think")
        await press(pilot, "escape", "enter")
        await until(pilot, lambda: pilot.app._notifications)
        assert "no switch for thinking" in next(iter(pilot.app._notifications)).message


async def test_what_is_stopped_while_it_thinks_is_kept_and_not_read_again(thinker):
    thinker.grammars["own"] = LONG
    async with chat(thinker.engine) as pilot:
        await ask(pilot, "What is tea?")
        answer = pilot.app.query_one(Answer)
        await until(pilot, lambda: len(answer.text) > 40)
        await seen(pilot, "▸ Thinking …")
        await press(pilot, "escape")
        await answered(pilot)
        assert mark_of(answer) == "stopped"
        await seen(pilot, "▸ Thought for")
        thinker.grammars = dict(GRAMMARS)
        await say(pilot, "Why?")
        assert thinker.prompts[-1] == "user\nWhat is tea?\n\nWhy?\nassistant\n"


async def test_thinking_is_exported_folded(thinker, tmp_path):
    async with chat(thinker.engine, max_tokens=60) as pilot:
        await say(pilot, "What is tea?")
        said = split(pilot.app.session.path[-1].content)
        await command(pilot, f"/export {tmp_path / 'tea.md'}")
        await until(pilot, (tmp_path / "tea.md").exists)
        folded = f"<details><summary>Thought for 0 s</summary>\n\n{said.thinking}\n\n</details>"
        written = (tmp_path / "tea.md").read_text()
        assert f"{folded}\n\n{said.answer.strip()}\n" in written.replace("for 1 s", "for 0 s")


# A window that dies while the model thinks.
KILLED = """
import os, signal, sys
from pathlib import Path
from specfit.app.session import Session
from specfit.app.store import Store
session = Session(Store(Path(sys.argv[1])))
session.ask("What is tea?")
session.begin_answer()
session.grow("<think>\\n" + "It is hot. " * 30)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_what_was_thought_before_a_kill_is_there_again(bundled_engine, path):
    assert python(KILLED, path).wait() == -signal.SIGKILL
    store = Store(path)
    async with chat(bundled_engine, store=store) as pilot:
        await pilot.app._open(store.conversations()[0].id)
        assert parts(pilot) == [(len("It is hot. " * 30) - 1, 0)]
        await seen(pilot, "▸ Thought  ")  # nobody knows how long
        assert "the program ended" in mark_of(pilot.app.query_one(Answer))
    store.close()
