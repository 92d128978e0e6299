"""Questions that a process of its own answers, since what it looks at may crash, hang or fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_TIMEOUT_S = 120
_LONGEST = 300


@dataclass(frozen=True)
class Answer:
    """told: what the process told until its end. problem: how it ended, "" if well."""

    told: Mapping[str, Any]
    problem: str = ""


def ask(module: str) -> Answer:
    """Runs a module of ours that tells facts; never raises."""
    command = [sys.executable, "-m", module]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        told = read(0, error.stdout or b"", b"").told
        return Answer(told, f"it does not answer within {_TIMEOUT_S} seconds")
    except OSError as error:
        return Answer({}, f"it cannot be asked: {error.strerror or error}")
    return read(done.returncode, done.stdout, done.stderr)


def read(code: int, out: bytes, err: bytes) -> Answer:
    """What a process told, a JSON object a line of which later ones add to earlier ones, and what
    its end means."""
    told: dict[str, Any] = {}
    for line in out.splitlines():
        with suppress(ValueError):
            told |= json.loads(line) if line.startswith(b"{") else {}
    if code == 0:
        return Answer(told)
    said = err.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
    if code < 0:
        last = f": {said[-1][:_LONGEST]}" if err.strip() else ""
        why = ", as what is built for another processor does" if -code == signal.SIGILL else ""
        return Answer(told, f"it crashes ({_name(-code)}{last}){why}")
    return Answer(told, said[-1][:_LONGEST])


def tell(**facts: Any) -> None:
    """What is known is told at once: the next look may be the last."""
    print(json.dumps(facts), flush=True)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
