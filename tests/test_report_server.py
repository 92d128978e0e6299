"""specfit-report beside llama-server: how that is asked, and what becomes of its answers.

What stands in for it is a script that takes its options and speaks its protocol; the real one is
not part of the package that brings llama.cpp.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from reportcases import BUNDLED

from specfit.app.entry import AppError
from specfit.app.interrupts import Interrupts
from specfit.app.prompts import Prompt
from specfit.app.report_plan import Asked, Placement, parse_placement
from specfit.app.report_programs import Placed
from specfit.app.report_server import Server, answers, check_llama_server
from specfit.app.report_store import Timed

SCRIPT = """#!{python}
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

log = open({log!r}, "a")
print(json.dumps([os.environ.get("A"), *sys.argv[1:]]), file=log, flush=True)
if "--help" in sys.argv:
    sys.exit(print("--spec-type none,draft-eagle3"))
{start}

class Handler(BaseHTTPRequestHandler):
    loads = 2

    def say(self, code, body):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        Handler.loads -= 1
        self.say(503 if Handler.loads >= 0 else 200, {{}})

    def do_POST(self):
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        print(asked, file=log, flush=True)
        self.say(200, {answer})

    def log_message(self, *_):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
TIMES = {"prompt_n": 9, "predicted_n": 21, "predicted_ms": 500.0}
DRAFTED = {"draft_n": 24, "draft_n_accepted": 8}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def stand_in(log: Path, answer: object = None, start: str = "") -> Path:
    path = log.with_name("llama-server")
    said = {"timings": TIMES | DRAFTED} if answer is None else answer
    path.write_text(SCRIPT.format(python=sys.executable, log=str(log), answer=said, start=start))
    path.chmod(0o755)
    return path


def asked(
    path: Path, chain: int, gpu_layers: int = 99, usual_s: float = 0.1
) -> tuple[list[Timed], str]:
    placement = Placement("here", "", {"A": "1"}, BUNDLED, None)
    placed = Placed(Path("/some/m.gguf"), placement, 3, gpu_layers, n_cpu_moe=7)
    server = Server(path, placed, Path("/some/h.gguf"), ctx=512)
    messages = ({"role": "user", "content": "Hello"},)
    prompts = [Asked("chat", str(n), Prompt(n, "a", messages)) for n in (1, 2)]
    with Interrupts() as interrupts:
        found = answers(server, chain, prompts, 21, interrupts, usual_s=usual_s)
        return list(found), server.command(chain)


def test_it_is_asked_for_the_same_placement_and_head(log):
    path = stand_in(log)
    check_llama_server(path)
    found, command = asked(path, 3)
    _, started, *requests = map(json.loads, log.read_text().splitlines())
    port = started[started.index("--port") + 1]
    options = "-c 512 -t 3 -ngl 99 -ncmoe 7 --spec-type draft-eagle3 --spec-draft-n-max 3"
    options += " -ngld 99 -b 512"
    files = "-m /some/m.gguf -md /some/h.gguf"
    rest = f"-np 1 --no-webui --port {port} --host 127.0.0.1"
    assert started == f"1 {files} {options} {rest}".split()
    assert command == f"A=1 llama-server -m m.gguf -md HEAD.gguf {options} -np 1"
    assert [one["max_tokens"] for one in requests] == [21, 21]
    assert requests[0]["temperature"] == 0 and not requests[0]["cache_prompt"]
    report = found[0].report
    assert [one.mode for one in found] == ["llama-server:3"] * 2
    assert report.tokens_per_second == pytest.approx(40)
    assert (report.cycles, report.drafted, report.accepted) == (12, 24, 8)
    assert report.means.mean_acceptance_length == pytest.approx(20 / 12)


def test_what_a_placement_says_of_the_model_is_passed_on():
    said = "-ctk q8_0 -ctv q8_0 -fa on --no-mmap -sm row -mg 1 -ts 3,1 -c 600 --rope-scale 2"
    placement = parse_placement(f"here={said}", BUNDLED)
    options = Placed(Path("m.gguf"), placement, 3, 99, n_cpu_moe=0).options
    expected = "-t 3 -ngl 99 -ctk q8_0 -ctv q8_0 -fa on -lm none -sm row -mg 1 -ts 3/1"
    assert " ".join(options) == expected


def test_it_is_asked_directly_whatever_proxy_the_user_has(log, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr("specfit.app.report_server.LOADING_S", 10)
    monkeypatch.delenv("no_proxy", raising=False)
    assert len(asked(stand_in(log), 1)[0]) == 2


def test_it_is_waited_for_the_longer_the_longer_answers_take_us(log, monkeypatch):
    monkeypatch.setattr("specfit.app.report_server.LEAST_ANSWER_S", 0.1)
    path = stand_in(log, f"time.sleep(0.5) or {{'timings': {TIMES}}}")
    with pytest.raises(AppError, match="timed out"):
        asked(path, 0, usual_s=0.01)
    assert len(asked(path, 0, usual_s=1)[0]) == 2


def test_without_drafts_it_gets_no_head(log):
    found, _ = asked(stand_in(log, {"timings": TIMES}), 0, gpu_layers=0)
    started = json.loads(log.read_text().splitlines()[0])
    assert "-md" not in started and "--spec-type" not in started and "-ncmoe" not in started
    assert (found[0].report.cycles, found[0].report.accepted) == (20, 0)


@pytest.mark.parametrize(
    ("answer", "start", "reason"),
    [
        (None, "print('0.1 E out of memory', file=sys.stderr); sys.exit(1)", "E out of memory"),
        (None, "sys.exit(1)", "ended while it loaded"),
        ({"error": "no"}, "", "timings"),
        ({"timings": {"prompt_n": 1}}, "", "predicted_n"),
    ],
)
def test_one_that_fails_says_why(log, answer, start, reason):
    with pytest.raises(AppError, match=f"llama-server failed: .*{reason}"):
        asked(stand_in(log, answer, start), 1)


def test_what_is_no_llama_server_is_refused(log):
    path = log.with_name("other")
    path.write_text("#!/bin/sh\necho out of memory >&2; exit 1\n")
    path.chmod(0o755)
    with pytest.raises(AppError, match="no llama-server that runs here: out of memory"):
        check_llama_server(path)
    with pytest.raises(AppError, match="cannot be run"):
        check_llama_server(log.with_name("missing"))
