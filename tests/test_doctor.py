"""What the doctor says of machines: this one, and made-up ones of every kind."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from specfit.app import doctor, doctor_here, doctor_llama, doctor_machine
from specfit.app.doctor_advice import advise, best
from specfit.app.doctor_checks import (
    Problem,
    Surroundings,
    best_backend,
    build_command,
    problems,
)
from specfit.app.doctor_llama import Device, Llama, features_of, read_answer
from specfit.app.doctor_machine import Gpu, Machine, graphics, memory_limit, nvidia
from specfit.app.recommended import QWEN3_30B_A3B, RECOMMENDED
from specfit.models import bundled_model

GB = 10**9
MACHINE = Machine(
    processor="A processor",
    system="Linux x86_64",
    cores=8,
    ram=64 * GB,
    ram_free=60 * GB,
    bandwidth=50e9,
    instructions=("AVX", "AVX2", "FMA", "F16C"),
    gpus=(),
    tools=("cc", "c++", "make"),
    torch="2.13.0",
)
LLAMA = Llama("0.3.36", "0.3.36", features=("AVX", "AVX2", "FMA", "F16C", "REPACK"))
HERE = Surroundings(project=Path("/specfit"), disk=Path("/models"), disk_free=900 * GB)
RTX = Gpu("NVIDIA GeForce RTX 4070", "nvidia", 12 * GB)


def on_gpu(gigabytes: int, kind: str = "gpu") -> Llama:
    total = gigabytes * GB
    device = Device("CUDA0", "A card", kind, total, total)
    return replace(LLAMA, built_for=("cuda",), devices=(device,))


def found(machine: Machine = MACHINE, llama: Llama = LLAMA, here: Surroundings = HERE):
    return problems(machine, llama, here, best(advise(machine, llama)))


def chosen(machine: Machine, llama: Llama):
    one = best(advise(machine, llama))
    assert one is not None
    return one


def only(problems: tuple[Problem, ...]) -> Problem:
    assert len(problems) == 1, problems
    return problems[0]


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
        (Gpu("AMD", "amd", 16 * GB), ("hipcc",), "hip"),
        (Gpu("AMD", "amd", 16 * GB), ("glslc",), "vulkan"),
        (Gpu("Apple GPU", "apple"), (), "metal"),
        (Gpu("AMD of a processor", "amd", GB // 2), ("hipcc", "glslc"), "cpu"),
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
    slow = only(found(llama=replace(LLAMA, features=("AVX",))))
    assert "built without AVX2, FMA, F16C" in slow.what
    crash = read_answer("0.3.36", "0.3.36", -4, b"", b"")
    assert "crashes (signal 4)" in only(found(llama=crash)).what
    broken = read_answer("0.3.36", "0.3.36", 1, b"", b"Traceback\nOSError: libcuda.so.1: missing\n")
    assert "cannot be loaded: OSError: libcuda.so.1: missing" in only(found(llama=broken)).what


def test_what_is_missing_beside_it_is_named_with_its_cure():
    assert "build-essential" in only(found(replace(MACHINE, tools=()))).cure
    assert "PyTorch is not installed" in only(found(replace(MACHINE, torch=""))).what
    cpu_torch = replace(MACHINE, gpus=(RTX,), torch="2.13.0+cpu")
    assert "draft head runs on the CPU" in only(found(cpu_torch, on_gpu(12))).what
    here = replace(HERE, search="no such file", settings="line 3: no option", bundled="cut")
    assert [problem.what.split(" (")[0].split(":")[0] for problem in found(here=here)] == [
        "the planner's search cannot be loaded",
        "the bundled model is damaged",
        "the settings are not used",
    ]


def test_too_little_memory_or_disk_is_a_problem():
    assert "no recommended model fits 8 GB" in only(found(replace(MACHINE, ram=8 * GB))).what
    full = replace(HERE, disk_free=5 * GB)
    problem = only(found(here=full))
    assert "/models has 5.0 GB free" in problem.what
    assert "HF_HUB_CACHE" in problem.cure
    name = chosen(MACHINE, LLAMA).model.name
    assert found(here=replace(full, downloaded=frozenset({name}))) == ()


def test_models_go_where_they_fit():
    assert chosen(MACHINE, LLAMA).where == "cpu"
    assert chosen(MACHINE, LLAMA).model.quant == "Q4_K_M"
    twelve = chosen(MACHINE, on_gpu(12))
    assert (twelve.where, twelve.model.quant) == ("cpu-experts", "Q4_K_M")
    assert 0.4 < twelve.experts_on_gpu < 0.6
    whole = chosen(MACHINE, on_gpu(24))
    assert (whole.where, whole.model.quant) == ("gpu", "Q4_K_M")
    apple = replace(MACHINE, gpus=(Gpu("Apple GPU", "apple"),))
    assert chosen(apple, on_gpu(0, "igpu")).where == "gpu"
    assert best(advise(replace(MACHINE, ram=16 * GB), LLAMA)) is None


def test_more_memory_never_makes_a_model_unfit_or_slower():
    for one, more in zip(
        advise(replace(MACHINE, ram=32 * GB), on_gpu(8)), advise(MACHINE, on_gpu(16)), strict=True
    ):
        assert more.fits >= one.fits
        if one.speed and more.speed:
            assert more.speed[0] >= one.speed[0]


def test_the_estimate_holds_what_was_measured():
    """The shipped profile cpu-experts: 22.3 ms a token, on a machine that reads some 100 GB/s."""
    server = replace(MACHINE, bandwidth=100e9)
    four_bits = [a for a in advise(server, on_gpu(4)) if a.model.quant == "Q4_K_M"]
    assert four_bits[0].where == "cpu-experts"
    low, high = four_bits[0].speed or (0.0, 0.0)
    assert low < 1000 / 22.3 < high
    assert high < 3 * low


def test_the_table_is_of_models_that_can_be():
    shape = QWEN3_30B_A3B
    assert 3.0e9 < shape.active_experts + shape.active_dense < 3.4e9  # "A3B"
    for model in RECOMMENDED:
        assert 3 < 8 * model.size / shape.parameters < 9  # bits a weight
        assert model.heads
    sizes = [model.size for model in RECOMMENDED]
    assert sizes == sorted(sizes, reverse=True)


def test_the_system_tells_its_gpus_and_limits(tmp_path):
    assert nvidia("NVIDIA GeForce RTX 4070, 12282\nA, B, 8192\n") == (
        Gpu("NVIDIA GeForce RTX 4070", "nvidia", 12282 << 20),
        Gpu("A, B", "nvidia", 8192 << 20),
    )
    assert nvidia("") == ()
    for name, vendor in (("card0", "0x1002"), ("card1", "0x1234"), ("card0-DP-1", "0x1002")):
        device = tmp_path / name / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "device").write_text("0x744c\n")
        (device / "mem_info_vram_total").write_text("17163091968\n")
    assert graphics(tmp_path) == (Gpu("AMD GPU (744c)", "amd", 17163091968),)
    assert graphics(tmp_path / "none") == ()

    assert memory_limit(tmp_path) == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) == 0
    (tmp_path / "memory.max").write_text("8589934592\n")
    assert memory_limit(tmp_path) == 8 << 30


def test_llama_cpp_tells_what_it_was_built_with():
    assert features_of("CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 0 | REPACK = 1 | ") == (
        *("SSE3", "AVX2", "REPACK"),
    )
    assert features_of("CUDA : ARCHS = 890 | USE_GRAPHS = 1 | CPU : NEON = 1 | ") == (
        *("USE_GRAPHS", "NEON"),
    )


def test_a_damaged_bundled_file_is_noticed(tmp_path):
    assert doctor_here.damage(bundled_model().parent) == ""
    copy = tmp_path / "bundled"
    shutil.copytree(bundled_model().parent, copy)
    config = copy / "eagle3" / "config.json"
    config.write_text(config.read_text() + " ")
    assert doctor_here.damage(copy) == "eagle3/config.json is not what it was when it was shipped"
    config.unlink()
    assert "No such file" in doctor_here.damage(copy)


def test_every_bundled_file_has_its_checksum():
    folder = bundled_model().parent
    listed = {line.partition("  ")[2] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert listed == files - {"SHA256SUMS", "README.md"}


def test_folders_that_cannot_be_written_are_found(tmp_path):
    assert doctor_here.why_unwritable(tmp_path / "new" / "folder") == ""
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    assert "Not a directory" in doctor_here.why_unwritable(tmp_path / "file" / "folder")
    here = replace(HERE, unwritable=((Path("/a/b"), "Permission denied"),))
    problem = only(found(here=here))
    assert problem.what == "/a/b cannot be written (Permission denied)"
    assert "/a/b" in problem.cure


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


def test_llama_cpp_is_examined_in_a_process_of_its_own():
    llama = doctor_llama.examine()
    assert llama.problem == ""
    assert llama.version == llama.wanted
    assert [device.kind for device in llama.devices].count("cpu") >= 1
    assert llama.features


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor sees MACHINE, LLAMA and HERE."""
    monkeypatch.setattr(doctor_machine, "examine", lambda: MACHINE)
    monkeypatch.setattr(doctor_llama, "examine", lambda: LLAMA)
    monkeypatch.setattr(doctor_here, "examine", lambda: HERE)


@pytest.mark.usefixtures("examined")
def test_a_healthy_machine_is_0_and_a_troubled_one_1(command, monkeypatch):
    told = command(doctor.main)
    assert (told.code, told.err) == (0, "")
    assert "No problems found" in told.out
    assert "\x1b" not in told.out
    assert "specfit-chat -hf unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF:Q4_K_M -hfd" in told.out
    assert "not measurements" in told.out
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
    assert content["machine"]["gpus"] == [{"name": RTX.name, "vendor": "nvidia", "vram": RTX.vram}]
    assert content["llama_cpp"]["rebuild"].endswith("make setup GPU=cuda")
    assert content["problems"][0]["cure"].endswith("make setup GPU=cuda")
    assert len(content["recommended"]) == len(RECOMMENDED)
    assert content["begin_with"] in {one["model"] for one in content["recommended"]}


@pytest.mark.usefixtures("examined")
def test_on_a_terminal_it_has_colours(command, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    told = command(doctor.main)
    assert told.code == 0
    assert "✔ No problems found" in told.out


def test_this_machine_is_examined(command, tmp_path, monkeypatch):
    machine = doctor_machine.examine()
    assert machine.ram > 0
    assert machine.cores >= 1
    assert machine.bandwidth > 1e8
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "specfit").mkdir()
    (tmp_path / "specfit" / "config.toml").write_text("theem = 1\n")
    here = doctor_here.examine()
    assert here.project is not None
    assert "theem" in here.settings
    assert (here.bundled, here.search) == ("", "")
    monkeypatch.setattr(doctor_machine, "examine", lambda: MACHINE)
    monkeypatch.setattr(doctor_llama, "examine", lambda: LLAMA)
    told = command(doctor.main)
    assert told.code == 1
    assert "the settings are not used" in told.out
