"""Kinds of values that options take."""

from __future__ import annotations

import math
from typing import Any

import click

ALL_LAYERS = -1
# What llama.cpp's types hold.
MAX_INT = 2**31 - 1
# Texts at once: all but one of the rows that a decode has at most (backend/context.py).
MOST_LINES = 63


class Finite(click.FloatRange):
    """A range of numbers; "nan", which compares with nothing, and "inf" are outside every one."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


AUTO = "auto"


class GibOrAuto(Finite):
    """A number of GiB, or "auto", which is None."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == AUTO:
            return None
        try:
            float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number of GiB nor auto.", param, ctx)
        return super().convert(value, param, ctx)


class Count(click.IntRange):
    """A number or "auto", which is None; "all" is -1 where that is allowed."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == AUTO:
            return None
        if value == "all" and self.min == ALL_LAYERS:
            return ALL_LAYERS
        return super().convert(value, param, ctx)
