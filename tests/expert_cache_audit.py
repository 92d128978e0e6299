"""Whether a cache of experts changes texts by more than llama.cpp's own placements do.

    python tests/expert_cache_audit.py MODEL.gguf HEAD --gib 8 --prompts FILE.jsonl --seconds 200

The GPU rounds otherwise than the CPU. Plain decoding with all experts on the CPU writes the texts;
these are then decoded token by token with all experts on the GPU and with the cache, and a line for
each says how far the logits of a token moved, how often another token would have been taken, and
how sure the model was where one was. A last line is of `specfit` with the cache against those
texts: how many are the same, and the first difference of the others, by its cause.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from expert_cache_speed import parser_of_pair
from recording import Logits, Run, flips, plain_rows, record

from specfit.backend import Engine, LoadOptions, Sampling

GREEDY = Sampling(temp=0)


def main() -> None:
    options = parser_of_pair().parse_args()
    began = time.monotonic()

    def load(cache: int, n_cpu_moe: int | None) -> Engine:
        loading = LoadOptions(
            model=options.model,
            head=options.head,
            ctx=2048,
            gpu_layers=-1,
            n_cpu_moe=n_cpu_moe,
            expert_cache=cache,
            threads=options.threads,
        )
        engine = Engine.load(loading)
        since = time.monotonic() - began
        print(f"{since:.0f} s: {engine.description} {engine.notices}", file=sys.stderr, flush=True)
        return engine

    cached = load(int(options.gib * 2**30), None)
    cpu = load(0, cached.model.info.n_layers)
    others = {"gpu": load(0, 0), "cache": cached}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in others}
    texts = []
    lines = options.prompts.read_text().splitlines()
    for number, line in enumerate(lines):
        prompt = json.loads(line)["prompt"]
        off = record(cpu, prompt, "off", GREEDY, options.n)
        drafted = record(cached, prompt, "specfit", GREEDY, options.n)
        texts.append(_parting(off, drafted))
        for name, engine in others.items():
            logits, experts = plain_rows(engine, off.prompt, off.tokens[:-1])
            flipped = flips(experts, off.experts[: len(experts)])
            rows[name] += _moved(off.logits[: len(logits)], logits, flipped)
        spent = time.monotonic() - began
        print(f"{spent:.0f} s: {number}: {texts[-1]}", file=sys.stderr, flush=True)
        if spent * (number + 2) / (number + 1) > options.seconds:
            break
    for name, each in rows.items():
        print(json.dumps({"engine": name, **_summary(each)}))
    print(json.dumps({"specfit with cache": texts}))
    for engine in (cpu, *others.values()):
        engine.close()


def _moved(off: Logits, other: Logits, flipped: np.ndarray) -> list[dict[str, float]]:
    best = off.argmax(axis=1)
    ordered = np.sort(off, axis=1)
    return [
        {
            "change": float(np.abs(other[row] - off[row]).max()),
            "differs": float(other[row].argmax() != best[row]),
            "margin": float(ordered[row, -1] - ordered[row, -2]),
            "flipped": float(flipped[row]),
        }
        for row in range(len(off))
    ]


def _summary(rows: list[dict[str, float]]) -> dict[str, object]:
    change, margin = (np.array([row[key] for row in rows]) for key in ("change", "margin"))
    differs = np.array([row["differs"] for row in rows], bool)
    return {
        "tokens": len(rows),
        "another_token": int(differs.sum()),
        "largest_margin_there": round(float(margin[differs].max(initial=0)), 3),
        "logits_moved_50_90_100": np.quantile(change, (0.5, 0.9, 1)).round(3).tolist(),
        "with_a_flipped_expert": round(float(np.mean([row["flipped"] for row in rows])), 3),
    }


def _parting(off: Run, run: Run) -> str:
    """Where the texts part, and why."""
    pairs = enumerate(zip(off.tokens, run.tokens, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), None)
    if first is None:
        return "same"
    if first == 0:
        return "the prompt's own logits"
    row = first - 1
    change = float(np.abs(run.logits[row] - off.logits[row]).max())
    second, best = np.sort(off.logits[row])[-2:]
    flipped = flips(run.experts[:first], off.experts[:first]).any()
    cause = "an expert flipped" if flipped else "rounding alone"
    return f"token {first}: {cause}, margin {best - second:.3f}, logits moved by {change:.3f}"


if __name__ == "__main__":
    main()
