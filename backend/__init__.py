"""The backend: llama.cpp, the cycle, and what it reports."""

from specfit.planner import Spec

from .engine import Engine
from .errors import SpecfitError
from .generation import Generation
from .loading import LoadOptions
from .report import CycleMeans, CycleReport, Report
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
