"""The command palette where there is no room for its list."""

from __future__ import annotations

import pytest
from textual.app import App
from textual.command import CommandList

from specfit.app.widgets.palette import Palette


@pytest.mark.parametrize("rows", [10, 0])
async def test_keys_are_borne_by_a_list_with_and_without_room(rows: int) -> None:
    app: App[None] = App()
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(Palette())
        await pilot.pause(0.3)
        commands = app.screen.query_one(CommandList)
        assert commands.option_count > 2
        commands.highlighted = 0
        commands.styles.height = rows
        commands._clear_caches()
        await pilot.pause()
        await pilot.press("pageup", "pagedown")
        assert isinstance(app.screen, Palette)
        assert bool(commands.highlighted) is bool(rows)
