"""Figures are those of the branch and the model that are looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from flowcases import Scripted, answers, notices, press, say, scripted
from screencases import until
from storecases import talk

from specfit.app.widgets.note import Note
from specfit.app.widgets.status_line import StatusLine
from specfit.models import bundled_model


def meter(pilot) -> str:
    """What the panel says of the context."""
    return next(line for line in str(pilot.app.panel.meters.render()).split("\n") if "ctx" in line)


def status(pilot) -> str:
    return str(pilot.app.query_one(StatusLine).render())


async def test_the_panel_shows_the_context_of_the_branch_that_is_looked_at():
    engine = Scripted("one two three", "one two three four five six")
    async with scripted(engine, (120, 40)) as pilot:
        await press(pilot, "ctrl+t")
        await until(lambda: "0 of 1000" in meter(pilot))
        await say(pilot, "What is tea?")
        await until(lambda: "6 of 1000" in meter(pilot))
        await press(pilot, "ctrl+r")
        await until(lambda: "9 of 1000" in meter(pilot))
        await press(pilot, "alt+left")
        await until(lambda: "6 of 1000" in meter(pilot))
        await press(pilot, "ctrl+n")
        await until(lambda: "0 of 1000" in meter(pilot))


async def test_the_panel_shows_the_context_of_a_conversation_that_is_opened(store):
    talk(store, "What is tea?", "one two three four")
    async with scripted(Scripted("Yes."), (120, 40), store=store) as pilot:
        await say(pilot, "Hello")
        await say(pilot, "/open tea")
        await until(lambda: answers(pilot) == ["one two three four"])
        await press(pilot, "ctrl+t")
        await until(lambda: "7 of 1000" in meter(pilot))


async def test_thinking_is_not_counted_once_the_answer_is_there():
    engine = Scripted("a b c d e f</think>So.", opens=True)
    async with scripted(engine, (120, 40)) as pilot:
        await press(pilot, "ctrl+t")
        await say(pilot, "Why?")
        await until(lambda: "2 of 1000" in meter(pilot))


async def test_status_and_stats_are_of_the_version_that_is_looked_at():
    async with scripted(Scripted("Hot leaves.", "A drink of hot leaves."), (120, 40)) as pilot:
        await say(pilot, "What is tea?")
        await press(pilot, "ctrl+r")
        await until(lambda: "version 2/2" in str(pilot.app.screen.query(".mark").last().render()))
        await until(lambda: pilot.app.exchange is None)
        metas = [one.meta for one in pilot.app.session.current.tree.messages.values()]
        metas[1]["tokens_per_second"], metas[1]["acceptance_length"] = 41.5, 3.21
        await press(pilot, "alt+left")
        await until(lambda: answers(pilot) == ["Hot leaves."])
        assert status(pilot) == "specfit · 41.5 tok/s · 3.21 tokens a step (acceptance length)"
        await say(pilot, "/stats")
        await until(lambda: "41.5 tok/s" in str(pilot.app.query(Note).last().render()))
        await press(pilot, "ctrl+n")
        await until(lambda: status(pilot) == "specfit")


async def test_a_model_that_is_named_is_loaded_with_the_context_it_was_made_for():
    engine = Scripted("Hot leaves.")
    async with scripted(engine, ctx_size=8192) as pilot:
        await say(pilot, f"/model {bundled_model()}")
        await until(lambda: len(engine.loads) == 2 and not pilot.app.is_loading)
        assert engine.loads[1].ctx_size == 2048
        told = "The context is 2048, all that the model was made for, not -c 8192."
        assert told in notices(pilot)


@pytest.mark.parametrize(("name", "why"), [("none.gguf", "no model at"), ("bad.gguf", "bad.gguf")])
async def test_a_model_that_cannot_be_read_does_not_cost_the_loaded_one(name, why, tmp_path):
    Path(tmp_path / "bad.gguf").write_bytes(b"GGUF and no more")
    engine = Scripted("Hot leaves.")
    async with scripted(engine) as pilot:
        await say(pilot, f"/model {tmp_path / name}")
        # Where it is too long for a toast, it is in the conversation.
        await until(
            lambda: (
                why in "".join([*notices(pilot), *(str(n.content) for n in pilot.app.query(Note))])
            )
        )
        assert pilot.app.engine is engine
        assert len(engine.loads) == 1
