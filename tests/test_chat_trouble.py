"""What a chat does where something is not as it was: deleted, continued elsewhere, or defective."""

from __future__ import annotations

import io

import pytest
from flowcases import Scripted, press, scripted
from rich.console import Console
from screencases import until

from specfit.app.store import Unsent
from specfit.app.unsent import UnsentText


# Defects


async def test_a_defect_keeps_what_is_written_and_tells_nothing_of_it(store, monkeypatch):
    with pytest.raises(KeyError):
        async with scripted(Scripted("A1"), store=store) as pilot:
            app = pilot.app
            told = io.StringIO()
            monkeypatch.setattr(app, "error_console", Console(file=told, width=200))

            def fail() -> None:
                secret = "a secret of mine"
                raise KeyError(secret)

            await press(pilot, *"unsent")
            monkeypatch.setattr(app, "action_panel", fail)
            app.simulate_key("ctrl+t")
            await until(lambda: app._exit_renderables or not app.is_running)
            await until(lambda: not app.is_running)
    lines = told.getvalue()
    assert "secret" not in lines and "unsent" not in lines
    assert "(KeyError)" in lines and "issue tracker" in lines and "is kept" in lines
    assert "tests/test_chat_trouble.py:" in lines
    assert UnsentText(store).take(None) == Unsent("unsent")
    assert not UnsentText(store).take(None)
