"""The backend: llama.cpp, the cycle, and what it reports."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import SpecfitError
from .report import CycleMeans, CycleReport, Report

if TYPE_CHECKING:
    from specfit.planner import Spec

    from .engine import Engine
    from .generation import Generation
    from .loading import LoadOptions
    from .sampling import Sampling

__all__ = [
    "CycleMeans",
    "CycleReport",
    "Engine",
    "Generation",
    "LoadOptions",
    "Report",
    "Sampling",
    "Spec",
    "SpecfitError",
]

# Imported when first asked for: llama.cpp takes a second, and replays need none of it; and
# the doctor is to say what is wrong with any of them.
_LATER = {
    "Engine": "specfit.backend.engine",
    "Generation": "specfit.backend.generation",
    "LoadOptions": "specfit.backend.loading",
    "Sampling": "specfit.backend.sampling",
    "Spec": "specfit.planner",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
