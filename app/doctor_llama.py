"""What llama.cpp is here, told by a process of its own.

A llama.cpp that was built for another processor or GPU dies of its first instruction, and a driver
can do worse; the doctor wants to survive that and say so. Run as
`python -m specfit.app.doctor_llama`. It needs llama.cpp and neither torch nor the planner.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from .doctor_process import Answer, ask, tell

_BACKENDS = ("cuda", "hip", "vulkan", "metal", "sycl", "rpc")
_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accelerator"}
LOOKING, RUNNING = "looking", "running"


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

    built_for: of _BACKENDS. features: instruction sets that it was built with. used: of the GPUs,
    those that models are placed on, in order, by name with the free bytes that placement reckons
    with. shared: they use the host's memory. said: errors that it logged. problem: why it cannot be
    used, "" if it can. step: what it was at then, LOOKING or RUNNING, "" before.
    """

    version: str
    wanted: str
    built_for: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    features: tuple[str, ...] = ()
    used: tuple[tuple[str, int], ...] = ()
    shared: bool = False
    said: str = ""
    problem: str = ""
    step: str = ""

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
    return read_answer(version, wanted, ask("specfit.app.doctor_llama"))


def read_answer(version: str, wanted: str, answer: Answer) -> Llama:
    """What the other process told, and what its end means."""
    told, problem = answer.told, ""
    step = str(told.get("step", ""))
    if answer.problem:
        doing = {"": "cannot be loaded", LOOKING: "cannot look for GPUs"}
        failing = doing.get(step, "cannot run the bundled model")
        problem = f"llama.cpp {failing}: {answer.problem}"
    return Llama(
        version,
        wanted,
        built_for=tuple(told.get("built_for", ())),
        devices=tuple(Device(**device) for device in told.get("devices", ())),
        features=tuple(told.get("features", ())),
        used=tuple((name, free) for name, free in told.get("used", ())),
        shared=told.get("shared", False),
        said=told.get("said", ""),
        problem=problem,
        step=step,
    )


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


def _tell() -> None:
    import llama_cpp
    import llama_cpp.llama_cpp as llama

    from specfit.backend import devices, library
    from specfit.models import bundled_model

    folder = Path(llama_cpp.__file__).parent / "lib"
    names = {path.name.split(".")[0] for path in folder.glob("*")}
    tell(built_for=[name for name in _BACKENDS if f"libggml-{name}" in names])
    tell(step=LOOKING)
    library.start()
    features = features_of(llama.llama_print_system_info().decode("utf-8", "replace"))
    tell(features=features, devices=_devices(), said=library.take_errors())
    tell(step=RUNNING)
    # The very list, and the very numbers, that placement gets.
    used = devices.gpus_used(bundled_model())
    tell(used=[(gpu.name, gpu.free) for gpu in used])
    tell(shared=bool(used) and devices.shares_memory())
    _run(bundled_model())


def _run(path: Path) -> None:
    """Computes three tokens, on a GPU if there is one. Raises SpecfitError."""
    import llama_cpp.llama_cpp as llama

    from specfit.backend import SpecfitError, library

    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    if model is None:
        raise SpecfitError(f"{path.name} is not loaded: {library.take_errors()}")
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 64, 1, 1
    context = llama.llama_init_from_model(model, params)
    if context is None:
        raise SpecfitError(f"no context is made: {library.take_errors()}")
    tokens = (llama.llama_token * 3)(1, 2, 3)
    status = llama.llama_decode(context, llama.llama_batch_get_one(tokens, 3))
    if status != 0:
        raise SpecfitError(f"decoding ends with {status}: {library.take_errors()}")
    llama.llama_synchronize(context)


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
    _tell()
