"""Sets of sampling values that go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .parameters import Parameters


@dataclass(frozen=True)
class Preset:
    """Values by a name. changes: fields of `Parameters`; the others stay as they are."""

    name: str
    about: str
    changes: Mapping[str, Any]

    def applied(self, parameters: Parameters) -> Parameters:
        return replace(parameters, **self.changes)


def _sampling(
    temp: float | None, top_p: float | None, top_k: int | None, min_p: float | None
) -> dict[str, Any]:
    return {"temp": temp, "top_p": top_p, "top_k": top_k, "min_p": min_p}


PRESETS = (
    Preset(
        "The model's own",
        "What the makers of the loaded model recommend, whichever model that is.",
        _sampling(None, None, None, None),
    ),
    # The model cards of Qwen3 give both.
    Preset(
        "Qwen3, thinking",
        "Thinks before it answers; sampling as Qwen3's makers publish it for that.",
        _sampling(0.6, 0.95, 20, 0.0) | {"thinking": True},
    ),
    Preset(
        "Qwen3, not thinking",
        "Answers at once; sampling as Qwen3's makers publish it for that.",
        _sampling(0.7, 0.8, 20, 0.0) | {"thinking": False},
    ),
    Preset(
        "Greedy",
        "Always the likeliest token: the same question gets the same answer.",
        _sampling(0.0, None, None, None),
    ),
)


def preset_of(parameters: Parameters) -> Preset | None:
    """The preset that these values are, if they are one."""
    for preset in PRESETS:
        if preset.applied(parameters) == parameters:
            return preset
    return None
