"""Where every command begins: Ctrl-C is answered before anything is imported that takes time.

Nothing but the standard library's smallest may be imported here.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module

USER_ERROR, INTERRUPTED = 2, 130  # as in entry.py


def _begin(module: str) -> None:
    """Runs the command of this module, which exits."""
    try:
        import_module(f"specfit.app.{module}").main()
    except KeyboardInterrupt:
        if sys.stderr is not None and sys.stderr.isatty():
            print(file=sys.stderr)  # closes the line that the terminal wrote ^C on
        sys.exit(INTERRUPTED)
    except ImportError as error:  # of what entry.py itself needs
        sentence = unimported(error)
        if sentence is None:
            raise
        if sys.stderr is not None:
            print(f"specfit-{module.replace('_', '-')}: {sentence}", file=sys.stderr)
        sys.exit(USER_ERROR)


def unimported(error: ImportError) -> str | None:
    """What to tell the user about a package that is missing or broken; None if it is our own."""
    package = (error.name or "").partition(".")[0]
    if package == "specfit":
        return None
    why = " ".join(str(error).split())[:300]
    if (
        not package
    ):  # the planner that is not compiled, a library that does not load: they tell more
        return why
    return f"{why}; `make setup` installs what is needed, specfit-doctor tells more"


chat = partial(_begin, "chat")
batch = partial(_begin, "batch")
bench = partial(_begin, "bench")
doctor = partial(_begin, "doctor")
report = partial(_begin, "report")
scale_model = partial(_begin, "scale_model")
convert_head = partial(_begin, "convert_head")
