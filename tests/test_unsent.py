"""What is written and not sent survives the window, in the store and in the chat."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event

import pytest
import screencases
from resting import rested
from storecases import python, talk
from test_chat_tui import answered, app_of, press, until
from textual import events
from textual.widgets import Input, TextArea

from specfit.app.pastes import LARGEST
from specfit.app.store import Store, StoreError, Unsent
from specfit.app.store.schema import MIGRATIONS, migrate
from specfit.app.system_prompts import prompts_path, save_prompt
from specfit.app.unsent import UnsentText

# A window that writes and is killed: python CODE PATH CONVERSATION TEXT
KILLED = """
import os, signal, sys
from pathlib import Path
from specfit.app.store import Store, Unsent
from specfit.app.unsent import UnsentText
window = UnsentText(Store(Path(sys.argv[1])))
window.note(int(sys.argv[2]) or None, Unsent(sys.argv[3]))
window.save()
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(path: Path, conversation: int | None, text: str) -> None:
    assert python(KILLED, path, conversation or 0, text).wait() == -signal.SIGKILL


def window(store: Store, conversation: int | None = None, text: str = "") -> UnsentText:
    found = UnsentText(store)
    found.note(conversation, Unsent(text))
    found.save()
    return found


def rows(path: Path) -> list[str]:
    db = sqlite3.connect(path)
    found = [text for (text,) in db.execute("SELECT text FROM unsent ORDER BY id")]
    db.close()
    return found


class TestTheStore:
    def test_what_a_killed_window_had_comes_back_once(self, store, path):
        conversation = talk(store, "a", "b")
        killed(path, conversation, "for a")
        killed(path, None, "for a new one")
        first, second = UnsentText(store), UnsentText(store)
        assert first.take(conversation) == Unsent("for a")
        assert not second.take(conversation)
        assert second.take(None) == Unsent("for a new one")
        first.note(conversation, Unsent())
        first.save()
        assert rows(path) == ["for a new one"]

    def test_a_killed_window_is_dead_before_its_parent_looks(self, store, path):
        process = python(KILLED, path, 0, "text")
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert UnsentText(store).take(None) == Unsent("text")
        process.wait()

    def test_a_living_window_keeps_its_own(self, store, path):
        one, other = window(store, None, "one"), window(store, None, "other")
        third = UnsentText(store)
        assert not third.take(None)
        one.note(None, Unsent("one and more"))
        one.save()
        assert rows(path) == ["one and more", "other"]
        other.leave()
        assert third.take(None) == Unsent("other")

    def test_each_of_several_windows_comes_back(self, store, path):
        for text in ("first", "second"):
            killed(path, None, text)
        assert [UnsentText(store).take(None).text for _ in range(3)] == ["second", "first", ""]

    def test_nothing_written_is_no_transaction(self, store, path, monkeypatch):
        monkeypatch.setattr(store, "keep_unsent", lambda *_, **__: pytest.fail("it writes"))
        nothing = window(store, None, " \n")
        nothing.leave()
        kept = UnsentText(store)
        assert kept.is_saved
        assert not kept.take(None)

    def test_it_goes_along_when_its_conversation_is_saved(self, store):
        it = window(store, None, "text")
        conversation = talk(store, "a")
        it.note(conversation, Unsent("text"))
        assert not it.is_saved
        it.save()
        it.leave()
        assert not it.take(None)
        assert it.take(conversation) == Unsent("text")

    def test_a_deleted_conversation_takes_what_waits_in_it_but_nothing_of_a_window(self, store):
        conversation = talk(store, "a")
        window(store, conversation, "waits").leave()
        open_there = window(store, conversation, "being written")
        store.delete(conversation)
        open_there.leave()
        assert UnsentText(store).take(None) == Unsent("being written")
        assert not UnsentText(store).take(None)

    def test_what_is_edited_knows_its_message(self, store):
        conversation = talk(store, "a", "b")
        (question, _) = store.messages(conversation)
        it = UnsentText(store)
        edited = Unsent("draft", "a, otherwise", question.id)
        it.note(conversation, edited)
        it.leave()
        assert it.take(conversation) == edited
        store.delete(conversation)
        it.leave()
        assert it.take(None) == Unsent("draft", "a, otherwise", None)

    def test_a_locked_file_is_tried_again(self, store, path, monkeypatch):
        monkeypatch.setattr("specfit.app.store.file.PATIENCE_MS", 20)
        it = window(store, None, "text")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        it.note(None, Unsent("text and more"))
        with pytest.raises(StoreError):
            it.save()
        with pytest.raises(StoreError):
            it.leave()
        assert not it.is_saved
        other.execute("ROLLBACK")
        it.save()
        assert rows(path) == ["text and more"]
        other.close()

    def test_no_thread_waits_for_another_that_saves(self, store, monkeypatch):
        it, begun, go_on = window(store), Event(), Event()
        keep = store.keep_unsent

        def slow(*arguments, **options):
            begun.set()
            go_on.wait(10)
            return keep(*arguments, **options)

        monkeypatch.setattr(store, "keep_unsent", slow)
        it.note(None, Unsent("first"))
        with ThreadPoolExecutor() as threads:
            saving = threads.submit(it.save)
            assert begun.wait(10)
            it.note(None, Unsent("second"))
            it.save()
            assert not it.is_saved
            go_on.set()
            saving.result()
        assert not it.is_saved
        it.save()
        assert it.is_saved

    def test_a_file_that_was_replaced_gets_it_anew(self, store, path):
        it = window(store, None, "text")
        for companion in ("", "-wal", "-shm"):
            Path(f"{path}{companion}").unlink(missing_ok=True)
        with pytest.raises(StoreError):
            store.new_conversation("finds it out")
        assert not it.is_saved
        it.save()
        assert it.is_saved
        assert rows(path) == ["text"]

    def test_a_damaged_file_hands_on_what_waits(self, store, path):
        conversation = talk(store, "a" * 9000, "b")
        window(store, conversation, "waits").leave()
        new = UnsentText(store)
        new.note(None, Unsent("for a new one", prompts={"": "Be brief."}))
        new.leave()
        origin = store.conversation(conversation).origin
        store._file._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db = sqlite3.connect(path)
        name = "sqlite_autoindex_conversation_1"
        found = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,))
        (page,) = found.fetchone()
        db.close()
        store.close()
        with path.open("r+b") as file:
            file.seek((page - 1) * 4096)
            file.write(b"\xff" * 4096)
        again = Store(path)
        with pytest.raises(StoreError):
            again.find(origin)
        assert "damaged" in again.notices[-1]
        rescued = again.conversations()[0].id
        assert UnsentText(again).take(rescued) == Unsent("waits")
        found = UnsentText(again).take(None)
        assert found == Unsent("for a new one", prompts={"": "Be brief."})
        again.close()

    def test_a_file_of_the_first_version_gets_a_place_for_it(self, tmp_path):
        path = tmp_path / "old.db"
        db = sqlite3.connect(path, isolation_level=None)
        migrate(db, MIGRATIONS[:1])
        db.execute(
            "INSERT INTO conversation (origin, title, created, updated, meta)"
            " VALUES ('o', 'old', 1, 1, '{}')"
        )
        db.close()
        store = Store(path)
        conversation = store.find("o")
        window(store, conversation, "text").leave()
        assert UnsentText(store).take(conversation) == Unsent("text")
        store.close()

    def test_without_a_store_nothing_is_kept(self):
        it = UnsentText(None)
        it.note(None, Unsent("text"))
        assert it.is_saved
        it.save()
        assert not it.take(None)
        with pytest.raises(StoreError):
            it.leave()

    def test_titles_of_what_was_left_elsewhere_are_told_once(self, store, path):
        conversation = talk(store, "What is tea?")
        killed(path, conversation, "more")
        window(store, talk(store, "here"), "of a living window")
        window(store, talk(store, "left"), "in peace").leave()
        assert store.unsent_elsewhere() == ["What is tea?"]
        assert store.unsent_elsewhere() == []
        assert UnsentText(store).take(conversation) == Unsent("more")


# In the chat


@asynccontextmanager
async def chat_of(engine, path: Path, conversation: int | None = None, **options):
    """A window of its own on the store at `path`."""
    engine.forget()
    store = Store(path)
    app = app_of(lambda *_: engine, store=store, **options)
    if conversation is not None:
        app.session.open(conversation)
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.engine is not None)
        yield pilot
        await rested(pilot)
    store.close()


def told(pilot) -> str:
    return "\n".join(notice.message for notice in pilot.app._notifications)


async def kept(pilot, path: Path, *texts: str) -> None:
    await until(pilot, lambda: rows(path) == list(texts))


async def test_a_text_is_kept_soon_after_it_is_written_and_not_once_it_is_sent(
    bundled_engine, path
):
    async with chat_of(bundled_engine, path, max_tokens=3) as pilot:
        await press(pilot, *"hello")
        await kept(pilot, path, "hello")
        await press(pilot, "enter")
        await answered(pilot)
        await kept(pilot, path)


async def test_a_new_chat_brings_back_what_was_left_of_one_and_says_so(bundled_engine, path):
    killed(path, None, "two lines\nof text")
    async with chat_of(bundled_engine, path, max_tokens=3) as pilot:
        assert pilot.app.composer.text == "two lines\nof text"
        assert "in the input again" in told(pilot)
        await press(pilot, "enter")
        await answered(pilot)
        await kept(pilot, path)
    async with chat_of(bundled_engine, path) as pilot:
        assert pilot.app.composer.text == ""
        assert told(pilot) == ""


async def test_a_text_that_is_kept_while_another_conversation_opens_stays_with_its_own(
    bundled_engine, path
):
    store = Store(path)
    tea, sky = talk(store, "What is tea?", "A drink."), talk(store, "Why?", "So.")
    store.close()
    async with chat_of(bundled_engine, path) as pilot:
        app = pilot.app
        await app._open(tea)
        await press(pilot, *"more")
        leave, loop = app.unsent.leave, asyncio.get_running_loop()

        def slowly() -> None:
            loop.call_soon_threadsafe(app.keep_unsent)  # as it is four times a second
            time.sleep(0.05)
            leave()

        app.unsent.leave = slowly
        await app._open(sky)
        assert app.composer.text == ""
        await app._open(tea)
        assert app.composer.text == "more"


async def test_a_conversation_that_is_opened_has_its_own_text(bundled_engine, path):
    store = Store(path)
    tea, sky = talk(store, "What is tea?", "A drink."), talk(store, "Why?", "So.")
    store.close()
    killed(path, tea, "more of tea")
    async with chat_of(bundled_engine, path) as pilot:
        app = pilot.app
        assert app.composer.text == ""
        assert "“What is tea?”" in told(pilot)
        await press(pilot, *"new")
        await app._open(tea)
        assert app.composer.text == "more of tea"
        await press(pilot, "!")
        await app._open(sky)
        assert app.composer.text == ""
        await press(pilot, *"blue")
        await app._open(tea)
        assert app.composer.text == "more of tea!"
    async with chat_of(bundled_engine, path, sky) as pilot:  # as --continue does
        assert pilot.app.composer.text == "blue"
        assert told(pilot) == ""
        pilot.app.composer.clear()
        await press(pilot, "ctrl+n")
        await until(pilot, lambda: pilot.app.composer.text == "new")


async def test_what_is_being_written_goes_along_into_a_new_chat(bundled_engine, path):
    store = Store(path)
    tea = talk(store, "What is tea?", "A drink.")
    store.close()
    async with chat_of(bundled_engine, path, tea) as pilot:
        await press(pilot, *"text", "ctrl+n")
        await until(pilot, lambda: pilot.app.session.conversation is None)
        assert pilot.app.composer.text == "text"
    async with chat_of(bundled_engine, path, tea) as pilot:
        assert pilot.app.composer.text == ""


async def test_an_edited_message_is_edited_on(bundled_engine, path):
    store = Store(path)
    tea = talk(store, "What is tea?", "A drink.")
    store.close()
    async with chat_of(bundled_engine, path, tea) as pilot:
        await press(pilot, *"draft")
        await pilot.app.run_action("edit")
        await press(pilot, "!")
        assert pilot.app.composer.text == "What is tea?!"
    async with chat_of(bundled_engine, path, tea, max_tokens=3) as pilot:
        composer = pilot.app.composer
        assert composer.text == "What is tea?!"
        assert composer.editing == pilot.app.session.path[0].id
        await press(pilot, "escape")
        assert composer.text == "draft"
        await pilot.app.run_action("edit")
        await press(pilot, "ctrl+n")  # it is of the other conversation
        await until(pilot, lambda: composer.text == "")
        assert composer.editing is None


async def test_a_large_paste_is_kept_in_full(bundled_engine, path):
    text = "line\n" * LARGEST
    async with chat_of(bundled_engine, path) as pilot:
        await press(pilot, "a")
        pilot.app.composer.post_message(events.Paste(text))
        await press(pilot, "z")
        await kept(pilot, path, f"a{text}z")
    async with chat_of(bundled_engine, path) as pilot:
        composer = pilot.app.composer
        first, _, rest = composer.text.partition("\n")
        assert (first, rest[-2:], len(rest) < 50) == ("aline", "\nz", True)
        await press(pilot, "!")
        assert composer.message == f"a{text}z!"
        assert "Ctrl+C empties it" in told(pilot)
        await press(pilot, "ctrl+c")
        await kept(pilot, path)
        assert composer.text == ""


async def test_two_windows_keep_what_is_theirs(bundled_engine, path):
    async with chat_of(bundled_engine, path) as one:
        await press(one, *"one")
        await kept(one, path, "one")
        async with chat_of(bundled_engine, path) as other:
            assert other.app.composer.text == ""
            await press(other, *"other")
            await kept(other, path, "one", "other")
            await press(one, "!")
            await kept(one, path, "one!", "other")
        assert one.app.composer.text == "one!"
        other.app.unsent.save()
        assert rows(path) == ["one!", "other"]


async def test_keys_are_echoed_while_the_file_is_locked(bundled_engine, path):
    async with chat_of(bundled_engine, path) as pilot:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        begun, echoes = time.perf_counter(), []
        while time.perf_counter() - begun < 1.2:
            before, at = pilot.app.composer.text, time.perf_counter()
            pilot.app.simulate_key("x")
            while pilot.app.composer.text == before:
                await asyncio.sleep(0)
            echoes.append(time.perf_counter() - at)
            await asyncio.sleep(0.02)
        assert sorted(echoes)[-1] < 2.5  # it waits for 3 s
        assert rows(path) == []
        other.execute("ROLLBACK")
        other.close()
        await kept(pilot, path, "x" * len(echoes))


async def test_a_system_prompt_that_is_being_written_is_kept_and_shown_again(
    bundled_engine, path, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    save_prompt(prompts_path(), "short", "Be brief.")
    async with chat_of(bundled_engine, path) as pilot:
        app = pilot.app
        await press(pilot, *"and this", "f5")
        await until(pilot, lambda: app.screen.is_modal and app.screen.query(TextArea))
        app.screen._list("short")
        app.screen.query_one(TextArea).insert("Be kind. ")
        await kept(pilot, path, "and this")
        await until(pilot, lambda: app.unsent._saved[1].prompts)
        await until(pilot, lambda: app.unsent.is_saved)
        rest = sqlite3.connect(path).execute("SELECT prompts FROM unsent").fetchall()
        assert rest == [('{"short": "Be kind. Be brief."}',)]
    async with chat_of(bundled_engine, path) as pilot:
        app = pilot.app
        assert "F5 or /system shows it" in told(pilot)
        assert app.composer.text == "and this"
        await press(pilot, "f5")
        await until(pilot, lambda: app.screen.is_modal and app.screen.query(TextArea))
        editor = app.screen.query_one(TextArea)
        await until(pilot, lambda: editor.text == "Be kind. Be brief.")
        assert app.screen.query_one(Input).value == "short"
        await press(pilot, "escape")
        assert app.screen.is_modal
        await press(pilot, "escape")
        await until(pilot, lambda: not app.screen.is_modal)
        assert app.prompt_edits == {}
        await until(pilot, lambda: not app.unsent._saved[1].prompts)


TYPING = """
import asyncio, sys
from pathlib import Path
from threading import Event
from test_chat_tui import app_of
from specfit.app.store import Store

async def main():
    app = app_of(lambda *_: Event().wait(), store=Store(Path(sys.argv[1])))
    async with app.run_test() as pilot:
        for key in "hello":
            app.simulate_key(key)
        print("typed", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_what_is_typed_is_kept_by_itself_and_outlives_a_kill(bundled_engine, path):
    process = subprocess.Popen(
        [sys.executable, "-c", TYPING, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert process.stdout is not None
    await asyncio.to_thread(process.stdout.readline)
    await screencases.until(lambda: rows(path) == ["hello"])
    process.kill()
    process.wait()
    async with chat_of(bundled_engine, path) as pilot:
        assert pilot.app.composer.text == "hello"
