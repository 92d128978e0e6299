"""Memory and context, as bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
from textual.content import Content
from textual.widget import Widget

from .acceptance_bars import bar_of

EVERY_S = 2.0
GIB = 2**30
BAR = 8


@dataclass(frozen=True)
class Memory:
    """One kind of memory, in bytes. ours: what this process holds of it; None if unknown."""

    name: str
    used: int
    total: int
    ours: int | None = None


def host_memory() -> list[Memory]:
    """The host's; used is what no other program could have, and the files that we have mapped:
    without them in memory a model is read from the disk again and again."""
    memory, ours = psutil.virtual_memory(), psutil.Process().memory_info()
    used = memory.total - memory.available + getattr(ours, "shared", 0)  # told on Linux only
    return [Memory("RAM", min(max(used, ours.rss), memory.total), memory.total, ours.rss)]


def all_memory() -> list[Memory]:
    """The host's and the GPUs'; only once an engine is loaded, whose libraries it asks."""
    from specfit.backend.devices import gpu_memory

    gpus = gpu_memory()
    names = ["VRAM"] if len(gpus) == 1 else [f"VR{i}" for i in range(len(gpus))]
    devices = zip(names, gpus, strict=True)
    return host_memory() + [Memory(name, gpu.used, gpu.total) for name, gpu in devices]


class Meters(Widget):
    """Asks `sample` for the memory every other second, in a thread, while it is on the screen."""

    DEFAULT_CSS = """
    Meters {
        height: auto;
        border-top: solid $panel;
    }
    """

    def __init__(self, sample: Callable[[], Sequence[Memory]] = host_memory) -> None:
        super().__init__()
        self.sample = sample
        self._memory: Sequence[Memory] = ()
        self._tokens = (0, 0)

    def on_mount(self) -> None:
        self.set_interval(EVERY_S, self._look)
        self.call_after_refresh(self._look)

    def show_context(self, used: int, total: int) -> None:
        """Tokens of the conversation, and what the context holds."""
        if (used, total) != self._tokens:
            self._tokens = (used, total)
            self.refresh(layout=True)

    def render(self) -> Content:
        used, total = self._tokens
        rows = [_row(m.name, m.used / m.total, _gib(m)) for m in self._memory if m.total]
        if total:
            rows.append(_row("ctx", used / total, f"{used} of {total} tokens"))
        return Content("\n").join(rows)

    def _look(self) -> None:
        if self.display and self.is_on_screen:
            self.run_worker(self._measure, thread=True, exclusive=True, exit_on_error=False)

    def _measure(self) -> None:
        memory = self.sample()
        self.app.call_from_thread(self._take, memory)

    def _take(self, memory: Sequence[Memory]) -> None:
        grown = len(memory) != len(self._memory)
        self._memory = memory
        self.refresh(layout=grown)


def _row(name: str, share: float, text: str) -> Content:
    return Content.assemble(
        (f"{name:<5}", "$text-muted"), (bar_of(share, BAR), "$primary"), f" {text}"
    )


def _gib(memory: Memory) -> str:
    ours = "" if memory.ours is None else f", SpecFit {_short(memory.ours)}"
    return f"{_short(memory.used)}/{memory.total / GIB:.0f} GiB{ours}"


def _short(size: int) -> str:
    gib = size / GIB
    return f"{gib:.1f}" if gib < 99.95 else f"{gib:.0f}"
