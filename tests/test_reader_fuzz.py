"""Our own readers on files with any damage: their own errors or none, in bounded time and memory.

pytest tests/test_reader_fuzz.py --hypothesis-profile long    # 20,000 files for each
"""

from __future__ import annotations

import json
import re
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from randomhead import LAYERS, VOCAB, make_checkpoint
from storecases import turn
from tinymodel import write_dense
from tracecases import made_up_trace, write_trace

from specfit.app.batch import batch
from specfit.app.batch_lines import Reading, Request, Unsound
from specfit.app.entry import AppError
from specfit.app.session import Session
from specfit.app.settings import COMMANDS, read_settings
from specfit.app.store import Store, StoreError, import_json, to_json
from specfit.app.system_prompts import read_prompts
from specfit.backend import SpecfitError, calibration, kept_costs, steady
from specfit.backend.memory import recall
from specfit.backend.placing import head_bytes
from specfit.backend.profiles import FOLDER, load_profile
from specfit.backend.trace_file import read_trace
from specfit.models import ModelFileError
from specfit.models.checkpoint import TargetShape, read_checkpoint
from specfit.models.gguf_info import read_gguf_info
from specfit.planner import Acceptance, Beliefs, Outlook, UnionByRows

SECONDS, MIB = 10, 400

# What is written over the file, or into it.
NUMBERS = [0, 1, 2, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1]
BINARY = st.sampled_from(
    [struct.pack("<Q", n) for n in NUMBERS] + [struct.pack("<I", n % 2**32) for n in NUMBERS]
) | st.binary(min_size=1, max_size=9)
LITERALS = st.sampled_from(
    [
        *(b"null", b"true", b"0", b"-1", b"1.5", b"NaN", b"-Infinity", b"1e400", b"9" * 5000),
        *(b'""', b'"a"', rb'"\ud800"', b"[]", b"{}", b"[[1]]", b"[" * 5000, b'{"a":' * 5000),
        *(str(n).encode() for n in NUMBERS),
        *(b"=", b"'", b"[chat]\n", b"]", b"}", b",", b"\n", b"\0", b"\xff", b"#", b"."),
        b"a." * 2000,
    ]
)
Edit = tuple[str, int, bytes]
PLACES = st.integers(0, 2**20)


def edits(ways: tuple[str, ...], pieces: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[Edit]]:
    return st.lists(st.tuples(st.sampled_from(ways), PLACES, pieces), min_size=1, max_size=4)


BYTES = edits(("over", "over", "over", "into", "cut", "out"), BINARY)
JSON = edits(("value", "value", "value", "over", "into", "cut", "out"), LITERALS)
_VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"(?!\s*:)|-?\d[\d.eE+-]*|\[[^\[\]]*\]|true|false|null')


def damaged(good: bytes, wanted: list[Edit], within: int | None = None) -> bytes:
    """within: of so many bytes, the first."""
    data = good
    for way, place, piece in wanted:
        at = place % (min(len(data), within or len(data)) + 1)
        if way == "value" and (values := list(_VALUE.finditer(data))):
            found = values[place % len(values)]
            data = data[: found.start()] + piece + data[found.end() :]
        elif way == "into":
            data = data[:at] + piece + data[at:]
        elif way == "cut":
            data = data[:at]
        elif way == "out":
            data = data[:at] + data[at + 1 + len(piece) :]
        else:
            data = data[:at] + piece + data[at + len(piece) :]
    return data


@contextmanager
def bounded(*errors: type[Exception]) -> Iterator[None]:
    """Of what is raised within, errors of these types only, with a sentence; in time and memory."""

    def late(_number: int, _frame: object) -> None:
        raise TimeoutError(f"{SECONDS} s were not enough")

    before, previous = _peak(), signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    except errors as error:
        assert str(error).strip() and "\n" not in str(error), repr(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert _peak() - before < MIB


def _peak() -> float:
    """MiB that the process ever had."""
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def model(folder: Path) -> bytes:
    write_dense(folder / "good.gguf")
    return (folder / "good.gguf").read_bytes()


@given(wanted=BYTES)
def test_no_damage_escapes_a_models_reader(folder: Path, model: bytes, wanted: list[Edit]) -> None:
    path = folder / "model.gguf"
    # The header ends in the first hundredth, where it does not list tokens.
    path.write_bytes(damaged(model, wanted, within=700 if wanted[0][1] % 2 else 12_000))
    with bounded(ModelFileError):
        info = read_gguf_info(path)
        assert info.n_layers > 0 and info.n_embd > 0 and info.name.isprintable()
        assert info.kv_bytes(100) >= 0


@given(data=st.binary(max_size=200))
def test_no_bytes_escape_a_models_reader(folder: Path, data: bytes) -> None:
    path = folder / "model.gguf"
    for start in (b"", b"GGUF\3\0\0\0"):
        path.write_bytes(start + data)
        with bounded(ModelFileError):
            read_gguf_info(path)


@pytest.fixture(scope="module")
def head(folder: Path) -> Path:
    return make_checkpoint().save(folder / "head")


TARGET = TargetShape(24, VOCAB, LAYERS)


@given(wanted=JSON)
def test_no_damage_escapes_the_reader_of_a_heads_config(head: Path, wanted: list[Edit]) -> None:
    config = head / "config.json"
    good = config.read_bytes()
    config.write_bytes(damaged(good, wanted))
    try:
        with bounded(ModelFileError):
            read_checkpoint(head, TARGET)
    finally:
        config.write_bytes(good)


@given(wanted=JSON | BYTES)
def test_no_damage_escapes_the_reader_of_a_heads_weights(head: Path, wanted: list[Edit]) -> None:
    weights = head / "model.safetensors"
    good = weights.read_bytes()
    (length,) = struct.unpack_from("<Q", good)
    weights.write_bytes(damaged(good, wanted, within=length + 100))
    try:
        with bounded(ModelFileError):
            assert isinstance(head_bytes(head, 100, on_gpu=False), int)
            read_checkpoint(head, TARGET)
    finally:
        weights.write_bytes(good)


LINES = [
    b'{"id": 1, "prompt": "Hi", "temperature": 0.5, "stop": ["a"], "n": 2, "logprobs": true}',
    b'{"id": "a", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "seed": 4}',
    b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": '
    b'[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "stream": false, "n": 1}}',
]


@given(good=st.sampled_from(LINES), wanted=JSON)
def test_no_damage_to_a_line_of_a_batch_is_more_than_an_error(
    good: bytes, wanted: list[Edit]
) -> None:
    with bounded():
        found = Reading().json_line(damaged(good, wanted), 7)
    assert isinstance(found, Request | Unsound)
    if isinstance(found, Unsound):
        assert found.error.startswith("line 7: ") and len(found.error) < 500
    json.dumps(found.id, ensure_ascii=False).encode()


@pytest.fixture(scope="module")
def recorded(folder: Path) -> bytes:
    trace = made_up_trace(2)
    write_trace(folder / "good.jsonl", trace)
    return (folder / "good.jsonl").read_bytes()


@given(wanted=JSON)
def test_no_damage_escapes_the_reader_of_traces(
    folder: Path, recorded: bytes, wanted: list[Edit]
) -> None:
    path = folder / "trace.jsonl"
    path.write_bytes(damaged(recorded, wanted))
    with bounded(SpecfitError):
        read_trace(path)


@given(wanted=JSON)
def test_no_damage_escapes_the_reader_of_cost_profiles(folder: Path, wanted: list[Edit]) -> None:
    path = folder / "profile.json"
    path.write_bytes(damaged((FOLDER / "gpu.json").read_bytes(), wanted))
    with bounded(SpecfitError):
        cost = load_profile(str(path), np.ones(4), 32)
        assert np.isfinite(cost.rows_ms).all() and np.isfinite(cost.level_ms).all()


SETTINGS = b"""theme = "textual-light"
colour_drafts = true
[chat]
model = "~/models/a.gguf"  # mine
temp = 0.7
[batch]
stop = ["a", 'b']
completions = 5
[keys]
regenerate = "ctrl+g"
[folders]
models = ["/data/gguf"]
"""


@given(wanted=JSON)
def test_no_damage_escapes_the_reader_of_settings(folder: Path, wanted: list[Edit]) -> None:
    path = folder / "config.toml"
    path.write_bytes(damaged(SETTINGS, wanted))
    with bounded(AppError):
        found = read_settings(path)
        for command in COMMANDS:
            with suppress(AppError):
                found.options(command, batch)
        with suppress(AppError):
            found.keys()
        assert all(isinstance(place, Path) for place in found.model_folders)


@pytest.fixture(scope="module")
def stores(folder: Path) -> Iterator[tuple[Store, str]]:
    """An empty store, and a conversation of another."""
    one, other = Store(folder / "one.db"), Store(folder / "other.db")
    session = Session(one, "Be kind.")
    turn(session, "Count please.", "One.")
    session.regenerate()
    session.begin_answer()
    session.grow("Two.")
    session.finish("stopped", {"model": "tiny"})
    yield other, to_json(session.current)
    one.close()
    other.close()


@given(wanted=JSON)
def test_no_damage_escapes_the_import_of_conversations(
    stores: tuple[Store, str], wanted: list[Edit]
) -> None:
    store, good = stores
    with bounded(StoreError):
        number, added = import_json(
            store, damaged(good.encode(), wanted).decode("utf-8", "replace")
        )
        assert added >= 0
        assert store.messages(number)


@given(wanted=JSON)
def test_no_damage_escapes_the_reader_of_system_prompts(folder: Path, wanted: list[Edit]) -> None:
    path = folder / "system_prompts.json"
    path.write_bytes(damaged(b'{"Kind": "Be kind.", "Brief": "Be brief."}', wanted))
    with bounded(AppError):
        assert all(isinstance(text, str) for text in read_prompts(path).values())


def beliefs() -> Beliefs:
    unions = UnionByRows(np.full(65, 2.0))
    return Beliefs(Acceptance(), Outlook(), None, unions, np.ones(2))


@given(wanted=BYTES)
def test_what_was_learned_is_kept_or_learned_anew(folder: Path, wanted: list[Edit]) -> None:
    path = folder / "learned.npz"
    np.savez(path, **beliefs().state())  # type: ignore[arg-type]
    good = path.read_bytes()
    path.write_bytes(damaged(good, wanted, within=None if wanted[0][1] % 2 else 600))
    with bounded():
        assert recall(beliefs(), path) in (True, False)
        steady._read(path)


POINTS = [{"rows": 1, "union": 8, "ms": 5.5}, {"rows": 4, "union": 16, "ms": 9}]
LISTS = {"points": POINTS, "level_ms": [1, 2], "context_ms": []}
NAMES = [field.name for field in fields(calibration.Measured)]
MEASURED = json.dumps({"model": "/a"} | {name: LISTS.get(name, 0.1) for name in NAMES}).encode()


@given(wanted=JSON)
def test_costs_that_were_measured_are_read_or_measured_anew(
    folder: Path, wanted: list[Edit]
) -> None:
    path = folder / "costs.json"
    path.write_bytes(damaged(MEASURED, wanted))
    with bounded():
        kept_costs._stored(path)


def test_what_is_damaged_here_is_read_where_it_is_not(
    folder: Path, model: bytes, head: Path, recorded: bytes, stores: tuple[Store, str]
) -> None:
    assert read_gguf_info(folder / "good.gguf").n_layers == 2
    assert read_checkpoint(head, TARGET).config.n_heads == 4
    assert read_trace(folder / "good.jsonl").texts
    assert all(isinstance(Reading().json_line(line, 1), Request) for line in LINES)
    (folder / "config.toml").write_bytes(SETTINGS)
    assert read_settings(folder / "config.toml").options("batch", batch)["stop"] == ["a", "b"]
    (folder / "costs.json").write_bytes(MEASURED)
    assert kept_costs._stored(folder / "costs.json") is not None
    assert import_json(*stores)[0]
