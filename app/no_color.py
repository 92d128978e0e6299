"""NO_COLOR (no-color.org): the chat without any colour.

Textual itself turns colours into greys, which are colours to a terminal that was asked for none.
Here what colours tell is told by attributes: the app is painted in black and white, and of that
picture only the attributes are sent, reverse where a cell is filled and dim where text is muted.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
from functools import lru_cache

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

# Of the way from black to white: what is farther from the widget's background is a filled cell,
# and what is nearer to it is muted text.
FILLED, MUTED = 0.4, 0.7
BLACK_AND_WHITE = Theme(
    name="no-color",
    primary="#ffffff",
    secondary="#808080",
    warning="#ffffff",
    error="#ffffff",
    success="#ffffff",
    accent="#ffffff",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#000000",
    variables={
        "block-cursor-blurred-background": "#000000",
        "block-cursor-blurred-text-style": "underline",
        "input-selection-background": "#ffffff",
        "screen-selection-background": "#ffffff",
    },
)


class Attributes(LineFilter):
    """Takes the colours out of lines and leaves attributes in their place."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """background: that of the widget that the segments are a line of."""
        level = background.brightness
        return [
            Segment(text, None if style is None else without_colours(style, level), control)
            for text, style, control in segments
        ]


@lru_cache(4096)
def without_colours(style: Style, background: float) -> Style:
    """`style` in attributes only. background: the widget's, from 0 for black to 1 for white."""
    on = _level(style.bgcolor, background)
    filled = abs(on - background) > FILLED
    muted = style.color is not None and abs(_level(style.color, 1.0) - on) < MUTED
    attributes = Style(dim=style.dim or (muted and not filled), reverse=style.reverse or filled)
    plain = style.without_color + attributes
    return plain + Style.from_meta(style.meta) if style.meta else plain  # what a click does


def _level(color: RichColor | None, default: float) -> float:
    if color is None or color.is_default:
        return default
    return Color.from_rich_color(color).brightness


def wanted(environment: MutableMapping[str, str]) -> bool:
    """Whether the user wants no colours; a variable that is empty does not say so, and goes."""
    if not environment.get("NO_COLOR"):
        environment.pop("NO_COLOR", None)  # Textual would obey it
        return False
    return True


class PlainApp(App[None]):
    """An app that obeys NO_COLOR."""

    def __init__(self) -> None:
        self._plain = wanted(os.environ)
        super().__init__()

    @property
    def current_theme(self) -> Theme:
        return BLACK_AND_WHITE if self._plain else super().current_theme

    def get_line_filters(self) -> Sequence[LineFilter]:
        return (ATTRIBUTES,) if self._plain else super().get_line_filters()


ATTRIBUTES = Attributes()
