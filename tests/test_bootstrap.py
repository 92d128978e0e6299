"""The set-up's choices. The machine's tools are stand-ins on PATH, since no machine has them all;
what they print has the shape of the real ones' output. Nothing is installed.
"""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "bootstrap.py")
assert _spec and _spec.loader
bootstrap = importlib.util.module_from_spec(_spec)
sys.modules["bootstrap"] = bootstrap
_spec.loader.exec_module(bootstrap)

on_linux = pytest.mark.skipif(sys.platform == "darwin", reason="macOS always builds for Metal")

PROCESSOR_AGENT = """
*******
Agent 1
*******
  Name:                    Processor X
  Marketing Name:          Processor X
  Device Type:             CPU
"""
GPU_AGENT = """
*******
Agent 2
*******
  Name:                    gfx1100
  Marketing Name:          Radeon X
  Device Type:             GPU
"""
LLVMPIPE = """
Devices:
========
GPU0:
	deviceType         = PHYSICAL_DEVICE_TYPE_CPU
	deviceName         = llvmpipe (LLVM 15.0.7, 256 bits)
"""
ARC = """
GPU1:
	deviceType         = PHYSICAL_DEVICE_TYPE_DISCRETE_GPU
	deviceName         = Arc X
"""


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Replace PATH by a folder of stand-ins; each is added as ``tools(NAME, OUTPUT, STATUS)``."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "no-toolkit"))

    def add(name: str, output: str = "", status: int = 0) -> None:
        text = tmp_path / f"{name}.txt"
        text.write_text(output)
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\n/bin/cat '{text}'\nexit {status}\n")
        script.chmod(0o755)

    return add


@on_linux
@pytest.mark.parametrize(
    ("present", "backend", "reason"),
    [
        ({}, "cpu", "no GPU found"),
        ({"nvcc": ("", 0)}, "cpu", "no CUDA device found"),
        ({"nvcc": ("", 0), "nvidia-smi": ("no driver", 9)}, "cpu", "no CUDA device found"),
        ({"nvidia-smi": ("RTX X\n", 0)}, "cpu", "for RTX X there would have to be nvcc"),
        ({"nvcc": ("", 0), "nvidia-smi": ("RTX X\nRTX Y\n", 0)}, "cuda", "RTX X"),
        ({"hipcc": ("", 0), "rocminfo": (PROCESSOR_AGENT, 0)}, "cpu", "no HIP device found"),
        ({"hipcc": ("", 0), "rocminfo": (PROCESSOR_AGENT + GPU_AGENT, 0)}, "hip", "Radeon X"),
        ({"glslc": ("", 0), "vulkaninfo": (LLVMPIPE, 0)}, "cpu", "no VULKAN device found"),
        ({"glslc": ("", 0), "vulkaninfo": (LLVMPIPE + ARC, 0)}, "vulkan", "Arc X"),
    ],
)
def test_detects_what_the_machine_has(tools, present, backend, reason):
    for name, (output, status) in present.items():
        tools(name, output, status)
    choice = bootstrap.detect_backend()
    assert (choice.backend, choice.asked) == (backend, False)
    assert choice.reason.startswith(reason)


@on_linux
def test_an_installed_backend_stays_until_another_is_named(tools):
    assert bootstrap.choose_backend("", "cuda").backend == "cuda"
    tools("glslc")
    assert bootstrap.choose_backend("vulkan", "cuda").backend == "vulkan"


@on_linux
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("banana", "GPU=banana is not known"),
        ("metal", "for macOS only"),
        ("cuda", "needs nvcc"),
        ("hip", "needs hipcc"),
        ("vulkan", "needs glslc"),
    ],
)
def test_refuses_what_cannot_be_built(tools, name, message):
    with pytest.raises(bootstrap.SetupError, match=message):
        bootstrap.choose_backend(name, "cpu")


def test_a_refusal_is_one_sentence_and_status_2():
    command = [sys.executable, str(ROOT / "bootstrap.py"), "--gpu", "banana"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.endswith(".\n")


def test_build_options_join_the_persons_own(tools, monkeypatch):
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_NATIVE=off")
    tools("nvcc")
    assert bootstrap.build_environment("cuda")["CMAKE_ARGS"] == "-DGGML_NATIVE=off -DGGML_CUDA=on"
    plain = bootstrap.build_environment(bootstrap.PLAIN_BACKEND)
    assert plain["CMAKE_ARGS"] == "-DGGML_NATIVE=off"


def test_compilers_are_those_that_are_named_or_the_first_that_run(tools, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("CC", "mycc -m64")
    with pytest.raises(bootstrap.SetupError, match="no C compiler works"):
        bootstrap.compilers()
    tools("mycc", "1.0")
    tools("c++", "", status=1)
    with pytest.raises(bootstrap.SetupError, match=r"no C\+\+ compiler works"):
        bootstrap.compilers()
    tools("clang++", "1.0")
    assert bootstrap.compilers() == {"CC": "mycc -m64", "CXX": "clang++"}


def test_every_change_of_a_compiled_source_is_noticed(tmp_path, monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (module,) = project["tool"]["setuptools"]["ext-modules"]
    names = [*module["sources"], *module["depends"]]
    there = {path for suffix in ("cpp", "h") for path in (ROOT / "planner").glob(f"*.{suffix}")}
    assert {ROOT / name for name in names} == there
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("before")
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    marks = {bootstrap.fingerprint(bootstrap.compiled_sources(project))}
    for name in names:
        (tmp_path / name).write_text("after")
        marks.add(bootstrap.fingerprint(bootstrap.compiled_sources(project)))
    assert len(marks) == 1 + len(names)


def test_constraints_are_plain_and_cover_every_requirement():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
    pinned = {pin.split("==")[0] for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["build-system"]["requires"] + project["project"]["dependencies"]
    wanted += [
        one for extra in project["project"]["optional-dependencies"].values() for one in extra
    ]
    assert {re.match(r"[A-Za-z0-9-]+", one)[0].lower() for one in wanted} <= pinned
