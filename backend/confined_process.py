"""The process of `confined`: lines of JSON, there and back, within limits.

    confined_process.py SECONDS BYTES PROGRAM.py [ARGUMENT …]

PROGRAM has `answerer`, which takes the arguments and gives a function from a request to its answer,
both objects of texts. It is run by its path, so that no more is imported than it needs.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path


def main() -> None:
    seconds, size, program, *arguments = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("program", program)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    answer = module.answerer(*arguments)
    _limit(int(size))
    for request in sys.stdin:
        # Its signal ends the process, whatever that is at.
        signal.setitimer(signal.ITIMER_PROF, int(seconds))
        try:
            line = json.dumps(answer(json.loads(request)))
        except MemoryError:
            line = json.dumps({"wrong": "asks for more memory than it may have"})
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(line, flush=True)


def _limit(size: int) -> None:
    """Leaves so many bytes for requests, beside what the process has already."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # no /proc, or no such limit
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + size
        allowed = resource.getrlimit(resource.RLIMIT_AS)[1]
        if allowed != resource.RLIM_INFINITY:
            most = min(most, allowed)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
