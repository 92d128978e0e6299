"""Which machine numbers were measured on."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import psutil


def machine_name() -> str:
    """Processor, physical cores, memory and system, as a reader would name the machine."""
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    memory = psutil.virtual_memory().total / 2**30
    system = f"{platform.system()} {platform.machine()}"
    return f"{processor()}, {cores} cores, {memory:.0f} GiB, {system}"


def processor() -> str:
    """The processor's marketing name where the system tells it, else its architecture."""
    try:
        if platform.system() == "Darwin":
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True).stdout.strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
