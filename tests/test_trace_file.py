"""Traces on disk: what is read is what was written, and damage is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tracecases import EXPERTS, made_up_trace, write_trace

from specfit.backend import SpecfitError
from specfit.backend.trace_file import read_trace

Record = dict[str, Any]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    trace = made_up_trace(3, texts=2)
    write_trace(path, trace)
    return path


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_what_is_read_is_what_was_written(tmp_path: Path, name: str) -> None:
    trace = made_up_trace(4, texts=2)
    write_trace(tmp_path / name, trace)
    read = read_trace(tmp_path / name)
    assert (read.n_layers, read.n_experts, read.n_used) == (3, EXPERTS, 4)
    assert [text.name for text in read.texts] == ["text-0", "text-1"]
    for mine, other in zip(trace.texts[1].steps, read.texts[1].steps, strict=True):
        assert (mine.context, mine.next) == (other.context, other.next)
        assert mine.tree.parents.tolist() == other.tree.parents.tolist()
        assert mine.tree.tokens.tolist() == other.tree.tokens.tolist()
        assert mine.expanded.tolist() == other.expanded.tolist()
        np.testing.assert_allclose(mine.target, other.target, rtol=1e-4)
        np.testing.assert_array_equal(mine.experts, other.experts)
        np.testing.assert_array_equal(mine.hidden, other.hidden)
        assert other.forecast is None


def test_a_torn_last_line_is_left_out(written: Path) -> None:
    written.write_bytes(written.read_bytes()[:-40])
    assert [len(text.steps) for text in read_trace(written).texts] == [3, 2]


@pytest.mark.parametrize(
    ("line", "damage", "reason"),
    [
        (0, {"layers": -1}, "makes no sense"),
        (0, {"used": 10**30}, "makes no sense"),
        (0, {"used": 3}, "does not use 3 experts"),
        (0, {"about": None}, "makes no sense"),
        (1, {"prompt": [10**30]}, "line 2 is damaged"),
        (2, {"parents": lambda old: [0, *old[1:]]}, "breadth-first"),
        (2, {"parents": lambda old: [*old[:-1], len(old)]}, "before its parent"),
        (2, {"parents": lambda old: old[:-1]}, "differ in length"),
        (2, {"tokens": lambda old: [-1, *old[1:]]}, "out of range"),
        (2, {"tokens": lambda old: [1 << 30, *old[1:]]}, "out of range"),
        (2, {"tokens": []}, "line 3 is damaged"),
        (2, {"probs": lambda old: [*old[:-1], -1]}, "outside of 0 to 1"),
        (2, {"target": lambda old: [*old[:-1], 2]}, "outside of 0 to 1"),
        (2, {"target": lambda old: [*old[:-1], float("nan")]}, "not JSON"),
        (2, {"context": -1}, "out of range"),
        (2, {"next": float("inf")}, "not JSON"),
        (2, {"expanded": lambda old: [*old[:-1], 10**6]}, "line 3 is damaged"),
        (2, {"expanded": lambda old: [old]}, "line 3 is damaged"),
        (2, {"hidden": None}, "no experts or no states"),
        (2, {"true_experts": lambda old: old + old}, "line 3 is damaged"),
        (2, {"true_experts": lambda old: "/" * len(old)}, "does not use 4 experts"),
        (2, {"next": None}, "line 3 is damaged"),
    ],
)
def test_damage_is_named(written: Path, line: int, damage: Record, reason: str) -> None:
    lines = [json.loads(text) for text in written.read_text().splitlines()]
    for key, change in damage.items():
        is_new = not isinstance(change, Callable)  # type: ignore[arg-type]
        lines[line][key] = change if is_new else change(lines[line][key])
    written.write_text("".join(json.dumps(record) + "\n" for record in lines))
    with pytest.raises(SpecfitError, match=reason):
        read_trace(written)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\x89PNG\xff\xfe\n", "is not a trace"), (b"[" * 200_000 + b"\n", "nested too deeply")],
)
def test_what_is_no_trace_at_all_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(SpecfitError, match=reason):
        read_trace(path)


def test_of_a_recording_that_was_killed_what_was_recorded_is_read(tmp_path: Path) -> None:
    path, trace = tmp_path / "trace.jsonl.gz", made_up_trace(20)
    write_trace(path, trace)
    path.write_bytes(path.read_bytes()[:-1000])
    steps = [sum(len(text.steps) for text in one.texts) for one in (read_trace(path), trace)]
    assert 0.5 * steps[1] < steps[0] < steps[1]
