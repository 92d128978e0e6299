"""Memory of the host that this process may use: the machine's, or less in a container.

psutil tells the whole machine's also where a control group (Docker, systemd) allows less, and
whoever takes more than that is killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

# By version of control groups: limit, use, and what of the use can be dropped.
_FILES = {
    2: ("memory.max", "memory.current", ("inactive_file", "active_file")),
    1: (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
}
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class HostMemory:
    """Bytes. free: what can be taken now, pages of files that can be dropped included."""

    free: int
    total: int


def host_memory() -> HostMemory:
    memory = psutil.virtual_memory()
    free, total = memory.available, memory.total
    for limit, used in limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")):
        total, free = min(total, limit), min(free, max(0, limit - used))
    return HostMemory(free, total)


def limits(membership: Path, root: Path) -> Iterator[tuple[int, int]]:
    """Bytes that each control group around this process may have, and has for good.

    membership: /proc/self/cgroup, or a file like it. root: where control groups are mounted.
    """
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _around(root, path, 2)
            elif "memory" in controllers.split(","):
                yield from _around(root / "memory", path, 1)


def _around(root: Path, path: str, version: int) -> Iterator[tuple[int, int]]:
    """In a container the path may be the host's, of which only the end, the root here, is seen."""
    limit_file, use_file, droppable = _FILES[version]
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):
            limit = int((folder / limit_file).read_text())  # "max" is none
            used = int((folder / use_file).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            if limit < _NO_LIMIT:
                yield limit, used - sum(int(stat.get(name, 0)) for name in droppable)
        if folder == root:
            return
