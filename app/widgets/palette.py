"""Textual's command palette, which may be too low for its list."""

from __future__ import annotations

from textual.command import CommandList, CommandPalette


class Palette(CommandPalette):
    """Takes keys for the list only where the list has room: without any, PageUp and PageDown would
    look for lines that it does not have."""

    def _action_command_list(self, action: str) -> None:
        if self.query_one(CommandList).scrollable_content_region:
            super()._action_command_list(action)
