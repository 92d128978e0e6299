"""Traces as JSON lines: a header, then for every text its prompt and its steps.

Arrays of bits and states are base64; a name that ends in .gz is compressed. Texts are written as
they are recorded, so that an interrupted recording is a shorter one.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from specfit.planner import DraftTree
from specfit.planner.experts import n_words
from specfit.planner.trace import Trace, TracedStep, TracedText

from .errors import SpecfitError

FORMAT = 1


class TraceWriter:
    """Appends texts to a new file; a context manager."""

    def __init__(self, path: Path, header: Trace) -> None:
        """header: its texts are not written."""
        self._file = _opened(path, "w")
        self._write(
            {
                "specfit_trace": FORMAT,
                "layers": header.n_layers,
                "experts": header.n_experts,
                "used": header.n_used,
                "about": header.about,
            }
        )

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._file.close()

    def add(self, text: TracedText) -> None:
        self._write(
            {
                "text": text.name,
                "prompt": text.prompt.tolist(),
            }
        )
        for step in text.steps:
            self._write(
                {
                    "context": step.context,
                    "parents": step.tree.parents.tolist(),
                    "tokens": step.tree.tokens.tolist(),
                    "probs": [float(f"{p:.5g}") for p in step.tree.probs.tolist()],
                    "target": [float(f"{p:.5g}") for p in step.target.tolist()],
                    "next": step.next,
                    "true_experts": _encoded(step.experts),
                    "forecast_experts": _encoded(step.forecast),
                    "expanded": step.expanded.tolist(),
                    "hidden": _encoded(step.hidden),
                }
            )
        self._file.flush()

    def _write(self, record: dict[str, object]) -> None:
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")


def read_trace(path: Path) -> Trace:
    """Raises SpecfitError, naming file and line, if it is no trace; a torn end is left out."""
    try:
        with _opened(path, "r") as file:
            return _parsed(path, _records(path, file))
    except (OSError, EOFError) as error:
        raise SpecfitError(f"{path} cannot be read: {error}") from error


def _opened(path: Path, mode: str) -> IO[str]:
    if path.suffix == ".gz":
        # Level 1: bits and half floats hardly shrink further.
        return cast(IO[str], gzip.open(path, mode + "t", compresslevel=1, encoding="utf-8"))
    return path.open(mode, encoding="utf-8")


def _records(path: Path, file: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            if not line.endswith("\n"):
                return
            raise SpecfitError(f"{path}: line {number} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise SpecfitError(f"{path}: line {number} is not an object")
        yield number, record


def _parsed(path: Path, records: Iterator[tuple[int, dict[str, Any]]]) -> Trace:
    _, header = next(records, (0, {}))
    if header.get("specfit_trace") != FORMAT:
        raise SpecfitError(f"{path} is not a trace that specfit-bench --trace wrote")
    at = 1
    try:
        layers, experts, used = (int(header[key]) for key in ("layers", "experts", "used"))
        shape = (layers, n_words(experts))
        texts: list[tuple[dict[str, Any], list[TracedStep]]] = []
        for at, record in records:  # noqa: B007
            if "text" in record:
                texts.append((record, []))
            else:
                texts[-1][1].append(_step(record, shape))
        return Trace(
            layers,
            experts,
            used,
            header["about"],
            tuple(
                TracedText(
                    str(text["text"]),
                    np.array(text["prompt"], np.int32),
                    tuple(steps),
                )
                for text, steps in texts
            ),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise SpecfitError(
            f"{path}: line {at} is damaged ({type(error).__name__}: {error})"
        ) from error


def _step(record: dict[str, Any], shape: tuple[int, int]) -> TracedStep:
    n, expanded = len(record["tokens"]), np.array(record["expanded"], np.int32)
    tree = DraftTree(
        np.array(record["parents"], np.int32),
        np.array(record["tokens"], np.int32),
        np.array(record["probs"], np.float64),
    )
    target = np.array(record["target"], np.float64)
    experts = _decoded(record["true_experts"], np.uint64, (n, *shape))
    hidden = _decoded(record["hidden"], np.float16, (len(expanded), -1))
    if not len(tree.parents) == len(tree.probs) == len(target) == n or experts is None:
        raise ValueError("its arrays differ in length")
    if (tree.parents[1:] >= np.arange(1, n)).any() or (tree.parents[1:] < 0).any():
        raise ValueError("a node comes before its parent")
    assert hidden is not None
    return TracedStep(
        context=int(record["context"]),
        tree=tree,
        next=int(record["next"]),
        target=target,
        experts=experts,
        forecast=_decoded(record["forecast_experts"], np.uint64, (n, *shape)),
        hidden=hidden,
        expanded=expanded,
    )


def _encoded(array: NDArray[Any] | None) -> str | None:
    if array is None:
        return None
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(np.ascontiguousarray(little).tobytes()).decode()


def _decoded(text: str | None, kind: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any] | None:
    if text is None:
        return None
    little = np.dtype(kind).newbyteorder("<")
    return np.frombuffer(base64.b64decode(text), little).astype(kind).reshape(shape)
