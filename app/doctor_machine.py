"""What this machine is, as far as the system tells: looked up quickly, and never an error."""

from __future__ import annotations

import json
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_DISPLAY = re.compile(r"card\d+")
_SAMPLE_BYTES, _ROUNDS, _MOST_THREADS = 32 << 20, 8, 32
_CUDA = re.compile(r"CUDA(?: \w+)? Version:\s*(\d+\.\d+)")
_RELEASE = re.compile(r"release (\d+\.\d+)")


@dataclass(frozen=True)
class Gpu:
    """A GPU that the system has, whether or not llama.cpp can use it.

    vendor: nvidia, amd, intel or apple. vram, vram_free: bytes; 0 if unknown, or if it is the
    host's memory.
    """

    name: str
    vendor: str
    vram: int = 0
    vram_free: int = 0


@dataclass(frozen=True)
class Cuda:
    """Versions like "12.4", "" if unknown: the newest that NVIDIA's driver serves, and the
    toolkit's. trouble: what the driver's own tool complains of."""

    driver: str = ""
    toolkit: str = ""
    trouble: str = ""


@dataclass(frozen=True)
class Machine:
    """ram, ram_free, swap: bytes, of which this process may use (containers are limited).

    cores: physical ones. bandwidth: bytes a second that its cores read together, measured; 0 if
    it was not. instructions: of the processor, as llama.cpp names them. tools: those of
    `TOOLS` that are there. python: version.
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
    python: tuple[int, int] = field(default_factory=lambda: sys.version_info[:2])
    cuda: Cuda = Cuda()


TOOLS = ("cc", "c++", "nvcc", "hipcc", "glslc", "make")
# As the Linux kernel names them and as llama.cpp does: what its matrix products live on.
_FLAGS = {
    **{"avx": "AVX", "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "bmi2": "BMI2"},
    **{"avx512f": "AVX512", "avx512_vnni": "AVX512_VNNI", "avx_vnni": "AVX_VNNI"},
    **{"amx_int8": "AMX_INT8", "asimd": "NEON", "asimddp": "DOTPROD", "sve": "SVE"},
}


def examine() -> Machine:
    """Takes about half a second, most of which is the measuring of the memory."""
    from specfit.backend.hostmemory import host_memory

    from .machine import processor

    cores = _cores()
    memory = host_memory()
    return Machine(
        processor=processor(),
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        cores=cores,
        ram=memory.total,
        ram_free=memory.free,
        bandwidth=read_bandwidth(cores),
        instructions=_instructions(),
        gpus=_gpus(),
        tools=tuple(tool for tool in TOOLS if find_tool(tool)),
        cuda=_cuda(),
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


def read_bandwidth(cores: int) -> float:
    """Bytes a second that `cores` threads read, each its own memory, at the best of some rounds."""
    import numpy as np

    threads = max(1, min(cores, _MOST_THREADS))
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
                total, used = (
                    _number(_text(card / "device" / f"mem_info_vram_{what}"))
                    for what in ("total", "used")
                )
                label = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}[vendor]
                model = _text(card / "device" / "device").removeprefix("0x")
                found.append(Gpu(f"{label} GPU ({model})", vendor, total, max(0, total - used)))
    return tuple(found)


def nvidia(listing: str) -> tuple[Gpu, ...]:
    """The GPUs of `nvidia-smi --query-gpu=name,memory.total,memory.free`, as CSV without units."""
    rows = (line.rsplit(",", 2) for line in listing.splitlines())
    return tuple(
        Gpu(row[0].strip(), "nvidia", _number(row[1]) << 20, _number(row[2]) << 20)
        for row in rows
        if len(row) == 3
    )


def amd(listing: str) -> tuple[Gpu, ...]:
    """The GPUs of `rocm-smi --showproductname --showmeminfo vram --json`."""
    try:
        cards: Any = json.loads(listing)
    except ValueError:
        return ()
    found = []
    for name, card in cards.items() if isinstance(cards, dict) else ():
        if not (name.startswith("card") and isinstance(card, dict)):
            continue
        known = {key.lower(): str(value) for key, value in card.items()}
        total, used = (
            _number(known.get(f"vram total {what}memory (b)", "")) for what in ("", "used ")
        )
        label = known.get("card series") or known.get("card model") or name
        found.append(Gpu(f"AMD {label}", "amd", total, max(0, total - used)))
    return tuple(found)


def cuda(summary: str, compiler: str, trouble: str = "") -> Cuda:
    """From what `nvidia-smi` and `nvcc --version` print."""
    driver, toolkit = _CUDA.search(summary), _RELEASE.search(compiler)
    return Cuda(driver[1] if driver else "", toolkit[1] if toolkit else "", trouble)


def _gpus() -> tuple[Gpu, ...]:
    if sys.platform == "darwin":
        return (Gpu("Apple GPU", "apple"),) if platform.machine() == "arm64" else ()
    query = "--query-gpu=name,memory.total,memory.free"
    by_driver = nvidia(_output("nvidia-smi", query, "--format=csv,noheader,nounits"))
    by_driver += amd(_output("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json"))
    named = {gpu.vendor for gpu in by_driver}
    by_kernel = graphics(Path("/sys/class/drm"))
    return by_driver + tuple(gpu for gpu in by_kernel if gpu.vendor not in named)


def _cuda() -> Cuda:
    if not shutil.which("nvidia-smi"):
        return Cuda()
    code, summary, complaint = _run("nvidia-smi")
    lines = (summary + complaint).strip().splitlines() or [f"it ends with {code} and says nothing"]
    # Without a GPU the driver is well all the same.
    trouble = "" if code == 0 or "No devices" in lines[0] else lines[0][:200]
    return cuda(summary, _output(find_tool("nvcc") or "nvcc", "--version"), trouble)


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
    import psutil

    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    affinity: Mapping[str, object] = vars(psutil.Process)
    if "cpu_affinity" in affinity:
        with suppress(psutil.Error):
            return max(1, min(physical, len(psutil.Process().cpu_affinity())))
    return physical


def _output(*command: str) -> str:
    """What a command prints; "" if it is missing, fails or hangs."""
    code, text, _ = _run(*command)
    return text if code == 0 else ""


def _run(*command: str) -> tuple[int, str, str]:
    """Exit code of a command, what it prints, and what it complains of."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, errors="replace", timeout=20
        )
    except subprocess.TimeoutExpired:
        return -1, "", "it does not answer within 20 seconds"
    except OSError as error:
        return -1, "", str(error)
    return done.returncode, done.stdout, done.stderr


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0
