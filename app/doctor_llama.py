"""What llama.cpp is here, told as JSON by a process of its own.

A llama.cpp that was built for another processor dies of its first instruction, and a driver can do
worse; the doctor wants to survive that and say so. Run as `python -m specfit.app.doctor_llama`.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

_TIMEOUT_S = 120
_BACKENDS = ("cuda", "hip", "vulkan", "metal", "sycl", "rpc")
_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accelerator"}


@dataclass(frozen=True)
class Device:
    """As llama.cpp's backend tells it. kind: cpu, gpu, igpu (the host's memory), accelerator."""

    name: str
    description: str
    kind: str
    free: int
    total: int


@dataclass(frozen=True)
class Llama:
    """version: of llama-cpp-python; "" if it is not there. wanted: the version we are made for.

    built_for: of _BACKENDS. features: instruction sets that it was built with. problem: why it
    cannot be used, "" if it can.
    """

    version: str
    wanted: str
    built_for: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    features: tuple[str, ...] = ()
    problem: str = ""

    @property
    def gpus(self) -> tuple[Device, ...]:
        return tuple(device for device in self.devices if device.kind in ("gpu", "igpu"))


def examine() -> Llama:
    """Asks llama.cpp in another process; never raises."""
    wanted = _wanted_version()
    try:
        version = metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return Llama("", wanted, problem="llama-cpp-python is not installed")
    command = [sys.executable, "-m", "specfit.app.doctor_llama"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Llama(version, wanted, problem=f"llama.cpp does not answer ({error})")
    return read_answer(version, wanted, done.returncode, done.stdout, done.stderr)


def read_answer(version: str, wanted: str, code: int, out: bytes, err: bytes) -> Llama:
    """What the other process said, or what its end means."""
    if code < 0:
        crash = f"llama.cpp crashes (signal {-code}), as one built for another processor does"
        return Llama(version, wanted, problem=crash)
    try:
        told = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        last = err.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        return Llama(version, wanted, problem=f"llama.cpp cannot be loaded: {last[-1][:300]}")
    devices = tuple(Device(**device) for device in told["devices"])
    return Llama(version, wanted, tuple(told["built_for"]), devices, tuple(told["features"]))


def features_of(system_info: str) -> tuple[str, ...]:
    """The names that llama_print_system_info gives a value of 1: AVX2, NEON, REPACK …"""
    parts = (part.rpartition(":")[2] for part in system_info.split("|"))
    pairs = (part.split("=") for part in parts if "=" in part)
    return tuple(pair[0].strip() for pair in pairs if pair[1].strip() == "1")


def _wanted_version() -> str:
    """What our own package asks for; "" if it does not say (run from the sources)."""
    try:
        required = metadata.requires("specfit") or []
    except metadata.PackageNotFoundError:
        return ""
    pins = (line.partition("==")[2] for line in required if line.startswith("llama-cpp-python=="))
    return next(pins, "").split(";")[0].strip()


def _tell() -> dict[str, Any]:
    import llama_cpp
    import llama_cpp.llama_cpp as llama

    from specfit.backend import library

    library.start()
    folder = Path(llama_cpp.__file__).parent / "lib"
    names = {path.name.split(".")[0] for path in folder.glob("*")}
    return {
        "built_for": [name for name in _BACKENDS if f"libggml-{name}" in names],
        "features": features_of(llama.llama_print_system_info().decode("utf-8", "replace")),
        "devices": _devices(),
    }


def _devices() -> list[dict[str, Any]]:
    from specfit.backend.library import symbol

    handle = [ctypes.c_void_p]
    size = ctypes.POINTER(ctypes.c_size_t)
    count = symbol("ggml_backend_dev_count", restype=ctypes.c_size_t, argtypes=[])
    get = symbol("ggml_backend_dev_get", restype=ctypes.c_void_p, argtypes=[ctypes.c_size_t])
    kind = symbol("ggml_backend_dev_type", restype=ctypes.c_int, argtypes=handle)
    name = symbol("ggml_backend_dev_name", restype=ctypes.c_char_p, argtypes=handle)
    about = symbol("ggml_backend_dev_description", restype=ctypes.c_char_p, argtypes=handle)
    memory = symbol("ggml_backend_dev_memory", restype=None, argtypes=[*handle, size, size])
    found = []
    for device in map(get, range(count())):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(device, ctypes.byref(free), ctypes.byref(total))
        found.append(
            {
                "name": name(device).decode("utf-8", "replace"),
                "description": about(device).decode("utf-8", "replace"),
                "kind": _KINDS.get(kind(device), "other"),
                "free": free.value,
                "total": total.value,
            }
        )
    return found


if __name__ == "__main__":
    print(json.dumps(_tell()))
