"""The mouse over what has just been removed, or has become shorter."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.geometry import Offset
from textual.selection import Selection
from textual.widgets import Static

from specfit.app.clicks import ClicksOnWhatIsThere


class Page(ClicksOnWhatIsThere):
    def compose(self) -> ComposeResult:
        yield Static("one")
        yield Static("two")


def mouse(kind: type[events.MouseEvent], y: int) -> events.MouseEvent:
    return kind(None, 1, y, 0, 0, 1, False, False, False, 1, y)


async def test_a_click_on_a_removed_widget_is_ignored_and_others_are_not() -> None:
    app = Page()
    async with app.run_test() as pilot:
        await pilot.pause()
        first = app.query(Static).first()
        page = first._parent
        first._parent = None  # as while it goes; the map of the screen still has it
        for kind in (events.MouseDown, events.MouseMove, events.MouseUp):
            await app.on_event(mouse(kind, 0))
        assert app.screen._select_state is None
        await app.on_event(mouse(events.MouseDown, 1))
        assert app.screen._select_state is not None
        first._parent = page


async def test_a_selection_of_text_that_became_shorter_is_none() -> None:
    app = Page()
    async with app.run_test() as pilot:
        text = app.query(Static).first()
        text.update("one\ntwo")
        await pilot.pause()
        app.screen.selections = {text: Selection(Offset(0, 1), Offset(3, 1))}
        assert app.screen.get_selected_text() == "two"
        text.update("one")
        await pilot.pause()
        app.screen.selections = {text: Selection(Offset(0, 1), Offset(3, 1))}
        assert not app.screen.get_selected_text()
        assert not app.screen.selections
