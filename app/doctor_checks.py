"""What is wrong with a machine, each with its cure. Pure: it is told what was found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .doctor_llama import RUNNING, Llama
from .doctor_machine import Gpu, Machine
from .doctor_packages import ABSENT, SEARCH, Packages
from .library import size

if TYPE_CHECKING:
    from .doctor_advice import Advice

# As the Makefile looks for.
PYTHONS = ((3, 11), (3, 14))
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

    unwritable: folders of ours, with the reason, and the variable that names another ("" if none
    does). disk_free: where models are downloaded to. downloaded: recommended models that are there,
    by names, each with its first file. The others say what is wrong, "" if nothing is.
    """

    project: Path | None
    unwritable: tuple[tuple[Path, str, str], ...] = ()
    disk: Path = Path()
    disk_free: int = 0
    downloaded: Mapping[str, Path] = field(default_factory=dict)
    bundled: str = ""
    settings: str = ""
    terminal: str = ""


def problems(
    machine: Machine,
    llama: Llama,
    packages: Packages,
    here: Surroundings,
    advice: Sequence[Advice],
    chosen: Advice | None,
) -> tuple[Problem, ...]:
    """All that keeps SpecFit from working, or from being as fast as it could be here."""
    return (
        *of_python(machine.python, here.project),
        *of_packages(packages, here.project),
        *_of_llama(machine, llama, here),
        *_of_gpus(machine, llama, here),
        *_of_tools(machine),
        *_of_room(here, advice, chosen),
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


def of_python(version: tuple[int, int], project: Path | None) -> Iterator[Problem]:
    """A Python that SpecFit is not made for."""
    least, most = PYTHONS
    if not least <= version <= most:
        age = "older" if version < least else "newer"
        wanted = f"Python {least[0]}.{least[1]} to {most[0]}.{most[1]}"
        yield Problem(
            f"Python {version[0]}.{version[1]} is {age} than SpecFit is made for ({wanted})",
            f"install {wanted}, then: rm -rf .venv && make setup"
            if project
            else f"install SpecFit into an environment of {wanted}",
        )


def of_packages(packages: Packages, project: Path | None) -> Iterator[Problem]:
    """Packages that cannot be imported."""
    pip = ".venv/bin/pip install -c constraints.txt" if project else "pip install"
    absent = [name for name, reason in packages.broken.items() if reason == ABSENT]
    if len(absent) > 1:
        names = ", ".join(absent)
        yield Problem(f"Python packages are not installed: {names}", f"{pip} {' '.join(absent)}")
    for name, reason in packages.broken.items():
        if reason == ABSENT and len(absent) > 1:
            continue
        if name == SEARCH:
            yield Problem(
                f"{name} cannot be loaded ({reason})",
                "rm -f planner/_native*.so; make setup"
                if project
                else "pip install --force-reinstall --no-deps specfit",
            )
            continue
        what = f"the Python package {name}"
        if reason == ABSENT:
            yield Problem(f"{what} is not installed", f"{pip} {name}")
        else:
            again = f"{pip} --force-reinstall --no-deps {name}"
            yield Problem(f"{what} cannot be imported ({reason})", again)


def _of_llama(machine: Machine, llama: Llama, here: Surroundings) -> Iterator[Problem]:
    backend = llama.built_for[0] if llama.built_for else "cpu"
    again = build_command(backend, llama, here.project, anew=True)
    if llama.problem and not (here.bundled and llama.step == RUNNING):
        backend, _, _ = best_backend(machine)
        again = build_command(backend, llama, here.project, anew=llama.version != "")
        yield Problem(llama.problem, again)
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
    cuda = machine.cuda
    if cuda.trouble:
        yield Problem(
            f"NVIDIA's driver does not work: nvidia-smi says: {cuda.trouble}",
            "restart the machine if the driver was updated, else install it anew; without a GPU of "
            "NVIDIA's remove its driver",
        )
    has_nvidia = any(gpu.vendor == "nvidia" for gpu in machine.gpus)
    too_old = has_nvidia and cuda.driver and _major(cuda.driver) < _major(cuda.toolkit)
    if too_old:
        yield Problem(
            f"NVIDIA's driver serves CUDA {cuda.driver}, and the CUDA toolkit is {cuda.toolkit}: "
            "what it builds finds no GPU",
            f"update the driver, or install a toolkit of CUDA {_major(cuda.driver)}, then: "
            + build_command("cuda", llama, here.project, anew="cuda" in llama.built_for),
        )
    if not llama.version or (llama.problem and llama.step != RUNNING):
        return
    backend, gpu, first = best_backend(machine)
    command = build_command(backend, llama, here.project)
    if backend != "cpu" and not llama.built_for and not too_old:
        yield Problem(
            f"llama.cpp is built without a GPU backend, and there is {gpu.name}",
            f"{first}, then: {command}" if first else command,
        )
    elif llama.built_for and not llama.gpus:
        built = ", ".join(llama.built_for)
        says = f": {llama.said}" if llama.said else ""
        old = "update the driver: " if "insufficient" in llama.said else ""
        yield Problem(
            f"llama.cpp is built for {built} and sees no GPU{says}",
            f"{old}look that the driver is loaded (nvidia-smi, rocminfo or vulkaninfo lists the "
            "GPU) and that CUDA_VISIBLE_DEVICES and the like do not hide it; without a GPU: "
            + build_command("cpu", llama, here.project),
        )


def _of_tools(machine: Machine) -> Iterator[Problem]:
    if "cc" not in machine.tools:
        yield Problem(
            "there is no C compiler, without which the experts of a model cannot be observed and "
            "the planner guesses what drafts cost",
            _COMPILER,
        )


def _of_room(
    here: Surroundings, advice: Sequence[Advice], chosen: Advice | None
) -> Iterator[Problem]:
    if chosen is None:
        smallest = advice[-1]
        yield Problem(
            f"no recommended model fits: {smallest.model.quant}, the smallest, is "
            f"{gib(smallest.short)} short of memory",
            "use a smaller GGUF model (-hf OWNER/REPO), or the bundled one",
        )
    elif chosen.model.name not in here.downloaded and here.disk_free < chosen.model.size:
        yield Problem(
            f"{here.disk} has {size(here.disk_free)} free, and {chosen.model.name} is "
            f"{size(chosen.model.size)}",
            "make room, or set HF_HUB_CACHE to a folder on another disk",
        )


def _of_files(here: Surroundings) -> Iterator[Problem]:
    for folder, reason, variable in here.unwritable:
        cure = f"mkdir -p '{folder}' && chmod u+rwx '{folder}', or make it yours with chown"
        if "space" in reason or "quota" in reason:
            cure = "make room on that disk"
        elif "Read-only" in reason:
            cure = "mount that disk so that it can be written"
        other = f", or set {variable} to another folder" if variable else ""
        yield Problem(f"{folder} cannot be written ({reason})", cure + other)
    if here.bundled:
        yield Problem(
            f"the bundled model is damaged: {here.bundled}",
            "git checkout -- models/bundled"
            if here.project
            else "pip install --force-reinstall --no-deps specfit",
        )
    if here.settings:
        yield Problem(f"the settings are not used: {here.settings}", "put that right")
    if here.terminal:
        cure = "TERM=xterm-256color" if re.search(r"TERM", here.terminal) else "LC_ALL=C.UTF-8"
        yield Problem(
            f"the chat cannot be drawn well here: {here.terminal}",
            f"use a terminal of this century, or set {cure} if yours is one",
        )


def gib(n_bytes: int) -> str:
    """Memory for people, as the plan of a placement has it."""
    return f"{n_bytes / (1 << 30):.1f} GiB"


def _major(version: str) -> int:
    return int(version.partition(".")[0] or 0)
