"""How much memory a container leaves to us."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from specfit.backend import hostmemory
from specfit.backend.hostmemory import HostMemory, host_memory, limits

GIB = 1 << 30


def group(folder: Path, limit: object, used: int = 0, file_pages: int = 0) -> None:
    """As version 2 has it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    half = file_pages // 2
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {half}\nactive_file {half}\n")


def member(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cgroup"
    path.write_text(text)
    return path


def test_every_group_around_the_process_counts_and_pages_of_files_do_not(tmp_path):
    root = tmp_path / "root"
    group(root, "max")
    group(root / "user", 8 * GIB, 5 * GIB, 4 * GIB)
    group(root / "user" / "app", 6 * GIB, 2 * GIB)
    found = list(limits(member(tmp_path, "0::/user/app\n"), root))
    assert found == [(6 * GIB, 2 * GIB), (8 * GIB, 1 * GIB)]


def test_a_container_sees_its_own_group_as_the_root(tmp_path):
    root = tmp_path / "root"
    group(root, 4 * GIB, GIB)
    for text in ("0::/\n", "0::/docker/0123/of-the-host\n"):
        assert list(limits(member(tmp_path, text), root)) == [(4 * GIB, GIB)]


def test_the_first_version_of_control_groups_is_read_too(tmp_path):
    folder = tmp_path / "root" / "memory"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{GIB}\n")
    (folder / "memory.stat").write_text(f"cache {GIB}\ntotal_inactive_file {GIB // 2}\n")
    joined = member(tmp_path, "9:cpu:/\n4:blkio,memory:/docker/0123\n0::/\n")
    assert list(limits(joined, tmp_path / "root")) == [(2 * GIB, GIB // 2)]
    (folder / "memory.limit_in_bytes").write_text(f"{(1 << 63) - 4096}\n")
    assert list(limits(joined, tmp_path / "root")) == []


def test_without_control_groups_there_are_no_limits(tmp_path):
    assert list(limits(tmp_path / "none", tmp_path)) == []
    assert list(limits(member(tmp_path, "0::/a\n"), tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("found", "memory"),
    [
        ([], HostMemory(10 * GIB, 16 * GIB)),
        ([(8 * GIB, 5 * GIB)], HostMemory(3 * GIB, 8 * GIB)),
        ([(64 * GIB, 0)], HostMemory(10 * GIB, 16 * GIB)),
        ([(2 * GIB, 3 * GIB)], HostMemory(0, 2 * GIB)),
    ],
)
def test_the_least_of_the_machine_and_its_groups_is_what_there_is(monkeypatch, found, memory):
    whole = psutil.virtual_memory()._replace(available=10 * GIB, total=16 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: whole)
    monkeypatch.setattr(hostmemory, "limits", lambda *_: iter(found))
    assert host_memory() == memory
