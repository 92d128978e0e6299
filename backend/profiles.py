"""Cost profiles: what cycles cost on another machine, measured there, shipped with the package.

A profile is JSON: "points" of {"rows", "union", "ms"} (verified rows, mean union of experts per
layer, milliseconds of one decode), "draft_level_ms", and "top_k". Its mean union per layer is read
as the model's own, so that drafting keeps its true share of a cycle. A profile that has one union
per row count may borrow an expert's price: "expert_price": {"profile": NAME, "share": part of it}.
As calibration finds them, it may have "level_ms" (by nodes expanded, instead of
"draft_level_ms"), "switch_ms" and "settle_ms", and "context_ms" at "context_rows"; see `Measured`.
Decodes are not padded where it is "cached".
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from specfit.planner import CostPoint, CycleCost, FloatArray, cost_from_points

from .errors import SpecfitError

FOLDER = Path(__file__).with_name("profiles")


def shipped_profiles() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load_profile(name_or_path: str, layer_weights: FloatArray, max_rows: int) -> CycleCost:
    """The cost of a cycle under a shipped profile or a file, for a model of `layer_weights`.

    Raises SpecfitError, naming the file, if there is no such profile or it is malformed.
    """
    path = Path(name_or_path)
    if name_or_path in shipped_profiles():
        path = FOLDER / f"{name_or_path}.json"
    if not path.is_file():
        raise SpecfitError(
            f"--cost-profile {name_or_path}: no such file, and the shipped profiles are "
            + ", ".join(shipped_profiles())
        )
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(profile, dict):
            raise TypeError("it is no JSON object")
        return _cost(profile, layer_weights, max_rows)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OSError,
        OverflowError,
        RecursionError,
    ) as error:
        raise SpecfitError(
            f"--cost-profile {name_or_path} is not a cost profile ({_in_words(error)}); it needs "
            '"points" of rows, union and ms, and "draft_level_ms"'
        ) from error


def _in_words(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def _cost(profile: dict[str, Any], layer_weights: FloatArray, max_rows: int) -> CycleCost:
    # A dense model has no experts to weigh; one layer of weight 1 lets the points be read.
    weights = layer_weights if layer_weights.sum() > 0 else layer_weights[:0]
    price = None
    if borrowed := profile.get("expert_price"):
        if borrowed["profile"] not in set(shipped_profiles()) - {profile.get("name")}:
            raise ValueError("an expert_price is borrowed from a shipped profile")
        lender = load_profile(borrowed["profile"], weights, max_rows)
        price = lender.expert_ms * float(borrowed["share"])
    draft_ms, top_k = float(profile["draft_level_ms"]), int(profile.get("top_k", 8))
    level_ms = np.array(profile.get("level_ms") or [draft_ms], np.float64)
    switch_ms, settle_ms = (float(profile.get(name, 0.0)) for name in ("switch_ms", "settle_ms"))
    context_ms = None
    if slopes := profile.get("context_ms"):
        context_ms = np.interp(np.arange(max_rows + 1), profile["context_rows"], slopes)
    by_text = () if context_ms is None else context_ms
    extras = np.array([draft_ms, switch_ms, settle_ms, *level_ms, *by_text])
    if not (np.isfinite(extras).all() and (extras >= 0).all() and top_k >= 1):
        raise ValueError("times of drafting, switching, context must not be negative, nor top_k 0")
    cost = cost_from_points(
        [CostPoint(int(p["rows"]), float(p["union"]), float(p["ms"])) for p in profile["points"]],
        top_k=top_k,
        layer_weights=weights,
        level_ms=level_ms,
        max_rows=max_rows,
        switch_ms=switch_ms,
        settle_ms=settle_ms,
        context_ms=context_ms,
        default_expert_ms=price,
    )
    return replace(cost, unions=None) if profile.get("cached") else cost
