"""Tokens a second with a cache of experts and with whole layers on the GPU, in the same memory.

    python tests/expert_cache_speed.py MODEL.gguf HEAD --gib 8 --prompts FILE.jsonl --seconds 200

Two engines in one process, `cache` (--expert-cache auto) and `layers` (--n-cpu-moe auto), answer
every prompt at the same time, in turns of a third of a second. Prints a line a prompt, and all
tokens over all seconds of every engine and mode, with the hit rate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from specfit.backend import Engine, LoadOptions, Sampling, Spec

TURN_S = 0.3


def parser_of_pair() -> argparse.ArgumentParser:
    """What a measurement of a pair with a cache is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("--gib", type=float, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--threads", type=int)
    parser.add_argument("-n", type=int, default=48)
    return parser


def main() -> None:
    parser = parser_of_pair()
    parser.add_argument("--cache-modes", default="off,chain:1,eagle3:31,specfit")
    parser.add_argument("--layers-modes", default="off,eagle3:31,specfit")
    parser.add_argument("--plain", action="store_true", help="no drafts in `layers`")
    options = parser.parse_args()
    began = time.monotonic()

    def load(cache: int | None, *, drafting: bool = True) -> Engine:
        loading = LoadOptions(
            model=options.model,
            head=options.head,
            ctx=2048,
            vram_budget=int(options.gib * 2**30),
            expert_cache=cache,
            threads=options.threads,
            drafting=drafting,
        )
        engine = Engine.load(loading)
        since = time.monotonic() - began
        print(f"{since:.0f} s: {engine.description} {engine.notices}", file=sys.stderr, flush=True)
        return engine

    engines = {"cache": load(None), "layers": load(0, drafting=not options.plain)}
    modes = {"cache": options.cache_modes.split(","), "layers": options.layers_modes.split(",")}
    pairs = [(name, mode) for name in engines for mode in modes[name]]
    seconds, tokens = defaultdict(list), defaultdict(list)
    hits = defaultdict(list)
    lines = options.prompts.read_text().splitlines()
    for number, line in enumerate(lines):
        record = json.loads(line)
        messages = record.get("messages") or [{"role": "user", "content": record["prompt"]}]
        # One engine has one line: modes of an engine take turns by answers, engines within them.
        order = pairs[number % len(pairs) :] + pairs[: number % len(pairs)]
        queues = {name: [mode for of, mode in order if of == name] for name in engines}
        longest = max(map(len, queues.values()))
        for queue in queues.values():  # the shorter ones repeat themselves, so that none is alone
            queue += [queue[i % len(queue)] for i in range(longest - len(queue))]
        for key in pairs:
            seconds[key].append(0.0)
            tokens[key].append(0)
        while any(queues.values()):
            running = {
                (name, queue[0]): _answer(engines[name], queue.pop(0), messages, options.n)
                for name, queue in queues.items()
                if queue
            }
            _in_turns(running)
            for key, (generation, spent) in running.items():
                report = generation.report
                seconds[key][-1] += sum(spent)
                tokens[key][-1] += report.completion_tokens - 1
                hits[key].append((report.means.hit_rate, report.means.uploaded, report.means))
        said = {
            f"{name} {mode}": round(tokens[name, mode][-1] / seconds[name, mode][-1], 1)
            for name, mode in pairs
        }
        print(number, json.dumps(said), file=sys.stderr, flush=True)
        per_prompt = (time.monotonic() - began) / (number + 1)
        if time.monotonic() - began + per_prompt / 2 > options.seconds:
            break
    base = np.array(seconds["layers", "off"]) / np.array(tokens["layers", "off"])
    for key in pairs:
        each = np.array(seconds[key]) / np.array(tokens[key])
        gains = base / each
        means = [one[2] for one in hits[key]]
        print(
            json.dumps(
                {
                    "engine": key[0],
                    "mode": key[1],
                    "gib": options.gib,
                    "answers": len(each),
                    "tokens_per_second": round(sum(tokens[key]) / sum(seconds[key]), 2),
                    "against_layers_off": round(sum(base) / sum(each), 3),
                    "error": round(float(gains.std(ddof=1) / len(gains) ** 0.5), 3)
                    if len(gains) > 1
                    else None,
                    "hit_rate": [round(one[0], 3) for one in hits[key] if one[0] is not None],
                    "uploaded_mb": round(float(np.mean([one[1] for one in hits[key]])) / 1e6, 1),
                    "length": round(float(np.mean([m.mean_acceptance_length for m in means])), 2),
                    "rows": round(float(np.mean([m.rows_per_cycle for m in means])), 2),
                    "cycle_ms": round(float(np.mean([m.measured_cycle_ms for m in means])), 2),
                    "predicted_ms": round(float(np.mean([m.predicted_cycle_ms for m in means])), 2),
                    "draft_ms": round(float(np.mean([m.draft_ms for m in means])), 2),
                    "plan_ms": round(float(np.mean([m.plan_ms for m in means])), 2),
                    "paid": round(float(np.mean([m.union_per_layer for m in means])), 2),
                }
            ),
            flush=True,
        )
    cost = engines["cache"]._ledger.cost
    print(
        json.dumps(
            {
                "rows_ms": cost.rows_ms[[1, 2, 4, 8, 16, 31, 32]].round(2).tolist(),
                "expert_us": (1e3 * cost.expert_ms[[1, 2, 4, 8, 16, 31]]).round(2).tolist(),
                "use_share": cost.use_share,
                "level_ms": cost.level_ms.round(2).tolist(),
            }
        )
    )
    for engine in engines.values():
        engine.close()


def _answer(engine: Engine, mode: str, messages, n: int):  # type: ignore[no-untyped-def]
    generation = engine.generate(
        messages, sampling=Sampling(temp=0), spec=Spec.parse(mode), max_tokens=n
    )
    return generation, []


def _in_turns(running) -> None:  # type: ignore[no-untyped-def]
    iterators = {key: iter(generation) for key, (generation, _) in running.items()}
    for iterator in iterators.values():
        next(iterator, None)  # the prompt, and the first token
    while iterators:
        for key in list(iterators):
            begun = time.perf_counter()
            while time.perf_counter() - begun < TURN_S:
                if next(iterators[key], None) is None:
                    del iterators[key]
                    break
            running[key][1].append(time.perf_counter() - begun)


if __name__ == "__main__":
    main()
