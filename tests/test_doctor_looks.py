"""How the doctor looks at this machine, also at what is broken."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doctorcases import (
    LLAMA,
    MACHINE,
    PACKAGES,
)

from specfit.app import doctor, doctor_here, doctor_llama, doctor_machine, doctor_packages
from specfit.app.doctor_llama import features_of
from specfit.app.doctor_machine import Cuda, Gpu, amd, cuda, graphics, nvidia
from specfit.app.doctor_packages import Packages
from specfit.backend import devices
from specfit.models import bundled_model


def test_the_system_tells_its_gpus(tmp_path):
    assert nvidia("NVIDIA GeForce RTX 4070, 12282, 11000\nA, B, 8192, [N/A]\nnone\n") == (
        Gpu("NVIDIA GeForce RTX 4070", "nvidia", 12282 << 20, 11000 << 20),
        Gpu("A, B", "nvidia", 8192 << 20),
    )
    assert nvidia("") == ()
    for name, vendor in (("card0", "0x1002"), ("card1", "0x1234"), ("card0-DP-1", "0x1002")):
        device = tmp_path / name / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "device").write_text("0x744c\n")
        (device / "mem_info_vram_total").write_text("17163091968\n")
        (device / "mem_info_vram_used").write_text("163091968\n")
    assert graphics(tmp_path) == (Gpu("AMD GPU (744c)", "amd", 17163091968, 17000000000),)
    assert graphics(tmp_path / "none") == ()


def test_rocms_tool_names_amds_cards():
    card = {
        "Card Series": "Radeon RX 7900 XTX",
        "VRAM Total Memory (B)": "25753026560",
        "VRAM Total Used Memory (B)": "53026560",
    }
    listing = json.dumps({"card0": card, "system": {"Driver version": "6.8"}})
    assert amd(listing) == (Gpu("AMD Radeon RX 7900 XTX", "amd", 25753026560, 25700000000),)
    assert amd(json.dumps({"card0": {}})) == (Gpu("AMD card0", "amd"),)
    for nothing in ("", "WARNING: no GPU", "[]", '{"card0": 1}'):
        assert amd(nothing) == ()


def test_versions_of_cuda_are_read_from_what_its_tools_print():
    summary = "| NVIDIA-SMI 470.57.02   Driver Version: 470.57.02   CUDA Version: 11.4 |"
    compiler = "Cuda compilation tools, release 13.0, V13.0.88"
    assert cuda(summary, compiler) == Cuda("11.4", "13.0")
    assert cuda("no", "") == Cuda()


def tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.skipif(sys.platform != "linux", reason="tools of Linux")
def test_the_tools_of_drivers_are_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    table = "echo 'Driver Version: 470.57.02   CUDA Version: 11.4'"
    tool(
        tmp_path,
        "nvidia-smi",
        f'case "$*" in *query*) echo "RTX 3060, 12288, 12000" ;; *) {table} ;; esac',
    )
    tool(tmp_path, "nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    tool(tmp_path, "rocm-smi", """echo warning >&2; echo '{"card0": {"Card Series": "RX"}}'""")
    machine = doctor_machine.examine()
    assert machine.gpus[:2] == (
        Gpu("RTX 3060", "nvidia", 12288 << 20, 12000 << 20),
        Gpu("AMD RX", "amd"),
    )
    assert machine.cuda == Cuda("11.4", "13.0")
    tool(tmp_path, "nvidia-smi", "echo 'Failed to initialize NVML: mismatch'; exit 18")
    assert doctor_machine.examine().cuda.trouble == "Failed to initialize NVML: mismatch"
    tool(tmp_path, "nvidia-smi", "echo 'No devices were found'; exit 6")
    assert doctor_machine.examine().cuda.trouble == ""


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_folder_that_takes_nothing_is_found(tmp_path, monkeypatch):
    def full(dir: Path):
        return open("/dev/full", "wb")  # noqa: PTH123

    monkeypatch.setattr(doctor_here.tempfile, "TemporaryFile", full)
    assert "No space left" in doctor_here.why_unwritable(tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("theem = 1", "line 1: theem: no setting of that name; did you mean theme?"),
        ("[chat", "not TOML"),
        ('[chat]\ntemp = "warm"', "line 2: temp: give a number"),
        ("[batch]\nno-such = 1", "line 2: no-such: no option of that name"),
        ("[scale-model]\nlayers = 1.5", "line 2: layers: give a whole number"),
        ('[keys]\nquit = "ctrl+"', "line 2"),
        ('[chat]\nmodel = "/no/such.gguf"', "line 2: model: /no/such.gguf is not there"),
        ("[chat]\ntemp = 0.5", ""),
    ],
)
def test_settings_of_every_command_are_looked_at(tmp_path, monkeypatch, text, complaint):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "specfit").mkdir()
    (tmp_path / "specfit" / "config.toml").write_text(text)
    told = doctor_here.wrong_settings()
    assert complaint in told
    assert (told == "") == (complaint == "")


def test_llama_cpp_is_examined_in_a_process_of_its_own():
    llama = doctor_llama.examine()
    assert llama.problem == ""
    assert llama.version == llama.wanted
    assert [device.kind for device in llama.devices].count("cpu") >= 1
    assert llama.features
    assert llama.used == tuple((gpu.name, gpu.free) for gpu in devices.gpus_used(bundled_model()))


def shim(folder: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    """Modules that processes find before those that are installed."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder))


CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
FAIL = "raise ImportError('made for\\n another Python')"


def test_a_llama_cpp_that_crashes_or_fails_does_not_take_the_doctor_with_it(tmp_path, monkeypatch):
    shim(tmp_path, monkeypatch, llama_cpp=CRASH)
    assert doctor_llama.examine().problem == "llama.cpp cannot be loaded: it crashes (SIGSEGV)"
    shim(tmp_path, monkeypatch, llama_cpp="raise OSError('libcudart.so.13: not found')")
    assert "libcudart.so.13: not found" in doctor_llama.examine().problem


def test_packages_that_crash_or_fail_do_not_take_the_doctor_with_them(tmp_path, monkeypatch):
    shim(tmp_path, monkeypatch, gguf=FAIL, safetensors=CRASH)
    assert doctor_packages.examine() == Packages(
        {"gguf": "ImportError: made for another Python", "safetensors": "it crashes (SIGSEGV)"}
    )


def test_without_numpy_the_doctor_says_at_least_that(tmp_path, monkeypatch):
    shim(tmp_path, monkeypatch, numpy=FAIL, gguf="raise OSError('libm.so')")
    command = [sys.executable, "-c", "from specfit.app.doctor import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "problem: the Python package numpy cannot be imported (ImportError:" in done.stdout
    assert "problem: the Python package gguf cannot be imported (OSError: libm.so)" in done.stdout
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["healthy"] is False


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
    assert here.bundled == ""
    monkeypatch.setattr(doctor_machine, "examine", lambda: MACHINE)
    monkeypatch.setattr(doctor_llama, "examine", lambda: LLAMA)
    monkeypatch.setattr(doctor_packages, "examine", lambda: PACKAGES)
    told = command(doctor.main)
    assert told.code == 1
    assert "the settings are not used" in told.out
