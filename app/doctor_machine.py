"""What this machine is, as far as the system tells: looked up quickly, and never an error."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil

_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_DISPLAY = re.compile(r"card\d+")
_SAMPLE_BYTES, _ROUNDS = 32 << 20, 8


@dataclass(frozen=True)
class Gpu:
    """A GPU that the system has, whether or not llama.cpp can use it.

    vendor: nvidia, amd, intel or apple. vram: bytes; 0 if unknown, or if it is the host's memory.
    """

    name: str
    vendor: str
    vram: int = 0


@dataclass(frozen=True)
class Machine:
    """ram, ram_free, swap: bytes, of which this process may use (containers are limited).

    cores: physical ones. bandwidth: bytes a second that its cores read together, measured; 0 if
    it was not. instructions: of the processor, as llama.cpp names them. tools: those of
    `TOOLS` that are there. torch: its version, "" if it is not installed.
    """

    processor: str
    system: str
    cores: int
    ram: int
    ram_free: int
    bandwidth: float
    instructions: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    tools: tuple[str, ...]
    torch: str


TOOLS = ("cc", "c++", "nvcc", "hipcc", "glslc", "make")
# As the Linux kernel names them and as llama.cpp does: what its matrix products live on.
_FLAGS = {
    **{"avx": "AVX", "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "bmi2": "BMI2"},
    **{"avx512f": "AVX512", "avx512_vnni": "AVX512_VNNI", "avx_vnni": "AVX_VNNI"},
    **{"amx_int8": "AMX_INT8", "asimd": "NEON", "asimddp": "DOTPROD", "sve": "SVE"},
}


def examine() -> Machine:
    """Takes about half a second, most of which is the measuring of the memory."""
    from .machine import processor

    cores = _cores()
    memory = psutil.virtual_memory()
    limit = memory_limit(Path("/sys/fs/cgroup"))
    return Machine(
        processor=processor(),
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        cores=cores,
        ram=min(memory.total, limit or memory.total),
        ram_free=min(memory.available, limit or memory.available),
        bandwidth=read_bandwidth(cores),
        instructions=_instructions(),
        gpus=_gpus(),
        tools=tuple(tool for tool in TOOLS if find_tool(tool)),
        torch=_version("torch"),
    )


def find_tool(tool: str) -> str | None:
    """Its path; nvcc is often installed off PATH, and compilers are named by CC and CXX."""
    named = {"cc": ("CC", "cc", "gcc", "clang"), "c++": ("CXX", "c++", "g++", "clang++")}
    if tool in named:
        variable, *names = named[tool]
        own = os.environ.get(variable, "").split()
        return next(filter(None, map(shutil.which, [*own[:1], *names])), None)
    found = shutil.which(tool)
    if tool == "nvcc" and not found:
        home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
        found = shutil.which(tool, path=f"{home}/bin")
    return found


def memory_limit(cgroup: Path) -> int:
    """Bytes that a container may use; 0 without a limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limit = int((cgroup / name).read_text())
            return limit if limit < 1 << 60 else 0
    return 0


def read_bandwidth(cores: int) -> float:
    """Bytes a second that `cores` threads read, each its own memory, at the best of some rounds."""
    threads = max(1, min(cores, 16))
    parts = [np.ones(_SAMPLE_BYTES // 8, np.uint64) for _ in range(threads)]
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_ROUNDS):
            begun = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            best = min(best, time.perf_counter() - begun)
    return threads * _SAMPLE_BYTES / best


def graphics(drm: Path) -> tuple[Gpu, ...]:
    """The graphics cards that the Linux kernel lists; those of virtual machines are left out."""
    found = []
    with suppress(OSError):
        for card in sorted(path for path in drm.iterdir() if _DISPLAY.fullmatch(path.name)):
            vendor = _VENDORS.get(_text(card / "device" / "vendor"), "")
            if vendor:
                vram = _text(card / "device" / "mem_info_vram_total")
                label = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}[vendor]
                model = _text(card / "device" / "device").removeprefix("0x")
                found.append(
                    Gpu(f"{label} GPU ({model})", vendor, int(vram) if vram.isdigit() else 0)
                )
    return tuple(found)


def nvidia(listing: str) -> tuple[Gpu, ...]:
    """The GPUs of `nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits`."""
    rows = (line.rpartition(",") for line in listing.splitlines() if "," in line)
    return tuple(
        Gpu(name.strip(), "nvidia", int(mib) << 20 if mib.strip().isdigit() else 0)
        for name, _, mib in rows
    )


def _gpus() -> tuple[Gpu, ...]:
    if sys.platform == "darwin":
        return (Gpu("Apple GPU", "apple"),) if platform.machine() == "arm64" else ()
    query = "--query-gpu=name,memory.total"
    by_driver = nvidia(_output("nvidia-smi", query, "--format=csv,noheader,nounits"))
    by_kernel = graphics(Path("/sys/class/drm"))
    if by_driver:
        by_kernel = tuple(gpu for gpu in by_kernel if gpu.vendor != "nvidia")
    return by_driver + by_kernel


def _instructions() -> tuple[str, ...]:
    if sys.platform == "darwin":
        return ("NEON",) if platform.machine() == "arm64" else ()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                flags = set(line.partition(":")[2].split())
                return tuple(name for flag, name in _FLAGS.items() if flag in flags)
    return ()


def _cores() -> int:
    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    affinity: Mapping[str, object] = vars(psutil.Process)
    if "cpu_affinity" in affinity:
        with suppress(psutil.Error):
            return max(1, min(physical, len(psutil.Process().cpu_affinity())))
    return physical


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
