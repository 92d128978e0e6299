"""The draft heads that a model can be loaded with, and why others cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.widgets import OptionList

from ..library import HeadEntry
from ..plain_text import shown

WITHOUT = "no draft head"


@dataclass(frozen=True)
class HeadLine:
    """head: None is doing without. problem: why it cannot be used; "" if it can."""

    head: HeadEntry | None
    problem: str = ""

    def __str__(self) -> str:
        if self.head is None:
            return f"○ {WITHOUT}"
        if not self.problem:
            return f"● EAGLE-3 head {self.head.label}"
        reason = self.problem.replace(str(self.head.path), self.head.label)
        return f"✗ {self.head.label}: {reason}"


class HeadList(OptionList):
    """Lines of heads; those that do not fit can be read but not chosen."""

    DEFAULT_CSS = """
    HeadList {
        height: auto;
        max-height: 6;
        scrollbar-size-vertical: 1;
    }
    """

    def __init__(self) -> None:
        super().__init__(compact=True, markup=False)
        self._heads: tuple[HeadLine, ...] = ()

    @property
    def chosen(self) -> HeadLine | None:
        """The line at the cursor."""
        return None if self.highlighted is None else self._heads[self.highlighted]

    def show(self, lines: Sequence[HeadLine]) -> None:
        """These lines; the cursor stays on its head if that is there, else it goes to the first."""
        if tuple(lines) == self._heads:
            return
        before = self.chosen
        moved = bool(self.highlighted)
        self._heads = tuple(lines)
        self.set_options(shown(str(line)) for line in lines)
        if lines:
            self.highlighted = self._heads.index(before) if moved and before in lines else 0
