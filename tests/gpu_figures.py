"""Takes the figures of LOG.md and docs/benchmarks.md that need a GPU, one after another.

    python tests/gpu_figures.py FOLDER STEP … --chat FILE --summaries FILE [--server PATH]

Steps: scale (writes FOLDER/full.gguf and its head), report, served (llama-server beside a report
that is there), lines, cache8, cache12, drafters, levels; STEP=S ends one after S seconds, as
--seconds ends all. Each keeps what its commands print in FOLDER/STEP*.txt, and shows the end of it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
THREADS, PORT, SHOWN = 16, 8123, 12
PLACEMENTS = {
    "cpu-experts-16": "-t 16 --cpu-moe -n 32",
    "gpu": "-t 16 --n-cpu-moe 0 -n 96",
    "half-layers": "-t 16 --n-cpu-moe 24 -n 40",
    "cpu-experts-8": "-t 8 --cpu-moe -n 24",
    "streamed": "GGML_OP_OFFLOAD_MIN_BATCH=1 -t 16 --cpu-moe -n 16",
}
BATCH = ("-t", THREADS, "--cpu-moe", "-n", 40, "--temp", 0, "-c", 1280, "--no-mmap")


@dataclass(frozen=True)
class Rig:
    """folder: of model and results. ends: when all has to be done, by `time.monotonic`."""

    folder: Path
    chat: Path
    summaries: Path
    server: Path | None
    ends: float

    @property
    def pair(self) -> list[Any]:
        return ["-m", self.folder / "full.gguf", "-md", self.folder / "full-head"]

    @property
    def left_s(self) -> float:
        return self.ends - time.monotonic()

    def of(self, name: str, *files: Path, each: int) -> Path:
        """A file of the first prompts of each of these, taking turns."""
        path = self.folder / f"{name}.jsonl"
        heads = [file.read_text().splitlines()[:each] for file in files]
        path.write_text("\n".join(chain.from_iterable(zip(*heads, strict=True))) + "\n")
        return path

    def run(self, name: str, command: Sequence[Any], most_s: float = 600.0) -> str:
        """What a command says, its errors included; it is ended when its time is over."""
        words, begun = [str(word) for word in command], time.monotonic()
        path, limit = self.folder / f"{name}.txt", min(most_s, self.left_s)
        with path.open("w") as out:
            process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT)
            try:
                code = process.wait(max(limit, 1.0))
            except subprocess.TimeoutExpired:
                process.terminate()
                code = process.wait()
        said = path.read_text()
        print(f"== {name}: {code}, {time.monotonic() - begun:.0f} s", flush=True)
        print("\n".join(line[:400] for line in said.splitlines()[-SHOWN:]), flush=True)
        return said


def scale(rig: Rig) -> None:
    shape = ("--shape", "qwen3-30b-a3b", "--type", "Q4_K_M")
    head = ("--head", HERE.parent / "models" / "weaker-eagle3", "--head-out")
    model = rig.folder / "full.gguf"
    rig.run("about", ["specfit-scale-model", "-o", model, *shape, *head, rig.folder / "full-head"])


def report(rig: Rig, *more: Any, placements: Sequence[str] = tuple(PLACEMENTS)) -> None:
    prompts = ("--prompts", f"chat={rig.chat}", "--prompts", f"summarise={rig.summaries}")
    placed = [("--placement", f"{name}={PLACEMENTS[name]}") for name in placements]
    minutes = (rig.left_s - 15) / 60
    words = [rig.folder / "report", *rig.pair, *prompts, *chain.from_iterable(placed), *more]
    out = ("--about", rig.folder / "about.txt", "-o", rig.folder / "benchmarks.md")
    rig.run("report", ["specfit-report", *words, "--minutes", f"{minutes:.2f}", *out])


def served(rig: Rig) -> None:
    placements = ("cpu-experts-16", "gpu")
    report(rig, "--modes", "off", "--llama-server", rig.server, placements=placements)


def lines(rig: Rig) -> None:
    asked = rig.of("lines", rig.chat, each=32)
    for name, more in (("auto", ()), ("one", ("-np", 1)), ("off", ("--spec", "off"))):
        out = rig.folder / f"answers-{name}.jsonl"
        rig.run(f"lines-{name}", ["specfit-batch", asked, *rig.pair, *BATCH, *more, "-o", out], 120)
    manifest = (rig.folder / "answers-auto.jsonl.manifest.json").read_text()
    n = int(re.findall(r"(\d+) lines, context", manifest)[-1])
    if rig.server is not None:
        print(f"== lines-server: {n} slots", flush=True)
        print(json.dumps(asked_at_once(rig, rig.server, asked, n)), flush=True)


def cache(rig: Rig, gib: int) -> None:
    asked = rig.of("mixed", rig.chat, rig.summaries, each=12)
    words = [HERE / "expert_cache_speed.py", rig.pair[1], rig.pair[3], "--gib", gib, "--plain"]
    words += ["--prompts", asked, "--threads", THREADS, "-n", 48, "--seconds", 90]
    rig.run(f"cache{gib}", [sys.executable, *words], 130)


def drafters(rig: Rig) -> None:
    asked = rig.of("few", rig.summaries, each=12)
    for name in ("eagle3,ngram", "eagle3", "ngram"):
        for place, options in (("gpu", "--n-cpu-moe 0 -n 64"), ("cpu", "--cpu-moe -n 32")):
            words = ["--prompts", asked, *rig.pair, *options.split(), "-t", THREADS, "--temp", 0]
            words += ["--modes", "off,specfit", "--drafter", name]
            rig.run(f"drafters-{name}-{place}", ["specfit-bench", *words], 70)


def levels(rig: Rig) -> None:
    rig.run("levels", [sys.executable, HERE / "head_levels.py", rig.pair[1], rig.pair[3], "cuda"])


def asked_at_once(rig: Rig, server: Path, asked: Path, slots: int) -> dict[str, float]:
    """What llama-server makes of all lines, asked for at once, with so many slots."""
    words = [server, *rig.pair[:2], "-ngl", 99, "--cpu-moe", "-t", THREADS, "-np", slots]
    words += ["-c", slots * 1280, "-lm", "none", "--no-webui", "--port", PORT]
    address = f"http://127.0.0.1:{PORT}"
    times: list[dict[str, float]] = []

    def ask(line: str) -> None:
        messages = [{"role": "user", "content": json.loads(line)["prompt"]}]
        body = {"messages": messages, "temperature": 0, "max_tokens": 40, "cache_prompt": False}
        headers = {"Content-Type": "application/json"}
        question = json.dumps(body).encode()
        request = urllib.request.Request(f"{address}/v1/chat/completions", question, headers)
        times.append(json.load(urllib.request.urlopen(request, timeout=300))["timings"])

    with (rig.folder / "lines-server.txt").open("w") as log:
        process = subprocess.Popen([str(word) for word in words], stdout=log, stderr=log)
        try:
            while True:
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=2).close()
                    break
                except OSError:
                    if process.poll() is not None or rig.left_s < 0:
                        raise
                    time.sleep(0.1)
            begun = time.monotonic()
            threads = [threading.Thread(target=ask, args=(line,)) for line in asked.open()]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.monotonic() - begun
        finally:
            process.kill()
    tokens = sum(one["predicted_n"] for one in times)
    return {"lines": len(times), "tokens": tokens, "tokens/s": round(tokens / seconds, 1)}


STEPS: dict[str, Callable[[Rig], None]] = {
    "scale": scale,
    "report": report,
    "served": served,
    "lines": lines,
    "cache8": lambda rig: cache(rig, 8),
    "cache12": lambda rig: cache(rig, 12),
    "drafters": drafters,
    "levels": levels,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", nargs="+", metavar="STEP[=SECONDS]")
    parser.add_argument("--chat", type=Path, required=True)
    parser.add_argument("--summaries", type=Path, required=True)
    parser.add_argument("--server", type=Path)
    parser.add_argument("--seconds", type=float, default=3600.0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + given.seconds
    rig = Rig(given.folder, given.chat, given.summaries, given.server, ends)
    for step, _, seconds in (step.partition("=") for step in given.steps):
        own = time.monotonic() + float(seconds or given.seconds)
        STEPS[step](replace(rig, ends=min(ends, own)))


if __name__ == "__main__":
    main()
