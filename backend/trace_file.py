"""Traces as JSON lines: a header, then for every text its prompt and its steps.

Arrays of bits and states are base64; a name that ends in .gz is compressed. Texts are written as
they are recorded, so that an interrupted recording is a shorter one.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from specfit.planner import DraftTree
from specfit.planner.experts import n_words, sizes
from specfit.planner.trace import Trace, TracedStep, TracedText

from .errors import SpecfitError

FORMAT = 1
# Tokens and contexts are smaller than this; planners keep tables by token.
MOST = 1 << 24
# Characters of a line: a tree of 500 nodes with states of 7168 numbers has 10 million.
LONGEST = 1 << 26


class _Damage(ValueError):
    """In words of ours, unlike what numpy says of it."""


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
    except UnicodeDecodeError as error:
        raise SpecfitError(f"{path} is not a trace that specfit-bench --trace wrote") from error
    except (OSError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecfitError(f"{path} cannot be read: {reason}") from error


def _opened(path: Path, mode: str) -> IO[str]:
    if path.suffix == ".gz":
        # Level 1: bits and half floats hardly shrink further.
        return cast(IO[str], gzip.open(path, mode + "t", compresslevel=1, encoding="utf-8"))
    return path.open(mode, encoding="utf-8")


def _lines(file: IO[str]) -> Iterator[str]:
    # What was compressed ends without its mark when the recording was killed.
    with suppress(EOFError):
        yield from iter(lambda: file.readline(LONGEST + 1), "")


def _records(path: Path, file: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(_lines(file), 1):
        if len(line) > LONGEST:
            raise SpecfitError(f"{path}: line {number} is longer than any that is recorded")
        try:
            record = json.loads(line, parse_constant=_no_number)
        except RecursionError as error:
            raise SpecfitError(f"{path}: line {number} is nested too deeply") from error
        except ValueError as error:
            if not line.endswith("\n"):
                return
            raise SpecfitError(f"{path}: line {number} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise SpecfitError(f"{path}: line {number} is not an object")
        yield number, record


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _parsed(path: Path, records: Iterator[tuple[int, dict[str, Any]]]) -> Trace:
    _, header = next(records, (0, {}))
    if header.get("specfit_trace") != FORMAT:
        raise SpecfitError(f"{path} is not a trace that specfit-bench --trace wrote")
    at = 1
    try:
        layers, experts, used = (int(header[key]) for key in ("layers", "experts", "used"))
        if not (layers >= 1 and 0 <= used <= experts and isinstance(header["about"], dict)):
            raise _Damage("its header makes no sense")
        shape = (layers, n_words(experts))
        texts: list[tuple[str, NDArray[np.int32], list[TracedStep]]] = []
        for at, record in records:  # noqa: B007
            if "text" in record:
                texts.append((str(record["text"]), np.array(record["prompt"], np.int32), []))
            else:
                texts[-1][2].append(_step(record, shape, used))
        return Trace(
            layers,
            experts,
            used,
            header["about"],
            tuple(TracedText(name, prompt, tuple(steps)) for name, prompt, steps in texts),
        )
    except KeyError as error:
        raise SpecfitError(f"{path}: line {at} is damaged: it has no {error}") from error
    except _Damage as error:
        raise SpecfitError(f"{path}: line {at} is damaged: {error}") from error
    except (IndexError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise SpecfitError(f"{path}: line {at} is damaged") from error


def _step(record: dict[str, Any], shape: tuple[int, int], used: int) -> TracedStep:
    n, expanded = len(record["tokens"]), np.array(record["expanded"], np.int32)
    tree = DraftTree(
        np.array(record["parents"], np.int32),
        np.array(record["tokens"], np.int32),
        np.array(record["probs"], np.float64),
    )
    target = np.array(record["target"], np.float64)
    experts = _decoded(record["true_experts"], np.uint64, (n, *shape))
    hidden = _decoded(record["hidden"], np.float16, (len(expanded), -1))
    arrays = (tree.parents, tree.tokens, tree.probs, target)
    if not n or any(array.shape != (n,) for array in arrays) or expanded.ndim != 1:
        raise _Damage("its arrays differ in length")
    if experts is None or hidden is None:
        raise _Damage("it has no experts or no states")
    if tree.parents[0] != -1 or (np.diff(tree.parents) < 0).any():
        raise _Damage("its nodes are not in breadth-first order")
    if (tree.parents[1:] >= np.arange(1, n)).any() or (tree.parents[1:] < 0).any():
        raise _Damage("a node comes before its parent")
    if not all(((array >= 0) & (array <= 1)).all() for array in (tree.probs, target)):
        raise _Damage("it has probabilities outside of 0 to 1")
    if not set(sizes(experts).ravel().tolist()) <= {0, used}:
        raise _Damage(f"a node does not use {used} experts")
    context, following = int(record["context"]), int(record["next"])
    numbers = (tree.tokens.min(), context, following, -expanded.max(initial=0) + n - 1)
    if min(numbers) < 0 or max(tree.tokens.max(), context, following) >= MOST:
        raise _Damage("a token, node or context is out of range")
    if not len(expanded) or expanded[0] != 0 or (np.diff(expanded) <= 0).any():
        raise _Damage("its expanded nodes are not in order")
    return TracedStep(
        context=context,
        tree=tree,
        next=following,
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
