"""Takes the README's pictures: drives specfit-chat in a terminal (tmux) and keeps what it shows.

    .venv/bin/python docs/screenshots.py

Needs tmux. The chat keeps its conversations in a temporary folder meanwhile.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH, HEIGHT = 118, 34
FOLDER = Path(__file__).parent
SOCKET = "specfit-screenshots"
# Steered by the costs of a machine where drafts pay, so that there is something to see.
COMMAND = f"{Path(sys.executable).parent}/specfit-chat -t 1 -s 5 --cost-profile gpu"
# Where this checkout lies is nobody's business.
OWN_PATH = re.compile(re.escape(str(FOLDER.parent.resolve())) + r"([^\s\x1b]*)")
# Rich names a font on another machine; a reader's own monospace font will do.
FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def tmux(*arguments: str) -> str:
    command = ["tmux", "-L", SOCKET, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def keys(*names: str, wait: float = 1.0) -> None:
    tmux("send-keys", "-t", "chat", *names)
    time.sleep(wait)


def until(text: str, patience: float = 60.0) -> None:
    """Waits for `text` on the screen."""
    deadline = time.monotonic() + patience
    while text not in tmux("capture-pane", "-p", "-t", "chat"):
        if time.monotonic() > deadline:
            raise SystemExit(f"{text!r} did not appear")
        time.sleep(0.2)


def keep(name: str) -> None:
    seen = tmux("capture-pane", "-e", "-N", "-p", "-t", "chat")
    screen = Text.from_ansi(OWN_PATH.sub(_elsewhere, seen))
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(screen, soft_wrap=True)
    svg = FONT_FACE.sub("", console.export_svg(title="specfit-chat"))
    (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")
    print(FOLDER / f"{name}.svg")


def _elsewhere(path: re.Match[str]) -> str:
    return f"~/specfit{path[1]}".ljust(len(path[0]))


def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        home = f"env XDG_DATA_HOME={data} XDG_CONFIG_HOME={data} COLORTERM=truecolor"
        size = ("-x", str(WIDTH), "-y", str(HEIGHT))
        tmux("new-session", "-d", "-s", "chat", *size, f"{home} {COMMAND}")
        try:
            until("Write a message")
            until("SpecFit Tiny")
            keys("What is a lighthouse?", "Enter", wait=6)
            keep("chat")
            keys("C-t")
            keys("Tom has 12 apples and buys 5 more. How many apples does he have now?", "Enter")
            time.sleep(8)
            keep("panel")
            keys("C-t")
            keys("F2", wait=3)
            keep("picker")
            keys("Escape")
            keys("C-p", wait=2)
            keep("palette")
        finally:
            tmux("kill-server")


if __name__ == "__main__":
    main()
