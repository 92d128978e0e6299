"""Whatever is pressed, the chat neither breaks nor loses anything.

`pytest tests/test_fuzz.py --keys 10000 --seeds 5` presses more than the suite does.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from fuzzcases import MadeUpGeneration, Monkey, Witness, made_up_load

from specfit.app.chat_setup import Setup
from specfit.app.options import ModelChoice
from specfit.app.parameters import Parameters
from specfit.app.session import Session
from specfit.app.settings import read_settings, settings_path
from specfit.app.store import Store
from specfit.app.tui import ChatApp
from specfit.backend import SpecfitError
from specfit.models import bundled_model

PATIENCE_S = 20


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds")))


def window(path: Path, seed: int) -> ChatApp:
    """The chat on conversations that there may be already, and perhaps on the last of them."""
    model = ModelChoice(None, None, None, False, None, None, 1, None)
    session = Session(Store(path))
    known = session.store.conversations()
    if known and seed % 2:
        session.open(known[0].id)
    settings = read_settings(settings_path())
    setup = Setup(model, Parameters(temp=0, seed=1), settings, session, load=made_up_load(seed))
    return ChatApp(setup)


async def play(monkey: Monkey, witness: Witness, path: Path, keys: int) -> None:
    """One window, until so many keys have been pressed or it is left."""
    app = window(path, monkey.draw.randrange(1 << 30))
    async with app.run_test(size=(80, 24)):
        witness.watch(app)
        while monkey.pressed < keys and not app._exit and app._exception is None:
            await monkey.act(app)
            # As fast as it can follow, and no faster: a terminal's buffer is no test of the chat.
            deadline = time.monotonic() + PATIENCE_S
            while (app._message_queue.qsize() or app._pressed) and app.is_running:
                assert time.monotonic() < deadline, "it hangs"
                await asyncio.sleep(0)
        app.exit()  # not by the end of the test, which takes the screen away at once
        while app.is_running:
            await asyncio.sleep(0.001)
    app.session.store.close()
    assert app.load_error is None or isinstance(app.load_error, SpecfitError)
    deadline = time.monotonic() + PATIENCE_S
    while MadeUpGeneration.running:
        assert time.monotonic() < deadline, "an answer goes on though the chat was left"
        await asyncio.sleep(0.01)


async def test_no_keys_break_the_chat_or_lose_what_was_said(
    request: pytest.FixtureRequest, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left and opened again now and then; what was sent and answered is there at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # screenshots go there
    for name in ("CONFIG", "DATA"):  # presets, prompts and theme of this test's own
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    Path("notes.txt").write_text("The tea is in the blue box.")
    Path("other.gguf").symlink_to(bundled_model())
    monkey, witness, path = Monkey(seed), Witness(), tmp_path / "specfit.db"
    keys, windows = request.config.getoption("--keys"), 0
    try:
        while monkey.pressed < keys:
            windows += 1
            await play(monkey, witness, path, keys)
    except BaseException:
        print(f"seed {seed}, behind {monkey.pressed} keys:", *monkey.last)
        raise
    print(f"seed {seed}: {monkey.pressed} keys, {windows} windows, {witness.sent} sent")
    assert witness.missing(path) == []
    assert +witness.taken_back == {}
