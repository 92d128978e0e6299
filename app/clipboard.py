"""Copies text: by the terminal (OSC 52, which works over SSH) and by the system's own tool."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

PATIENCE_S = 3.0
# Each tool with the variable without which it has no desktop to talk to.
_TOOLS = (
    (("wl-copy",), "WAYLAND_DISPLAY"),
    (("xclip", "-selection", "clipboard"), "DISPLAY"),
    (("xsel", "--clipboard", "--input"), "DISPLAY"),
    (("pbcopy",), None),
    (("clip.exe",), None),
)


class Terminal(Protocol):
    """What is needed of a Textual app."""

    def copy_to_clipboard(self, text: str) -> None: ...


async def copy(terminal: Terminal, text: str) -> None:
    """Copies `text` in every way there is; one that fails is left out, none is waited for long."""
    terminal.copy_to_clipboard(text)
    command = system_tool(os.environ)
    if command is not None:
        with suppress(OSError, TimeoutError):
            await _hand_over(command, text)


def system_tool(
    environment: Mapping[str, str], which: Callable[[str], str | None] = shutil.which
) -> tuple[str, ...] | None:
    """The command that takes the clipboard's new text on its standard input, if there is one."""
    for command, needed in _TOOLS:
        if needed is None or environment.get(needed):
            path = which(command[0])
            if path is not None:
                return (path, *command[1:])
    return None


async def _hand_over(command: tuple[str, ...], text: str) -> None:
    # clip.exe reads the ANSI code page unless told by a byte order mark.
    encoded = text.encode("utf-16") if command[0].endswith("clip.exe") else text.encode()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await asyncio.wait_for(process.communicate(encoded), PATIENCE_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
