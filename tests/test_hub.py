"""-hf and -hfd against a hub of our own, through the real huggingface_hub."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import hubserver
import pytest
from hubserver import FakeHub, Repo

from specfit.app import bench, chat, hub_client
from specfit.app.entry import AppError
from specfit.app.hub_client import Hub
from specfit.app.hub_fetch import fetch_named
from specfit.models import bundled_head, bundled_model

MODEL = bytes(range(256)) * 12_000  # 3 MB
NAME = "m-Q4_K_M.gguf"
ETAG = hashlib.sha256(MODEL).hexdigest()


@pytest.fixture
def fake() -> Iterator[FakeHub]:
    with hubserver.running() as fake:
        fake.repos["owner/repo"] = Repo({NAME: MODEL, "README.md": b"hello"})
        yield fake


@pytest.fixture
def hub(fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    return Hub(fake.endpoint, tmp_path / "cache")


def fetch(hub: Hub, model: str | None = "owner/repo", head: str | None = None) -> Path:
    found_model, found_head = fetch_named(hub, model, head)
    found = found_model or found_head
    assert found is not None
    return found


def part_of(hub: Hub, etag: str = ETAG, repo: str = "owner--repo") -> Path:
    return hub.cache / f"models--{repo}" / "blobs" / f"{etag}.incomplete"


def use(fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process ask `fake`; the library reads its environment only once."""
    monkeypatch.setattr(hub_client, "Hub", partial(Hub, fake.endpoint, tmp_path / "cache"))


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_a_model_is_downloaded_once_into_the_cache_of_hugging_face(hub, fake, capfd):
    path = fetch(hub)
    assert path == hub.cache / "models--owner--repo" / "snapshots" / ("c" * 40) / NAME
    assert path.read_bytes() == MODEL
    assert path.resolve().name == ETAG
    assert (hub.cache / "models--owner--repo" / "refs" / "main").read_text() == "c" * 40
    assert "downloading m-Q4_K_M.gguf from owner/repo (3 MB)" in capfd.readouterr().err

    assert fetch(hub) == path
    assert len(fake.gets(NAME)) == 1
    assert capfd.readouterr().err == ""


def test_the_library_itself_finds_what_was_downloaded(hub):
    from huggingface_hub import try_to_load_from_cache

    path = fetch(hub)
    assert try_to_load_from_cache("owner/repo", NAME, cache_dir=hub.cache) == str(path)


def test_all_parts_of_a_split_model_come_beside_each_other(hub, fake):
    names = [f"Q8_0/m-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    fake.repos["owner/split"] = Repo({name: MODEL[: 2000 * n] for n, name in enumerate(names, 1)})
    first = fetch(hub, "owner/split:q8_0")
    assert first.name == "m-Q8_0-00001-of-00003.gguf"
    assert [path.name for path in sorted(first.parent.iterdir())] == [n[5:] for n in names]
    assert (first.parent / names[2][5:]).read_bytes() == MODEL[:6000]


def test_a_head_is_the_folder_of_its_files(hub, fake):
    fake.repos["owner/head"] = Repo({"config.json": b"{}", "model.safetensors": MODEL})
    folder = fetch(hub, None, "owner/head")
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert (folder / "config.json").read_bytes() == b"{}"


def test_a_download_goes_on_where_it_was_cut(hub, fake):
    part = part_of(hub)
    part.parent.mkdir(parents=True)
    part.write_bytes(MODEL[:1_000_000])
    assert fetch(hub).read_bytes() == MODEL
    assert [headers.get("Range") for headers in fake.gets(NAME)] == ["bytes=1000000-"]
    assert not part.exists()


def test_a_connection_that_breaks_is_taken_up_within_the_run(hub, fake):
    fake.repos["owner/repo"].cut = 1_500_000
    assert fetch(hub).read_bytes() == MODEL
    first, second = fake.gets(NAME)
    assert "Range" not in first
    assert int(second["Range"].removeprefix("bytes=").rstrip("-")) >= 1_000_000


def test_a_server_that_gives_the_whole_file_again_does_no_harm(hub, fake):
    part = part_of(hub)
    part.parent.mkdir(parents=True)
    part.write_bytes(MODEL[:1_000_000])
    fake.repos["owner/repo"].ignore_range = True
    assert fetch(hub).read_bytes() == MODEL


def test_a_partial_file_that_is_too_long_begins_anew(hub):
    part = part_of(hub)
    part.parent.mkdir(parents=True)
    part.write_bytes(MODEL + b"more")
    assert fetch(hub).read_bytes() == MODEL


def test_damaged_bytes_never_get_the_name_of_the_model(hub, fake):
    fake.repos["owner/repo"].corrupt = True
    with pytest.raises(AppError, match=r"is damaged .* was removed; run the same command again"):
        fetch(hub)
    assert list(part_of(hub).parent.iterdir()) == []
    fake.repos["owner/repo"].corrupt = False
    assert fetch(hub).read_bytes() == MODEL


def test_a_partial_file_of_other_bytes_is_noticed(hub):
    part = part_of(hub)
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(1000))
    with pytest.raises(AppError, match="damaged"):
        fetch(hub)
    assert fetch(hub).read_bytes() == MODEL


def test_a_small_file_is_checked_too(hub, fake):
    head = Repo({"config.json": b"{}", "model.safetensors": MODEL}, corrupt=True)
    fake.repos["owner/head"] = head
    with pytest.raises(AppError, match=r"what came of config\.json is damaged"):
        fetch(hub, None, "owner/head")


def test_a_cached_file_that_was_cut_short_is_fetched_again(hub):
    path = fetch(hub)
    path.resolve().write_bytes(MODEL[:100])
    assert fetch(hub).read_bytes() == MODEL


def test_a_new_commit_brings_only_what_changed(hub, fake):
    fetch(hub)
    fake.repos["owner/repo"].commit = "d" * 40
    path = fetch(hub)
    assert path.parent.name == "d" * 40
    assert path.read_bytes() == MODEL
    assert len(fake.gets(NAME)) == 1


def test_a_full_disk_is_refused_before_anything_is_downloaded(hub, fake, monkeypatch):
    usage = SimpleNamespace(total=10**12, used=10**12 - 10**6, free=10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(AppError, match=r"not enough room .* 3 MB are to be downloaded and 1 MB"):
        fetch(hub)
    assert fake.gets(NAME) == []


def test_a_disk_that_fills_up_keeps_what_came(hub, monkeypatch):
    class Full(hub_client._Sink):
        def write(self, chunk: bytes) -> int:
            if self.tell() > 1_000_000:
                raise OSError(28, "No space left on device")
            return super().write(chunk)

    monkeypatch.setattr(hub_client, "_Sink", Full)
    with pytest.raises(AppError, match=r"is full; what came of m-Q4_K_M\.gguf stays"):
        fetch(hub)
    assert part_of(hub).stat().st_size > 1_000_000


def test_what_is_not_there_or_not_ours_is_one_sentence_each(hub, fake, monkeypatch):
    with pytest.raises(AppError, match=r"has no repository owner/none \(if it is private"):
        fetch(hub, "owner/none")
    fake.repos["owner/repo"].gated = True
    with pytest.raises(AppError, match=r"gated: accept its terms at .*/owner/repo; log in with"):
        fetch(hub)
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    with pytest.raises(AppError, match="your account has no access to it yet"):
        fetch(hub)
    fake.broken = 418
    with pytest.raises(AppError, match="HTTP error 418"):
        fetch(hub)
    assert fake.gets(NAME) == []


def test_a_token_opens_a_private_repository_and_goes_nowhere_else(hub, fake, monkeypatch):
    fake.repos["owner/repo"].token = "hf_mine"
    with pytest.raises(AppError, match="set HF_TOKEN"):
        fetch(hub)
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    assert fetch(hub).read_bytes() == MODEL
    assert all("authorization" not in map(str.lower, headers) for headers in fake.gets(NAME))


def test_without_a_network_the_cache_is_used(hub, fake, monkeypatch, capfd, tmp_path):
    path = fetch(hub)
    capfd.readouterr()
    nowhere = Hub("http://127.0.0.1:9", hub.cache)
    assert fetch(nowhere) == path
    told = capfd.readouterr().err
    assert "127.0.0.1:9 cannot be reached" in told
    assert "using m-Q4_K_M.gguf from the cache" in told
    with pytest.raises(AppError, match=r"cannot be .* and owner/repo:Q8_0 is not in the cache"):
        fetch(nowhere, "owner/repo:Q8_0")

    asked = len(fake.asked)
    offline(monkeypatch)
    assert fetch(hub) == path
    assert capfd.readouterr().err == ""
    with pytest.raises(
        AppError, match="HF_HUB_OFFLINE is set; and owner/other is not in the cache"
    ):
        fetch(hub, "owner/other")
    assert len(fake.asked) == asked


def test_a_split_model_with_a_missing_part_is_not_used_from_the_cache(hub, fake, monkeypatch):
    names = [f"m-Q8_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    fake.repos["owner/split"] = Repo(dict.fromkeys(names, MODEL))
    first = fetch(hub, "owner/split")
    (first.parent / names[1]).unlink()
    offline(monkeypatch)
    with pytest.raises(AppError, match="not in the cache"):
        fetch(hub, "owner/split")


def test_another_quantisation_than_the_usual_one_is_told(hub, fake, capfd):
    fake.repos["owner/q8"] = Repo({"m-Q8_0.gguf": MODEL})
    assert fetch(hub, "owner/q8").name == "m-Q8_0.gguf"
    assert "owner/q8 has no Q4_K_M; taking Q8_0" in capfd.readouterr().err


def test_a_second_program_does_not_write_into_the_same_file(hub):
    import fcntl

    part = part_of(hub)
    part.parent.mkdir(parents=True)
    with part.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(AppError, match="another program is downloading m-Q4_K_M"):
            fetch(hub)
    assert fetch(hub).read_bytes() == MODEL


def chat_process(fake: FakeHub, tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {
        "HF_ENDPOINT": fake.endpoint,
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "home"),
    }
    return subprocess.Popen(
        [sys.executable, "-c", "from specfit.app.chat import main; main()", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def test_ctrl_c_leaves_a_partial_file_that_the_next_run_takes_up(fake, tmp_path):
    fake.repos["owner/repo"].piece = 100_000
    fake.repos["owner/repo"].piece_s = 0.05
    process = chat_process(fake, tmp_path, "-hf", "owner/repo", "-p", "hello")
    part = tmp_path / "cache" / "models--owner--repo" / "blobs" / f"{ETAG}.incomplete"
    until = time.monotonic() + 20
    while not (part.exists() and part.stat().st_size) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "what was downloaded stays; the same command goes on from there" in told
    assert "Traceback" not in told
    have = part.stat().st_size
    assert 0 < have < len(MODEL)

    fake.repos["owner/repo"].piece_s = 0.0
    hub = Hub(fake.endpoint, tmp_path / "cache")
    assert fetch(hub).read_bytes() == MODEL
    assert fake.gets(NAME)[-1]["Range"] == f"bytes={have}-"


def test_a_pair_from_the_hub_answers(fake, tmp_path, command, monkeypatch):
    use(fake, tmp_path, monkeypatch)
    head = {path.name: path.read_bytes() for path in bundled_head().iterdir()}
    fake.repos["our/tiny-GGUF"] = Repo({"tiny-Q4_0.gguf": bundled_model().read_bytes()})
    fake.repos["our/head"] = Repo(head)
    pair = ("-hf", "our/tiny-GGUF:q4_0", "-hfd", "our/head")
    told = command(chat.main, *pair, "--spec", "chain:2", "-t", "1", "-n", "4", "-p", "Hello")
    assert (told.code, bool(told.out.strip())) == (0, True), told.err
    assert "without drafts" not in told.err


def test_a_model_that_is_not_there_ends_a_command_with_2(fake, tmp_path):
    process = chat_process(fake, tmp_path, "-hf", "owner/none", "-p", "hello")
    out, told = process.communicate(timeout=20)
    assert (process.returncode, out) == (2, "")
    assert told.count("\n") == 1
    assert "has no repository owner/none" in told


def test_a_file_and_a_name_contradict_each_other(command):
    told = command(bench.main, "-m", "a.gguf", "-hf", "owner/repo", "--prompts", "x")
    assert told.code == 2
    assert "-m and -hf both name a model; give one." in told.err


def test_what_is_typed_goes_before_a_model_of_the_settings(fake, tmp_path, command, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "specfit").mkdir()
    (tmp_path / "specfit" / "config.toml").write_text(
        '[chat]\nmodel = "/not/there.gguf"\nhf-repo-draft = "owner/head"\n'
    )
    use(fake, tmp_path, monkeypatch)
    told = command(chat.main, "-hf", "owner/none", "-md", "/nor/here", "-p", "x")
    assert "has no repository owner/none" in told.err
