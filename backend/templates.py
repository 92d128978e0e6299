"""Chat templates. Each is a program that came with a model: Jinja's sandbox keeps it from the
machine, but not from loops and texts without end, against which Jinja, like its kin, advises a
process with limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .confined import Confined, Ended
from .errors import SpecfitError

# Sound templates take thousandths of a second, and no context holds so many characters.
SECONDS, BYTES, CHARACTERS = 3, 1 << 29, 1 << 24

process = Confined("follow_template.py", CHARACTERS, seconds=SECONDS, size=BYTES)


def follow(template: str, values: Mapping[str, Any]) -> str:
    """What the template makes of `values`. Raises SpecfitError."""
    try:
        answer = process.ask(template=template, values=values)
    except Ended as end:
        raise SpecfitError(f"the model's chat template {end} with these messages") from None
    if "text" not in answer:
        raise SpecfitError(f"the model's chat template {answer['wrong']}")
    return answer["text"]
