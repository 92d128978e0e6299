"""Set up the environment that ``make`` runs SpecFit in: the ``.venv`` beside this file.

The Makefile runs it before every target. It uses the standard library only, since it also runs in
the Python that is still to make the environment. When all is in place it takes some milliseconds
and asks no network. What it keeps up to date:

* the dependencies of the product and of its tests, which pyproject.toml and constraints.txt name;
* the package itself: a strict editable install links file by file, so when a file was added or
  removed it is installed again, which takes seconds; so is it when its C++ sources changed, since
  they are compiled then.

Each has a fingerprint of what it depends on, struck out before it is touched and written when it is
done: an interrupted set-up is taken up again by the next one. What llama.cpp is built for is noted
nowhere, since the libraries that lie in the environment say it.

pip's wheel cache does not know the build options (CMAKE_ARGS): only a plain build may come from it
or go into it, and what was installed is looked at afterwards.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STATE = VENV / "setup-state.json"
CONSTRAINTS = ROOT / "constraints.txt"
PACKAGES = ("app", "backend", "planner", "models")
ENGINE = "llama-cpp-python"

ON_MACOS = sys.platform == "darwin"
GPU_BACKENDS = ("cuda", "hip", "vulkan", "metal")
# What llama-cpp-python builds when it is told nothing; on macOS it builds Metal in, always.
PLAIN_BACKEND = "metal" if ON_MACOS else "cpu"
# The tool that a build cannot do without, and what brings it.
BUILD_TOOLS = {
    "cuda": ("nvcc", "the CUDA toolkit"),
    "hip": ("hipcc", "ROCm"),
    "vulkan": ("glslc", "the Vulkan SDK"),
}


class SetupError(Exception):
    """The set-up cannot go on; the message is one sentence for the person at the terminal."""


@dataclass(frozen=True)
class Choice:
    """What llama.cpp is to be built for, and why."""

    backend: str
    reason: str
    asked: bool = False
    """A person named it: if its build fails, that is an error and not a reason to do without."""


def say(text: str) -> None:
    """Tell the person something, on standard error: standard output belongs to the answers."""
    print(text, file=sys.stderr, flush=True)


def output_of(*command: str) -> str:
    """What a command prints on standard output; nothing when it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, errors="replace", timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


# --- What to build for ---------------------------------------------------------------------------


def find_tool(backend: str) -> str | None:
    """Path of the tool that a build for ``backend`` needs; nvcc is often installed off PATH."""
    tool, _ = BUILD_TOOLS[backend]
    found = shutil.which(tool)
    if backend == "cuda" and not found:
        home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
        found = shutil.which(tool, path=f"{home}/bin")
    return found


def cuda_device() -> str | None:
    """Name of the first GPU that NVIDIA's driver reaches."""
    names = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").split("\n")
    return names[0].strip() or None


def hip_device() -> str | None:
    """Name of the first GPU among ROCm's agents (the processor is an agent too)."""
    for agent in re.split(r"\nAgent \d+", output_of("rocminfo")):
        name = re.search(r"Marketing Name:[ \t]+(\S.*)", agent)
        if re.search(r"Device Type:\s+GPU", agent):
            return name.group(1).strip() if name else "an AMD GPU"
    return None


def vulkan_device() -> str | None:
    """Name of the first Vulkan device that is not a processor in disguise (llvmpipe)."""
    for device in re.split(r"\nGPU\d+:", output_of("vulkaninfo", "--summary"))[1:]:
        name = re.search(r"deviceName\s*=\s*(\S.*)", device)
        if name and "PHYSICAL_DEVICE_TYPE_CPU" not in device and "llvmpipe" not in device:
            return name.group(1).strip()
    return None


def detect_backend() -> Choice:
    """The backend for what this machine really has: a device, and the tool to build for it."""
    if ON_MACOS:
        return Choice("metal", "Apple silicon")
    near_misses = []
    devices = {"cuda": cuda_device, "hip": hip_device, "vulkan": vulkan_device}
    for backend, find_device in devices.items():
        device, found = find_device(), find_tool(backend)
        if device and found:
            return Choice(backend, device)
        if device:
            tool, source = BUILD_TOOLS[backend]
            near_misses.append(f"for {device} there would have to be {tool} from {source}")
        elif found:
            near_misses.append(f"no {backend.upper()} device found")
    return Choice("cpu", "; ".join(near_misses) or "no GPU found")


def choose_backend(name: str, installed: str | None) -> Choice:
    """The backend asked for by ``name``, else the one that is installed, else the machine's.

    Raises SetupError for a name that is none, or that cannot be built on this machine.
    """
    if not name:
        return Choice(installed, "as before") if installed else detect_backend()
    if name not in (*GPU_BACKENDS, "cpu"):
        raise SetupError(f"GPU={name} is not known: use {', '.join(GPU_BACKENDS)} or cpu.")
    if ON_MACOS and name != "metal":
        raise SetupError(
            f"GPU={name} is not for macOS, where llama.cpp is always built with Metal "
            "(--gpu-layers 0 keeps a model on the CPU)."
        )
    if name == "metal" and not ON_MACOS:
        raise SetupError("GPU=metal is for macOS only: use cuda, hip, vulkan or cpu here.")
    if name in BUILD_TOOLS and not find_tool(name):
        tool, source = BUILD_TOOLS[name]
        raise SetupError(f"GPU={name} needs {tool}, which is not on PATH: install {source}.")
    return Choice(name, "as asked", asked=True)


def installed_backend() -> str | None:
    """What the installed llama-cpp-python is built for; None when it is not wholly there."""
    for record in VENV.glob("lib/python3*/site-packages/llama_cpp_python-*.dist-info/RECORD"):
        libraries = {path.name.split(".")[0] for path in record.parents[1].glob("llama_cpp/lib/*")}
        if "libllama" in libraries:
            built = (name for name in GPU_BACKENDS if f"libggml-{name}" in libraries)
            return next(built, "cpu")
    return None


# --- Installing ----------------------------------------------------------------------------------


def pip_install(*arguments: str, environment: dict[str, str] | None = None) -> bool:
    """Run pip in ``.venv``, its output going to standard error; says whether it succeeded."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment
    )
    return done.returncode == 0


def compilers() -> dict[str, str]:
    """CC and CXX, as set or as found; raises SetupError unless both run.

    A missing CMake or Ninja pip fetches.
    """
    known = {"CC": ("C", "cc", "gcc", "clang"), "CXX": ("C++", "c++", "g++", "clang++")}
    found = {}
    for variable, (language, *names) in known.items():
        named = os.environ.get(variable)
        candidates = [named] if named else names
        working = (name for name in candidates if output_of(name.split()[0], "--version"))
        found[variable] = next(working, "")
        if not found[variable]:
            raise SetupError(
                f"llama.cpp and the planner are compiled here, and no {language} compiler works: "
                "install one (Debian, Ubuntu: apt install build-essential; Fedora: "
                "dnf install gcc-c++; macOS: xcode-select --install) and run make again."
            )
    return found


def build_environment(backend: str) -> dict[str, str]:
    """The environment variables of a build for ``backend``; those that are set already prevail."""
    defaults = {"CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)}
    if backend == "hip":
        defaults["HIPCXX"] = output_of("hipconfig", "-l").strip() + "/clang"
        defaults["HIP_PATH"] = output_of("hipconfig", "-R").strip()
    environment = defaults | dict(os.environ)
    if backend == "cuda" and not shutil.which("nvcc"):
        toolkit = Path(find_tool("cuda") or "").parent
        environment["PATH"] = f"{toolkit}{os.pathsep}{environment['PATH']}"
    if backend != PLAIN_BACKEND:
        options = f"{environment.get('CMAKE_ARGS', '')} -DGGML_{backend.upper()}=on"
        environment["CMAKE_ARGS"] = options.strip()
    return environment


def install_engine(choice: Choice) -> None:
    """Install llama-cpp-python as chosen, building it where need be; raises SetupError."""
    if installed_backend() != choice.backend:
        compilers()
        say(f"Building llama.cpp for: {choice.backend} ({choice.reason})")
        say("Unless it is in pip's cache this takes minutes: 5 on two cores, for a GPU far more.")
    environment = build_environment(choice.backend)
    cached = () if "CMAKE_ARGS" not in environment else ("--no-cache-dir",)
    again = ("--force-reinstall", "--no-deps", "--no-binary", ENGINE)
    # It may be there for another backend; and the cache may hold a build of another project's.
    for options in dict.fromkeys([cached, (*cached, *again), ("--no-cache-dir", *again)]):
        arguments = (*options, "--constraint", str(CONSTRAINTS), ENGINE)
        done = pip_install(*arguments, environment=environment)
        if not done or installed_backend() == choice.backend:
            break
    if not done or installed_backend() != choice.backend:
        raise SetupError(f"llama.cpp could not be built for {choice.backend}: see above why.")


def install_dependencies(choice: Choice, requirements: list[str]) -> None:
    """Install the requirements at their tested versions; raises SetupError.

    Where the build for a GPU fails that nobody asked for by name, llama.cpp is built plainly.
    """
    try:
        install_engine(choice)
    except SetupError as error:
        if choice.asked or choice.backend == PLAIN_BACKEND:
            raise
        say(str(error))
        install_engine(Choice(PLAIN_BACKEND, f"since the build for {choice.backend} failed"))
    if not pip_install("--constraint", str(CONSTRAINTS), *requirements):
        raise SetupError("pip could not install the dependencies: see above why.")


def install_package() -> None:
    """Compile and install the package itself, without network; raises SetupError."""
    options = ("--quiet", "--no-deps", "--no-build-isolation")
    settings = ("--config-settings", "editable_mode=strict")
    # Python's own build may name a compiler that this machine does not have.
    environment = dict(os.environ) | compilers()
    if not pip_install(*options, *settings, "--editable", ".", environment=environment):
        raise SetupError("pip could not install SpecFit itself: see above why.")


def make_environment() -> None:
    """Make ``.venv`` with the running Python, in place of a broken one; whole or not at all."""
    say(f"Making .venv with Python {platform.python_version()}")
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    except BaseException as error:
        shutil.rmtree(VENV, ignore_errors=True)
        if isinstance(error, subprocess.CalledProcessError):
            raise SetupError(f"{sys.executable} could not make {VENV}: see above why.") from None
        raise


# --- The whole -----------------------------------------------------------------------------------


def fingerprint(*parts: object) -> str:
    """A digest of what is installed from, this Python and this folder included."""
    basis = json.dumps([*parts, sys.version_info[:3], str(ROOT)])
    return hashlib.sha256(basis.encode()).hexdigest()


def package_files() -> list[str]:
    """The names of what the editable install links or makes, and of the folder of its links."""
    found = list(ROOT.glob("build/__editable__.*"))
    for package in PACKAGES:
        found += [path for path in (ROOT / package).rglob("*") if path.is_file()]
    return sorted(str(path.relative_to(ROOT)) for path in found if path.suffix != ".pyc")


def compiled_sources(project: dict[str, Any]) -> list[str]:
    """The text of every file that the package's own libraries are compiled from."""
    modules = project["tool"]["setuptools"]["ext-modules"]
    names = [name for module in modules for name in (*module["sources"], *module["depends"])]
    return [(ROOT / name).read_text() for name in names]


def read_state() -> dict[str, str]:
    """The fingerprints of what is done; none when the file is missing or damaged."""
    try:
        state = json.loads(STATE.read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(state: dict[str, str]) -> None:
    """Replace the file of fingerprints in one step."""
    draft = STATE.with_suffix(".new")
    draft.write_text(json.dumps(state, indent=1))
    draft.replace(STATE)


@contextmanager
def only_one_setup() -> Iterator[None]:
    """Hold this folder's lock; it ends with the process, however that ends."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("Another set-up is running in this folder; waiting for it to end.")
        fcntl.flock(folder, fcntl.LOCK_EX)
    except OSError:
        pass  # A file system without locks.
    try:
        yield
    finally:
        os.close(folder)


def set_up(gpu: str, with_tests: bool) -> None:
    """Bring the environment up to date; raises SetupError."""
    if with_tests and ON_MACOS and platform.machine() != "arm64":
        raise SetupError("The tests need PyTorch, which is no longer made for Intel Macs.")
    choice = choose_backend(gpu, installed_backend())
    inside = VENV.exists() and Path(sys.prefix).samefile(VENV)
    # Of two set-ups that began at once, the other one may have made the environment by now.
    if not inside and not output_of(str(PYTHON), "-m", "pip", "--version"):
        make_environment()
    state = read_state()

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    requirements = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    if with_tests:
        requirements += project["project"]["optional-dependencies"]["test"]
    part = "test" if with_tests else "base"
    mark = fingerprint(requirements, CONSTRAINTS.read_text())
    if state.get(part) != mark or installed_backend() != choice.backend:
        state.pop(part, None)
        write_state(state)
        install_dependencies(choice, requirements)
        state[part] = mark
        write_state(state)

    sources = compiled_sources(project)
    if state.get("package") != fingerprint(project, package_files(), sources):
        state.pop("package", None)
        write_state(state)
        install_package()
        state["package"] = fingerprint(project, package_files(), sources)
        write_state(state)


def main() -> int:
    """Run the set-up; returns the exit status: 0, 2 after an error, 130 when interrupted."""
    parser = argparse.ArgumentParser(description="Set up the environment that make uses.")
    parser.add_argument("--gpu", default="", help="what to build llama.cpp for")
    parser.add_argument("--test", action="store_true", help="the tests' dependencies too")
    parser.add_argument("--report", action="store_true", help="say at the end what there is")
    arguments = parser.parse_args()
    try:
        with only_one_setup():
            set_up(arguments.gpu, arguments.test)
            if arguments.report:
                say(f"Ready; llama.cpp is built for: {installed_backend()}")
    except (SetupError, OSError) as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("Interrupted; the next make takes the set-up up again.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
