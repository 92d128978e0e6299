"""llama.cpp's own llama-server with the same head (`--spec-type draft-eagle3`), beside the modes.

It answers prompts that were played, in a process of its own: each length of its chains is a mode of
those rounds, `llama-server:N`, of which N = 0 drafts nothing.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError

from .entry import AppError
from .interrupts import Interrupts
from .report_plain import report_of_times
from .report_plan import Asked
from .report_programs import Placed, check_program, last_line
from .report_store import Timed

SERVER = "llama-server"
# --spec-draft-n-max.
CHAINS = range(5)
LOADING_S = 300.0
# What an answer may take: so many times what it took us, and no less than that.
PATIENCE, LEAST_ANSWER_S = 10.0, 120.0
# It is on this machine: a proxy that the user has is none of its business.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Server:
    """How it is started. head: as GGUF. ctx: tokens of a prompt and its answer."""

    path: Path
    placed: Placed
    head: Path
    ctx: int

    def options(self, chain: int) -> list[str]:
        """All but files and addresses. With batches of its own 2,048 tokens, which it computes in
        parts of 512, its head accepted nothing behind longer prompts on a GPU, though it did on a
        CPU (LOG.md): so they are as large as ours."""
        from specfit.backend.context import BATCH

        options = ["-c", str(self.ctx), *self.placed.options]
        if chain:
            options += ["--spec-type", "draft-eagle3", "--spec-draft-n-max", str(chain)]
            options += ["-ngld", "99" if self.placed.gpu_layers else "0", "-b", str(BATCH)]
        return [*options, "-np", "1"]

    def command(self, chain: int) -> str:
        """For the page; the head may have been converted."""
        head = ["-md", "HEAD.gguf"] if chain else []
        return self.placed.command(SERVER, [*head, *self.options(chain)])


def mode_of(chain: int) -> str:
    return f"{SERVER}:{chain}"


def check_llama_server(path: Path) -> None:
    """Raises AppError unless `path` is a llama-server that starts here and knows EAGLE-3."""
    check_program(SERVER, path, "draft-eagle3")


def answers(
    server: Server,
    chain: int,
    asked: Sequence[Asked],
    tokens: int,
    interrupts: Interrupts,
    *,
    usual_s: float,
) -> Iterator[Timed]:
    """An answer of `tokens` tokens to each prompt, at temperature 0.

    usual_s: what the longest of them took us. Raises AppError if the server fails,
    KeyboardInterrupt on Ctrl-C.
    """
    answer_s = max(PATIENCE * usual_s, LEAST_ANSWER_S)
    with _running(server, chain, interrupts) as address:
        for one in asked:
            begun = time.monotonic()
            body = {
                "messages": list(one.prompt.messages),
                "temperature": 0,
                "max_tokens": tokens,
                "cache_prompt": False,
            }
            times = _posted(f"{address}/v1/chat/completions", body, answer_s)["timings"]
            interrupts.check()
            n, accepted = times["predicted_n"], times.get("draft_n_accepted") or 0
            report = report_of_times(
                n_prompt=times["prompt_n"],
                n_tokens=n,
                seconds=times["predicted_ms"] / 1e3,
                cycles=max(0, n - 1 - accepted),
                drafted=times.get("draft_n") or 0,
                accepted=accepted,
            )
            yield Timed(mode_of(chain), report, (), time.monotonic() - begun)


@contextmanager
def _running(server: Server, chain: int, interrupts: Interrupts) -> Iterator[str]:
    """The address of a server that is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = ["-m", str(server.placed.model), *(["-md", str(server.head)] if chain else [])]
    options = [*files, *server.options(chain), "--no-webui", "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [server.path, *options, "--host", "127.0.0.1"],
            env=server.placed.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
        interrupts.on_interrupt = process.terminate
        address = f"http://127.0.0.1:{port}"
        try:
            _wait_for(process, address, interrupts)
            yield address
        except (OSError, ValueError, LookupError, TypeError) as error:
            interrupts.check()
            raise AppError(f"{SERVER} failed: {_why(log) or error}") from error
        finally:
            interrupts.on_interrupt = None
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], address: str, interrupts: Interrupts) -> None:
    deadline = time.monotonic() + LOADING_S
    while time.monotonic() < deadline:
        interrupts.check()
        if process.poll() is not None:
            raise OSError("it ended while it loaded the model")
        try:
            _DIRECT.open(f"{address}/health", timeout=5).close()
            return
        except (HTTPError, URLError, ConnectionError):  # it loads
            time.sleep(0.1)
    raise OSError(f"it was not ready after {LOADING_S:.0f} s")


def _posted(address: str, body: dict[str, Any], timeout_s: float) -> Any:
    request = urllib.request.Request(
        address, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with _DIRECT.open(request, timeout=timeout_s) as answer:
        return json.load(answer)


def _why(log: IO[bytes]) -> str:
    """The last of what the server said, or of its errors if it names some."""
    log.seek(0)
    said = log.read()
    errors = [line for line in said.splitlines() if re.search(rb"\bE\b|error", line)]
    return last_line(errors[-1] if errors else said)
