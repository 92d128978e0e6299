"""Memory of the GPUs that llama.cpp sees, as its backends tell."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import llama_cpp.llama_cpp as llama

from . import library
from .plan import Gpu

_USED = re.compile(r"using device (\S+) .* - (\d+) MiB free")
GPU_TYPES = (1, 2)  # a GPU of its own memory, and one that shares the host's


@dataclass(frozen=True)
class DeviceMemory:
    """name: as the backend calls it. used, total: bytes, of all programs."""

    name: str
    used: int
    total: int


def free_vram() -> int:
    """Free bytes of all GPUs of their own memory; 0 where llama.cpp sees none or does not tell."""
    if sys.platform == "darwin":  # Apple's GPUs use the host's memory
        return 0
    library.start()  # first, or the drivers' remarks go to the terminal
    with suppress(AttributeError):
        return sum(device.total - device.used for device in gpu_memory())
    return 0


def gpu_memory() -> list[DeviceMemory]:
    """One for each GPU that tells; asks the drivers, so not for an event loop."""
    name = library.symbol(
        "ggml_backend_dev_name", restype=ctypes.c_char_p, argtypes=[ctypes.c_void_p]
    )
    memory = library.symbol(
        "ggml_backend_dev_memory",
        restype=None,
        argtypes=[
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_size_t),
            ctypes.POINTER(ctypes.c_size_t),
        ],
    )
    devices = []
    for device, kind in _devices():
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if kind not in GPU_TYPES:
            continue
        memory(device, ctypes.byref(free), ctypes.byref(total))
        if total.value:
            used = max(0, total.value - free.value)
            devices.append(DeviceMemory(name(device).decode("utf-8", "replace"), used, total.value))
    return devices


def gpu_names() -> list[str]:
    """What the GPUs are called, like "NVIDIA H200"."""
    library.start()
    name = library.symbol(
        "ggml_backend_dev_description", restype=ctypes.c_char_p, argtypes=[ctypes.c_void_p]
    )
    gpus = (device for device, kind in _devices() if kind in GPU_TYPES)
    return [name(gpu).decode("utf-8", "replace") for gpu in gpus]


def gpus_used(path: Path) -> tuple[Gpu, ...]:
    """The GPUs that llama.cpp would use for a model, as it says when it reads the file; nothing is
    allocated."""
    library.start()
    params = llama.llama_model_default_params()
    params.no_alloc, params.load_mode = True, llama.LLAMA_LOAD_MODE_NONE
    with library.listening() as lines:
        model = llama.llama_model_load_from_file(str(path).encode(), params)
        if model is not None:
            llama.llama_model_free(model)
    return gpus_named(lines)


def gpus_named(lines: Iterable[str]) -> tuple[Gpu, ...]:
    """The GPUs that llama.cpp logged to use, in its order."""
    found = (_USED.search(line) for line in lines)
    gpus = {one[1]: Gpu(one[1], int(one[2]) << 20) for one in found if one}
    return tuple(gpus.values())


def shares_memory() -> bool:
    """Whether the GPUs use the host's memory: Apple's, and those inside a processor, which
    llama.cpp takes where there is no other."""
    kinds = {kind for _, kind in _devices()}
    return sys.platform == "darwin" or (GPU_TYPES[0] not in kinds and GPU_TYPES[1] in kinds)


def _devices() -> Iterator[tuple[int, int]]:
    """Handle and type of every device that ggml knows."""
    count = library.symbol("ggml_backend_dev_count", restype=ctypes.c_size_t, argtypes=[])
    get = library.symbol(
        "ggml_backend_dev_get", restype=ctypes.c_void_p, argtypes=[ctypes.c_size_t]
    )
    kind = library.symbol("ggml_backend_dev_type", restype=ctypes.c_int, argtypes=[ctypes.c_void_p])
    for device in map(get, range(count())):
        yield device, kind(device)
