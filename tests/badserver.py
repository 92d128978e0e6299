"""Runs commands one after the other, each in a process of its own that may not take much.

    echo '{"command": "batch", "arguments": ["in.jsonl", "-o", "out.jsonl"]}' | python badserver.py

Torch and llama.cpp are imported once and the processes forked, which takes hundredths of a second.
Answers are JSON lines: exit code, or the signal that ended it; seconds; MiB that it took beyond
what all of them have; what it wrote.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

SECONDS, MIB = 60, 768


def serve() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in ("backend.engine", "backend.guided", "backend.steady", "backend.trace_file"):
        importlib.import_module(f"specfit.{name}")
    for name in ("batch", "batch_work", "bench", "chat", "loading", "oneshot", "store", "settings"):
        importlib.import_module(f"specfit.app.{name}")
    from specfit.backend import calibration, grammars, templates

    # As in conftest; and what never ends need not be waited for as long.
    calibration.SHAPE_MS, calibration.VISITS, calibration.LEVEL_ROUNDS = 5.0, (1, 2), 3
    grammars.process.seconds = templates.process.seconds = 1
    for line in sys.stdin:
        print(json.dumps(outcome(**json.loads(line))), flush=True)


def outcome(command: str, arguments: list[str]) -> dict[str, Any]:
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            _become(command, arguments, out.fileno(), err.fileno())
        _, status, used = os.wait4(child, 0)
        seconds, texts = time.monotonic() - began, []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    # Linux counts in KiB, macOS in bytes.
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": seconds,
        "mib": (used.ru_maxrss - own) / unit,
        "out": texts[0],
        "err": texts[1],
    }


def _become(command: str, arguments: list[str], out: int, err: int) -> NoReturn:
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    if sys.platform == "linux":
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (MIB << 20),) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = [f"specfit-{command}", *arguments]
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    code: object = 70
    try:
        importlib.import_module(f"specfit.app.{command}").main()
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    serve()
