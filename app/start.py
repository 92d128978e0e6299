"""Where every command begins: Ctrl-C is answered before anything is imported that takes time.

Nothing but the standard library's smallest may be imported here.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module

INTERRUPTED = 130  # as in entry.py


def _begin(module: str) -> None:
    """Runs the command of this module, which exits."""
    try:
        import_module(f"specfit.app.{module}").main()
    except KeyboardInterrupt:
        if sys.stderr is not None and sys.stderr.isatty():
            print(file=sys.stderr)  # closes the line that the terminal wrote ^C on
        sys.exit(INTERRUPTED)


chat = partial(_begin, "chat")
batch = partial(_begin, "batch")
bench = partial(_begin, "bench")
doctor = partial(_begin, "doctor")
report = partial(_begin, "report")
scale_model = partial(_begin, "scale_model")
convert_head = partial(_begin, "convert_head")
