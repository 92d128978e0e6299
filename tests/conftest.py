"""Shared by the tests of the commands: one loaded engine, and a way to run a command in place."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Before torch is loaded, here and in the commands that tests start: its threads wait spinning, for
# each other and for whatever else the machine does, and the models here are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import textual.app
import textual.pilot
from hypothesis import HealthCheck, settings
from storecases import Clock

from specfit.app.session import Session
from specfit.app.store import Store
from specfit.backend import Engine, LoadOptions, calibration
from specfit.models import bundled_model
from specfit.models.dequantise import dequantise

# Measured costs, settings and conversations go to folders of the session's own, not to the user's.
_own = tempfile.TemporaryDirectory(prefix="specfit-tests-")
for _name in ("CACHE", "CONFIG", "DATA"):
    os.environ[f"XDG_{_name}_HOME"] = f"{_own.name}/{_name.lower()}"

# Machines are measured in a tenth of the usual time: no test needs figures that are exact.
calibration.SHAPE_MS, calibration.VISITS, calibration.LEVEL_ROUNDS = 5.0, (1, 2), 3


async def _idle(*_times: float) -> None:
    """Waits until the event loop has had nothing to do a few times in a row.

    Textual's own looks once, at the time that the process got in 20 ms: on a machine that gives it
    none, what is due together with that look comes after it.
    """
    quiet, until = 0, time.monotonic() + 5
    while quiet < 4 and time.monotonic() < until:
        used = time.thread_time()
        await asyncio.sleep(0.005)
        quiet = quiet + 1 if time.thread_time() - used < 0.0005 else 0


textual.app.wait_for_idle = textual.pilot.wait_for_idle = _idle  # type: ignore[attr-defined]

# How long a property takes to try is the machine's business, not the property's.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("suite"), max_examples=20_000)
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keys", type=int, default=300, help="keys that test_fuzz.py presses")
    parser.addoption("--seeds", type=int, default=1, help="how often it does so")


@pytest.fixture(scope="session")
def bundled_engine() -> Iterator[Engine]:
    """The bundled pair, for whoever needs any real engine."""
    with Engine.load(LoadOptions(ctx=1024, threads=1)) as engine:
        yield engine


@pytest.fixture(scope="session")
def bundled_f16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model with all its weights in float16, which takes seconds to write."""
    path = tmp_path_factory.mktemp("f16") / "target-f16.gguf"
    dequantise(bundled_model(), path)
    return path


@pytest.fixture(scope="session")
def exact_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A generated model whose experts are all used, and the folder of a head trained for it."""
    from tinymodel import write_float32_moe, write_head

    folder = tmp_path_factory.mktemp("exact")
    write_float32_moe(folder / "target.gguf")
    write_head(folder / "head", folder / "target.gguf")
    return folder / "target.gguf", folder / "head"


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


Command = Callable[[], object]


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Runs a command's `main` in this process: command(main, "-p", "hello")."""

    def call(main: Command, *arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            main()
        written = capfd.readouterr()
        return Outcome(int(exited.value.code or 0), written.out, written.err)

    return call


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where `store` keeps conversations."""
    return tmp_path / "data" / "specfit.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = Store(path)
    yield opened
    opened.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def session(store: Store, clock: Clock) -> Session:
    return Session(store, clock=clock)
