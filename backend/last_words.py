"""What is said when llama.cpp ends the process: a sentence, and no core dump.

Where a check of its own fails, and where an exception escapes it, llama.cpp has a debugger print
where it is, which takes seconds, and aborts. That happens with files that are damaged in ways that
only it can see, and where a GPU has too little memory. Nothing can go on from there, but what the
user sees can be a reason, with exit code 2, on a terminal that works.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

# Leaves the screen of an application, and gives the cursor, the mouse, pasting, keys and colours
# back.
_RESET = "\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?2004l\x1b[<u\x1b[0m"
_STANDARD_ERROR, _USER_ERROR = 2, 2
# "/where/it/was/built/src/llama-model.cpp:1328: GGML_ASSERT(n > 0) failed"
_PLACE = re.compile(r"\S*?([\w.-]+:\d+): (.*)", re.DOTALL)

_models: list[Path] = []


def about(model: Path) -> None:
    """Names the model that llama.cpp works with from now on."""
    _models[:] = [model]


@functools.cache
def prepare(symbol: Callable[..., Callable[..., Any]]) -> None:
    """Has llama.cpp end the process in our words. symbol: `library.symbol`."""
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    set_abort = symbol("ggml_set_abort_callback", restype=None, argtypes=[type(_on_abort)])
    set_abort(_on_abort)
    with suppress(AttributeError):  # another C++ library, or another name for it
        set_terminate = symbol(
            "_ZSt13set_terminatePFvvE", restype=None, argtypes=[type(_on_terminate)]
        )
        set_terminate(_on_terminate)


def sentence(message: str) -> str:
    """llama.cpp's message, or "" for none, for the user."""
    found = _PLACE.fullmatch(" ".join(message.split()))
    what = f"{found[2]} ({found[1]})" if found else message or "an error that it does not name"
    model = f" on {_models[0]}" if _models else ""
    return f"llama.cpp gave up{model}: {what}; the file is damaged, or too large for this machine"


def _end(message: str) -> None:
    """Ends the process at once: whoever called is in the middle of a call that cannot return."""
    with suppress(Exception):
        if os.isatty(_STANDARD_ERROR):
            _cook_terminal()
        line = f"{Path(sys.argv[0]).name}: {sentence(message)}\n"
        os.write(_STANDARD_ERROR, line.encode("utf-8", "replace"))
    os._exit(_USER_ERROR)


def _cook_terminal() -> None:
    """Out of the application's screen, and lines as a shell wants them."""
    import termios

    os.write(_STANDARD_ERROR, _RESET.encode())
    modes = termios.tcgetattr(_STANDARD_ERROR)
    modes[0] |= termios.ICRNL | termios.IXON
    modes[1] |= termios.OPOST
    modes[3] |= termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN
    termios.tcsetattr(_STANDARD_ERROR, termios.TCSANOW, modes)


# ctypes does not keep callbacks alive; the module does.
_on_abort = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(
    lambda message: _end((message or b"").decode("utf-8", "replace"))
)
_on_terminate = ctypes.CFUNCTYPE(None)(lambda: _end(""))
