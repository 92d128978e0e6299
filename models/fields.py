"""Values of a checkpoint's config.json, checked: JSON knows NaN, and numbers without bound."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from specfit.models.errors import ModelFileError

_LARGEST = 2**31
_LONGEST_CONFIG = 1 << 20


def is_head_folder(path: Path) -> bool:
    """Whether a folder's config.json is an EAGLE head's, by its architecture or its keys."""
    config = path / "config.json"
    with suppress(OSError, ValueError, RecursionError):
        if not config.is_file() or config.stat().st_size > _LONGEST_CONFIG:
            return False
        content: Any = json.loads(config.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            named = json.dumps([content.get("architectures"), list(content)]).lower()
            return "eagle" in named or "draft_vocab_size" in content
    return False


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object under key, empty if there is none."""
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def number(path: Path, config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A number above 0; `null` stands for the default. Raises ModelFileError."""
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise ModelFileError(
            f"{path}: {key} in config.json must be a number above 0, but is {_shown(value)}."
        )
    return float(value)


def integer(path: Path, config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number above 0; `null` stands for the default. Raises ModelFileError."""
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST:
        raise ModelFileError(
            f"{path}: {key} in config.json must be a whole number above 0, but is {_shown(value)}."
        )
    return value


def _shown(value: object) -> str:
    """What was found, short: the number of an absurd value can have thousands of digits."""
    if value is None:
        return "missing"
    if isinstance(value, int) and not -_LARGEST < value < _LARGEST:
        return "a number of absurd size"
    return repr(value)[:40] if isinstance(value, int | float | str) else f"a {type(value).__name__}"
