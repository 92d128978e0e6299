"""The planner: pure functions of what it is told.

Imports numpy only (the search is compiled C++, `search.cpp`); knows no clock, no model, no file.
"""

from .acceptance import Acceptance
from .beliefs import Beliefs, UnionByRows
from .cost import (
    NO_OVERHEADS,
    PLAINLY,
    PROMPT,
    Before,
    CostPoint,
    CycleCost,
    Levels,
    Overheads,
    cost_from_points,
)
from .experts import Bitsets, pack, union_per_layer
from .forecast import Forecast
from .found import NOTHING_FOUND, Found, found_by
from .lines import best_lines
from .livecost import LiveCost
from .lookup import completed
from .modes import make_policy
from .ngram import NgramIndex
from .outlook import Outlook
from .policies import Choice, Outcome, Policy, widths_of
from .reason import Reason, Step
from .search import Plan
from .spec import Spec
from .tree import (
    DRAFTERS,
    HEAD,
    LOOKUP,
    BoolArray,
    DraftTree,
    FloatArray,
    IntArray,
    named_by,
)

__all__ = [
    "DRAFTERS",
    "HEAD",
    "LOOKUP",
    "NOTHING_FOUND",
    "NO_OVERHEADS",
    "PLAINLY",
    "PROMPT",
    "Acceptance",
    "Before",
    "Beliefs",
    "Bitsets",
    "BoolArray",
    "Choice",
    "CostPoint",
    "CycleCost",
    "DraftTree",
    "FloatArray",
    "Forecast",
    "Found",
    "IntArray",
    "Levels",
    "LiveCost",
    "NgramIndex",
    "Outcome",
    "Outlook",
    "Overheads",
    "Plan",
    "Policy",
    "Reason",
    "Spec",
    "Step",
    "UnionByRows",
    "best_lines",
    "completed",
    "cost_from_points",
    "found_by",
    "make_policy",
    "named_by",
    "pack",
    "union_per_layer",
    "widths_of",
]
