"""What the doctor says of machines: problems with their cures, and the whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from doctorcases import (
    GIB,
    HERE,
    LLAMA,
    MACHINE,
    PACKAGES,
    RTX,
    chosen,
    found,
    on_gpu,
    only,
)

from specfit.app import doctor, doctor_here, doctor_llama, doctor_machine, doctor_packages
from specfit.app.doctor_checks import (
    best_backend,
    build_command,
)
from specfit.app.doctor_llama import RUNNING, Llama, read_answer
from specfit.app.doctor_machine import Cuda, Gpu
from specfit.app.doctor_packages import ABSENT, SEARCH, Packages
from specfit.app.doctor_process import Answer, read
from specfit.app.recommended import RECOMMENDED


def test_a_good_machine_has_no_problems():
    assert found() == ()
    assert found(replace(MACHINE, gpus=(RTX,)), on_gpu(12)) == ()


def test_a_gpu_without_a_build_for_it_is_cured_by_the_command_that_builds_it():
    with_nvcc = replace(MACHINE, gpus=(RTX,), tools=(*MACHINE.tools, "nvcc"))
    problem = only(found(with_nvcc))
    assert "without a GPU backend, and there is NVIDIA GeForce RTX 4070" in problem.what
    assert problem.cure == "make setup GPU=cuda"
    assert only(found(replace(MACHINE, gpus=(RTX,)))).cure == (
        "install the CUDA toolkit (for its nvcc), then: make setup GPU=cuda"
    )
    packaged = only(found(with_nvcc, here=replace(HERE, project=None))).cure
    assert packaged.startswith("CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall")
    assert packaged.endswith("llama-cpp-python==0.3.36")


@pytest.mark.parametrize(
    ("gpu", "tools", "backend"),
    [
        (RTX, ("nvcc", "glslc"), "cuda"),
        (RTX, ("glslc",), "vulkan"),
        (Gpu("AMD", "amd", 16 * GIB), ("hipcc",), "hip"),
        (Gpu("AMD", "amd", 16 * GIB), ("glslc",), "vulkan"),
        (Gpu("Apple GPU", "apple"), (), "metal"),
        (Gpu("AMD of a processor", "amd", GIB // 2), ("hipcc", "glslc"), "cpu"),
        (Gpu("Intel of a processor", "intel"), ("glslc",), "cpu"),
    ],
)
def test_each_gpu_has_the_backend_that_can_be_built_for_it(gpu, tools, backend):
    assert best_backend(replace(MACHINE, gpus=(gpu,), tools=tools))[0] == backend


def test_a_gpu_build_that_sees_no_gpu_is_told_what_to_look_at():
    problem = only(found(llama=replace(LLAMA, built_for=("cuda",))))
    assert "built for cuda and sees no GPU" in problem.what
    assert "CUDA_VISIBLE_DEVICES" in problem.cure


def test_a_llama_cpp_that_is_wrong_is_built_anew():
    wrong = only(found(llama=replace(LLAMA, version="0.2.90")))
    assert "is 0.2.90, and SpecFit is made for 0.3.36" in wrong.what
    assert "uninstall -y llama-cpp-python" in wrong.cure
    absent = only(found(llama=Llama("", "0.3.36", problem="llama-cpp-python is not installed")))
    assert absent.cure == "make setup GPU=cpu"
    slow = only(found(llama=replace(LLAMA, features=("AVX",))))
    assert "built without AVX2, FMA, F16C" in slow.what


def ended(code: int, out: bytes, err: bytes) -> Llama:
    return read_answer("0.3.36", "0.3.36", read(code, out, err))


def test_how_the_look_at_llama_cpp_ends_says_what_is_wrong_with_it():
    broken = ended(1, b"", b"Traceback\nOSError: libcuda.so.1: missing\n")
    assert only(found(llama=broken)).what == (
        "llama.cpp cannot be loaded: OSError: libcuda.so.1: missing"
    )
    running = b'{"built_for": ["cuda"], "features": ["AVX2"]}\nnot JSON\n{"step": "running"}\n'
    crash = ended(-4, running, b"")
    assert (crash.built_for, crash.features) == (("cuda",), ("AVX2",))
    assert (
        "cannot run the bundled model: it crashes (SIGILL), as what is built for" in crash.problem
    )
    kernels = ended(-6, running, b"CUDA error: no kernel image is available\n")
    assert kernels.problem.endswith(
        "it crashes (SIGABRT: CUDA error: no kernel image is available)"
    )
    assert "uninstall -y llama-cpp-python" in found(llama=kernels)[0].cure
    well = ended(0, running, b"some warning")
    assert well.problem == ""


def test_a_damaged_bundled_model_is_not_llama_cpps_fault():
    failed = replace(LLAMA, problem="llama.cpp cannot run the bundled model: x", step=RUNNING)
    assert "cannot run" in only(found(llama=failed)).what
    assert "is damaged" in only(found(llama=failed, here=replace(HERE, bundled="cut"))).what


def test_what_is_missing_beside_it_is_named_with_its_cure():
    assert "build-essential" in only(found(replace(MACHINE, tools=()))).cure
    here = replace(HERE, settings="line 3: no option", bundled="cut")
    assert [problem.what.split(":")[0] for problem in found(here=here)] == [
        "the bundled model is damaged",
        "the settings are not used",
    ]


def test_packages_that_cannot_be_imported_are_installed_again():
    absent = only(found(packages=Packages({"numpy": ABSENT})))
    assert absent.what == "the Python package numpy is not installed"
    assert absent.cure == ".venv/bin/pip install -c constraints.txt numpy"
    several = only(found(packages=Packages({"gguf": ABSENT, "rich": ABSENT})))
    assert several.what == "Python packages are not installed: gguf, rich"
    assert several.cure == ".venv/bin/pip install -c constraints.txt gguf rich"
    broken = Packages({"gguf": "ImportError: no"})
    problem = only(found(packages=broken))
    assert problem.what == "the Python package gguf cannot be imported (ImportError: no)"
    assert problem.cure.endswith("--force-reinstall --no-deps gguf")
    search = Packages({SEARCH: "it crashes (SIGBUS)"})
    assert only(found(packages=search)).cure == "rm -f planner/_native*.so; make setup"
    packaged = found(packages=search, here=replace(HERE, project=None))
    assert only(packaged).cure == "pip install --force-reinstall --no-deps specfit"


def test_a_crash_is_put_down_to_the_package_it_came_with():
    told = {"broken gguf": ABSENT, "step": SEARCH}
    packages = doctor_packages.read_answer(Answer(told, "it crashes (SIGBUS)"))
    assert packages.broken == {"gguf": ABSENT, SEARCH: "it crashes (SIGBUS)"}


@pytest.mark.parametrize(("python", "age"), [((3, 10), "older"), ((3, 15), "newer")])
def test_a_python_that_we_are_not_made_for_is_told(python, age):
    problem = only(found(replace(MACHINE, python=python)))
    assert problem.what.startswith(f"Python {python[0]}.{python[1]} is {age} than SpecFit")
    assert problem.cure == "install Python 3.11 to 3.14, then: rm -rf .venv && make setup"


def test_the_makefile_takes_the_pythons_that_the_doctor_takes():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    least, most = doctor.PYTHONS
    assert f"{least} <= sys.version_info[:2] <= {most}" in makefile


def test_a_driver_that_is_too_old_for_the_toolkit_is_told_before_anything_is_built():
    old = replace(MACHINE, gpus=(RTX,), tools=(*MACHINE.tools, "nvcc"))
    problem = only(found(replace(old, cuda=Cuda("11.4", "13.0"))))
    assert "serves CUDA 11.4, and the CUDA toolkit is 13.0" in problem.what
    assert problem.cure == (
        "update the driver, or install a toolkit of CUDA 11, then: make setup GPU=cuda"
    )
    for fine in (Cuda("13.1", "12.4"), Cuda("12.2", "12.4"), Cuda("", "13.0"), Cuda("12.4", "")):
        assert "without a GPU backend" in only(found(replace(old, cuda=fine))).what


def test_a_driver_that_fails_is_told_in_its_own_words():
    failing = replace(MACHINE, cuda=Cuda(trouble="Driver/library version mismatch"))
    problem = only(found(failing))
    assert "nvidia-smi says: Driver/library version mismatch" in problem.what
    assert problem.cure.startswith("restart the machine")
    said = "ggml_cuda_init: CUDA driver version is insufficient for CUDA runtime version"
    old = only(found(llama=replace(LLAMA, built_for=("cuda",), said=said)))
    assert said in old.what
    assert old.cure.startswith("update the driver")


def test_too_little_memory_or_disk_is_a_problem():
    problem = only(found(replace(MACHINE, ram=8 * GIB, ram_free=7 * GIB)))
    assert (
        problem.what
        == "no recommended model fits: IQ4_XS, the smallest, is 8.4 GiB short of memory"
    )
    full = replace(HERE, disk_free=5 * 10**9)
    problem = only(found(here=full))
    assert "/models has 5.0 GB free" in problem.what
    assert "HF_HUB_CACHE" in problem.cure
    name = chosen(MACHINE, LLAMA).model.name
    assert found(here=replace(full, downloaded={name: Path("/models/x")})) == ()


@pytest.mark.parametrize(
    ("reason", "cure"),
    [
        ("Permission denied", "mkdir -p '/a/b' && chmod u+rwx '/a/b', or make it yours with chown"),
        ("Read-only file system", "mount that disk so that it can be written"),
        ("No space left on device", "make room on that disk"),
    ],
)
def test_a_folder_that_cannot_be_written_is_cured_by_what_is_wrong(reason, cure):
    here = replace(HERE, unwritable=((Path("/a/b"), reason, "HF_HUB_CACHE"),))
    problem = only(found(here=here))
    assert problem.what == f"/a/b cannot be written ({reason})"
    assert problem.cure == f"{cure}, or set HF_HUB_CACHE to another folder"


def test_old_terminals_are_told():
    assert doctor_here.terminal({"TERM": "xterm-256color"}, "utf-8") == ""
    assert doctor_here.terminal({}, "utf-8") == "TERM is not set"
    assert "vt100" in doctor_here.terminal({"TERM": "vt100"}, "utf-8")
    latin = doctor_here.terminal({"TERM": "xterm"}, "iso8859-1")
    assert "not UTF-8" in latin
    assert "LC_ALL=C.UTF-8" in only(found(here=replace(HERE, terminal=latin))).cure


def test_a_command_is_found_for_every_backend():
    for backend in ("cuda", "hip", "vulkan", "metal", "cpu"):
        assert build_command(backend, LLAMA, Path("/x")) == f"make setup GPU={backend}"
        assert ("CMAKE_ARGS" in build_command(backend, LLAMA, None)) == (backend != "cpu")


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor sees MACHINE, LLAMA, PACKAGES and HERE."""
    monkeypatch.setattr(doctor_machine, "examine", lambda: MACHINE)
    monkeypatch.setattr(doctor_llama, "examine", lambda: LLAMA)
    monkeypatch.setattr(doctor_packages, "examine", lambda: PACKAGES)
    monkeypatch.setattr(doctor_here, "examine", lambda: HERE)


@pytest.mark.usefixtures("examined")
def test_a_healthy_machine_is_0_and_a_troubled_one_1(command, monkeypatch):
    told = command(doctor.main)
    assert (told.code, told.err) == (0, "")
    assert "No problems found" in told.out
    assert "\x1b" not in told.out
    assert "specfit-chat -hf unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF:Q4_K_M -hfd" in told.out
    assert "Q4_K_M: 18.6 GB, all in host memory; speed unknown, at most 26 tokens/s" in told.out
    assert "in what is free: 60.0 GiB of host memory." in told.out
    assert "at 50 GB/s, as the cores read just now" in told.out
    assert "Measured elsewhere, without drafts: 243 tokens/s all on the GPU" in told.out
    monkeypatch.setattr(doctor_here, "examine", lambda: replace(HERE, bundled="cut"))
    told = command(doctor.main)
    assert told.code == 1
    assert "  problem: the bundled model is damaged: cut\n  cure: git checkout" in told.out


@pytest.mark.usefixtures("examined")
def test_json_has_everything(command, monkeypatch):
    monkeypatch.setattr(doctor_machine, "examine", lambda: replace(MACHINE, gpus=(RTX,)))
    told = command(doctor.main, "--json")
    content = json.loads(told.out)
    assert (told.code, content["healthy"]) == (1, False)
    assert content["machine"]["gpus"] == [
        {"name": RTX.name, "vendor": "nvidia", "vram": RTX.vram, "vram_free": RTX.vram_free}
    ]
    assert content["llama_cpp"]["rebuild"].endswith("make setup GPU=cuda")
    assert content["problems"][0]["cure"].endswith("make setup GPU=cuda")
    assert len(content["recommended"]) == len(RECOMMENDED)
    begin = next(o for o in content["recommended"] if o["model"] == content["begin_with"])
    assert begin["plan"]["n_cpu_moe"] == 48  # and a cache of experts
    assert sum(begin["plan"]["gpu_bytes"]) <= RTX.vram_free


@pytest.mark.usefixtures("examined")
def test_on_a_terminal_it_has_colours(command, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    told = command(doctor.main)
    assert told.code == 0
    assert "✔ No problems found" in told.out
