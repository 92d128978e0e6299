"""The processor's cores that are worth a thread of llama.cpp's, and who else may use them.

Its threads wait for each other after every operation: one on a slow core, or two on one core, hold
up all others.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil
from threadpoolctl import threadpool_limits

_SYSFS = Path("/sys/devices")


def performance_cores() -> int:
    """Physical cores, of the fast kind where there are two, that this process may use."""
    allowed: set[int] | None = None
    with suppress(AttributeError, psutil.Error):  # macOS has no affinity
        allowed = set(psutil.Process().cpu_affinity())
    found = 0
    if sys.platform == "linux":
        found = cores_of(_SYSFS, allowed)
    elif sys.platform == "darwin":
        with suppress(OSError, ValueError):
            command = ["/usr/sbin/sysctl", "-n", "hw.perflevel0.physicalcpu"]
            found = int(subprocess.run(command, capture_output=True, text=True).stdout)
    if found:
        return found
    physical = psutil.cpu_count(logical=False) or 1
    return max(1, min(physical, len(allowed) if allowed else physical))


@cache
def keep_numpy_off() -> None:
    """Has numpy's matrix products take one thread, in this process from now on.

    OpenBLAS's threads spin for 100 ms behind a product that is worth sharing, such as a forecast's
    for three nodes, and hold up the decode that follows as long (LOG.md).
    """
    threadpool_limits(1, user_api="blas")


def cores_of(devices: Path, allowed: set[int] | None) -> int:
    """What Linux tells in /sys/devices; 0 if it does not.

    Intel's processors of two kinds list the fast CPUs in `cpu_core`; elsewhere `cpu_capacity` is
    the speed of each, of which those count that have more than half of the highest.
    """
    try:
        cpus = _cpu_list((devices / "system/cpu/online").read_text())
        with suppress(OSError):
            cpus &= _cpu_list((devices / "cpu_core/cpus").read_text())
        with suppress(OSError):
            speed = {n: int((_cpu(devices, n) / "cpu_capacity").read_text()) for n in cpus}
            cpus = {n for n in cpus if 2 * speed[n] > max(speed.values())}
        if allowed is not None:
            cpus = cpus & allowed or allowed
        siblings = {(_cpu(devices, n) / "topology/thread_siblings_list").read_text() for n in cpus}
    except (OSError, ValueError):
        return 0
    return len(siblings)


def _cpu(devices: Path, number: int) -> Path:
    return devices / f"system/cpu/cpu{number}"


def _cpu_list(text: str) -> set[int]:
    """ "0-3,8" as numbers."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers
