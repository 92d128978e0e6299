"""The mouse on what is not there any more, while an answer's blocks are replaced.

A widget that was removed stays on Textual's map of the screen until the screen is laid out anew,
and a click there looked for the parent that it no longer has. Text that became shorter was looked
for where it had been selected.
"""

from __future__ import annotations

from textual import events
from textual.app import App
from textual.screen import Screen


class ChangingScreen(Screen[None]):
    """A screen whose text may change under a selection, which is then none."""

    def get_selected_text(self) -> str | None:
        try:
            return super().get_selected_text()
        except IndexError:
            self.clear_selection()
            return None


class ClicksOnWhatIsThere(App[None]):
    """Ignores the mouse over a widget that has been removed."""

    def get_default_screen(self) -> Screen[None]:
        return ChangingScreen(id="_default")

    async def on_event(self, event: events.Event) -> None:
        if not (isinstance(event, events.MouseDown | events.MouseMove) and self._is_gone(event)):
            await super().on_event(event)

    def _is_gone(self, event: events.MouseEvent) -> bool:
        if not self.screen_stack:
            return True
        widget, _ = self.screen.get_widget_and_offset_at(event.x, event.y)
        return widget is not None and widget.parent is None and not isinstance(widget, Screen)
