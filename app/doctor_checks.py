"""What is wrong with a machine, each with its cure. Pure: it is told what was found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .doctor_advice import Advice
from .doctor_llama import Llama
from .doctor_machine import Gpu, Machine
from .library import size

# A GPU of less does not hold the attention of a recommended model.
LEAST_VRAM = 3_000_000_000
_NEEDED = ("AVX", "AVX2", "FMA", "F16C", "AVX512", "NEON")
_COMPILER = (
    "install one (Debian, Ubuntu: apt install build-essential; Fedora: dnf install gcc-c++; macOS: "
    "xcode-select --install)"
)
# By vendor: the backends that serve its GPUs, the best first, with the tool each build needs and
# what brings it.
_BACKENDS = {
    "nvidia": (("cuda", "nvcc", "the CUDA toolkit"), ("vulkan", "glslc", "the Vulkan SDK")),
    "amd": (("hip", "hipcc", "ROCm"), ("vulkan", "glslc", "the Vulkan SDK")),
    "intel": (("vulkan", "glslc", "the Vulkan SDK"),),
    "apple": (("metal", "", ""),),
}


@dataclass(frozen=True)
class Problem:
    """In a sentence each; the cure is what to do or to type."""

    what: str
    cure: str


@dataclass(frozen=True)
class Surroundings:
    """project: the folder with the Makefile; None where SpecFit came as a package.

    unwritable: folders of ours, with the reason. disk_free: where models are downloaded to.
    downloaded: names of recommended models that are there. The others say what is wrong, "" if
    nothing is.
    """

    project: Path | None
    unwritable: tuple[tuple[Path, str], ...] = ()
    disk: Path = Path()
    disk_free: int = 0
    downloaded: frozenset[str] = frozenset()
    bundled: str = ""
    search: str = ""
    settings: str = ""
    terminal: str = ""


def problems(
    machine: Machine, llama: Llama, here: Surroundings, chosen: Advice | None
) -> tuple[Problem, ...]:
    """All that keeps SpecFit from working, or from being as fast as it could be here."""
    return (
        *_of_llama(machine, llama, here),
        *_of_gpus(machine, llama, here),
        *_of_tools(machine, llama, here),
        *_of_room(machine, here, chosen),
        *_of_files(here),
    )


def build_command(backend: str, llama: Llama, project: Path | None, anew: bool = False) -> str:
    """What builds llama.cpp for "cuda", "hip", "vulkan", "metal" or "cpu".

    anew: also where it is built for just that, and never from pip's cache.
    """
    if project is not None:
        pip = ".venv/bin/pip"
        gone = f"{pip} uninstall -y llama-cpp-python; {pip} cache remove 'llama_cpp_python*'; "
        return f"{gone if anew else ''}make setup GPU={backend}"
    flags = "" if backend == "cpu" else f"CMAKE_ARGS=-DGGML_{backend.upper()}=on "
    wanted = f"llama-cpp-python=={llama.wanted}" if llama.wanted else "llama-cpp-python"
    return (
        f"{flags}pip install --force-reinstall --no-deps --no-cache-dir --no-binary "
        f"llama-cpp-python {wanted}"
    )


def best_backend(machine: Machine) -> tuple[str, Gpu, str]:
    """The backend for the best GPU, the GPU, and what must be installed first ("" for nothing).

    ("cpu", …) without one that is worth it.
    """
    worthwhile = [gpu for gpu in machine.gpus if is_worthwhile(gpu)]
    for gpu in sorted(worthwhile, key=lambda gpu: -gpu.vram):
        choices = _BACKENDS[gpu.vendor]
        for backend, tool, _ in choices:
            if not tool or tool in machine.tools:
                return backend, gpu, ""
        backend, tool, source = choices[0]
        return backend, gpu, f"install {source} (for its {tool})"
    return "cpu", Gpu("", ""), ""


def is_worthwhile(gpu: Gpu) -> bool:
    """Whether a model is faster with it: not so with graphics that are part of a processor."""
    return gpu.vendor in ("nvidia", "apple") or gpu.vram >= LEAST_VRAM


def _of_llama(machine: Machine, llama: Llama, here: Surroundings) -> Iterator[Problem]:
    backend = llama.built_for[0] if llama.built_for else "cpu"
    again = build_command(backend, llama, here.project, anew=True)
    if llama.problem:
        backend, _, _ = best_backend(machine)
        yield Problem(llama.problem, build_command(backend, llama, here.project, anew=True))
    elif llama.wanted and llama.version != llama.wanted:
        yield Problem(
            f"llama-cpp-python is {llama.version}, and SpecFit is made for {llama.wanted}, whose "
            "inner parts it uses",
            again,
        )
    missing = [
        name
        for name in _NEEDED
        if name in machine.instructions and llama.features and name not in llama.features
    ]
    if missing:
        yield Problem(
            f"llama.cpp was built without {', '.join(missing)}, which this processor has, and is "
            "much slower for it",
            again,
        )


def _of_gpus(machine: Machine, llama: Llama, here: Surroundings) -> Iterator[Problem]:
    if llama.problem:
        return
    backend, gpu, first = best_backend(machine)
    command = build_command(backend, llama, here.project)
    if backend != "cpu" and not llama.built_for:
        yield Problem(
            f"llama.cpp is built without a GPU backend, and there is {gpu.name}",
            f"{first}, then: {command}" if first else command,
        )
    elif llama.built_for and not llama.gpus:
        built = ", ".join(llama.built_for)
        yield Problem(
            f"llama.cpp is built for {built} and sees no GPU",
            "look that the driver is loaded (nvidia-smi, rocminfo or vulkaninfo lists the GPU) and "
            "that CUDA_VISIBLE_DEVICES and the like do not hide it; without a GPU: "
            + build_command("cpu", llama, here.project),
        )
    if "cuda" in llama.built_for and machine.torch.endswith("+cpu"):
        yield Problem(
            f"PyTorch {machine.torch} is built without CUDA, so the draft head runs on the CPU",
            "pip install --force-reinstall torch (from PyPI, whose build has CUDA)",
        )


def _of_tools(machine: Machine, llama: Llama, here: Surroundings) -> Iterator[Problem]:
    if "cc" not in machine.tools:
        yield Problem(
            "there is no C compiler, without which the experts of a model cannot be observed and "
            "the planner guesses what drafts cost",
            _COMPILER,
        )
    if not machine.torch:
        yield Problem(
            "PyTorch is not installed, and draft heads run on it",
            "make setup" if here.project else "pip install torch",
        )
    if here.search:
        yield Problem(
            f"the planner's search cannot be loaded ({here.search})",
            "make setup" if here.project else "pip install --force-reinstall specfit",
        )


def _of_room(machine: Machine, here: Surroundings, chosen: Advice | None) -> Iterator[Problem]:
    if chosen is None:
        yield Problem(
            f"no recommended model fits {machine.ram / 1e9:.0f} GB of memory",
            "use a smaller GGUF model (-hf OWNER/REPO), or the bundled one",
        )
    elif chosen.model.name not in here.downloaded and here.disk_free < chosen.model.size:
        yield Problem(
            f"{here.disk} has {size(here.disk_free)} free, and {chosen.model.name} is "
            f"{size(chosen.model.size)}",
            "make room, or set HF_HUB_CACHE to a folder on another disk",
        )


def _of_files(here: Surroundings) -> Iterator[Problem]:
    for folder, reason in here.unwritable:
        yield Problem(
            f"{folder} cannot be written ({reason})",
            f"mkdir -p '{folder}' && chmod u+rwx '{folder}', or make it yours with chown",
        )
    if here.bundled:
        yield Problem(
            f"the bundled model is damaged: {here.bundled}",
            "git checkout -- models/bundled"
            if here.project
            else "pip install --force-reinstall --no-deps specfit",
        )
    if here.settings:
        yield Problem(f"the settings are not used: {here.settings}", "put that line right")
    if here.terminal:
        cure = "TERM=xterm-256color" if re.search(r"TERM", here.terminal) else "LC_ALL=C.UTF-8"
        yield Problem(
            f"the chat cannot be drawn well here: {here.terminal}",
            f"use a terminal of this century, or set {cure} if yours is one",
        )
