"""Milliseconds of a llama_decode with and without the expert cache, as JSON.

    python tests/expert_cache_driver.py MODEL.gguf CUDA0 --gib 8 --rows 1,2,4,8 --threads 16

All that is compared takes turns. A batch of given rows is decoded again and again, so that its
routing is fixed, and for each hit rate just so many of the experts that it uses are made resident
(at 8 rows all hits take some 26 experts a layer: too few GiB lower the rate, which is printed).

    stock     llama.cpp, all experts on the CPU, in pinned memory if the GPU offers it
    layers    llama.cpp, experts of as many whole layers on the GPU as --gib holds (--n-cpu-moe)
    gpu       llama.cpp, all on the GPU (--all-gpu)
    empty     through the cache, with nothing in it
    hit R     through the cache, R of the pairs of rows and experts being hits
    prefill   a prompt of 128 tokens, stock and behind the cache

Without a GPU: StandIn0 for the device, which does everything at once in the caller's thread; its
times say what the cache itself takes, no more.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import psutil
from expert_cache_rig import DEVICE, Lines, experts_in, plain_buffers, standin

from specfit.backend import library
from specfit.backend.expert_cache import ExpertCache
from specfit.models.gguf_info import read_gguf_info

WARM, TIMED = 3, 3  # decodes before, which build and capture graphs, and those that count


def main() -> None:
    options = parse()
    library.start()
    if options.device == DEVICE:
        standin().standin_immediate(True)
    info = read_gguf_info(options.model)
    per_layer = sum(t.n_bytes for t in info.tensors if "_exps." in t.name) // info.n_layers
    on_gpu = min(info.n_layers, int(options.gib * 2**30) // per_layer)
    on_cpu = info.n_layers - on_gpu

    def load(override: Any, extra: bool = True) -> Lines:
        params = llama.llama_model_default_params()
        params.n_gpu_layers, params.use_extra_bufts = 999, extra
        params.load_mode = (
            llama.LLAMA_LOAD_MODE_NONE if options.read else llama.LLAMA_LOAD_MODE_MMAP
        )
        lines = Lines(options.model, params, override, threads=options.threads)
        lines.vocabulary = lines.n_vocab
        lines.prefix()
        return lines

    shape = info.n_layers, info.n_experts, info.n_experts_used
    cache = ExpertCache(options.device, *shape, shared=not options.own_stream)
    cached = load(cache.override(), extra=False)
    cached.rows(31, 0)  # so that llama.cpp's buffers are as large as they get
    began = time.perf_counter()
    slots = cache.allocate(int(options.gib * 2**30))
    others = {"stock": load(experts_in(plain_buffers()))}
    if on_gpu and not options.no_layers:
        others["layers"] = load(experts_in(plain_buffers(), range(on_cpu)))
    if options.all_gpu:
        others["gpu"] = load(None)
    result: dict[str, Any] = {
        "model": options.model.name,
        "device": options.device,
        "threads": options.threads,
        "slots": int(slots.max(initial=0)),
        "slots_mib": round(int((slots * cache.expert_bytes).sum()) / 2**20),
        "layers_on_cpu": on_cpu,
        "pinned": options.read,
        "own_stream": options.own_stream,
        "setup_s": round(time.perf_counter() - began, 1),
        "trouble": cache.trouble(),
        "rows": {n: measure(cached, cache, others, n, options) for n in options.rows},
        "prefill_128": prefill({"cache": cached, **others}, options.rounds),
    }
    json.dump(result, sys.stdout, indent=1)
    print()


def measure(
    cached: Lines, cache: ExpertCache, others: dict[str, Lines], n: int, options: Any
) -> dict[str, Any]:
    cache.reset()
    reference = others["stock"].rows(n, n)
    cached.rows(n, n)
    uses = cache.counters().uses
    times: dict[str, list[float]] = {}
    facts: dict[str, Any] = {}
    for _ in range(options.rounds):
        for name, lines in others.items():
            times.setdefault(name, []).extend(timed(lines, n))
        cache.allocate(int(options.gib * 2**30))
        for name, rate in [("empty", None), *((f"hit {r:g}", r) for r in options.rates)]:
            uploaded = None if rate is None else reside(cache, uses, rate)
            for _ in range(WARM):
                logits = cached.rows(n, n)
            cache.reset()
            times.setdefault(name, []).extend(timed(cached, n, warm=0))
            facts[name] = numbers(cache) | {"upload_ms_each": uploaded}
            facts[name]["off_stock"] = float(
                np.abs(logits - reference).max() / np.abs(reference).max()
            )
    return {
        name: {
            "ms": round(float(np.median(found)), 3),
            "least": round(min(found), 3),
            "of_stock": round(float(np.median(found) / np.median(times["stock"])), 3),
            **facts.get(name, {}),
        }
        for name, found in times.items()
    }


def timed(lines: Lines, n: int, warm: int = WARM) -> list[float]:
    found = []
    for i in range(warm + TIMED):
        lines.rows(n, n)
        if i >= warm:
            found.append(lines.ms)
    return found


def reside(cache: ExpertCache, uses: np.ndarray, rate: float) -> float | None:
    """Makes the experts resident that take `rate` of the uses, and no others that are used.

    Returns ms an upload took; None if there was none.
    """
    random, began, n = np.random.default_rng(7), time.perf_counter(), 0
    for layer, row in enumerate(uses):
        order = random.permutation(np.flatnonzero(row))
        wanted = set(
            order[: int(np.searchsorted(np.cumsum(row[order]), rate * row.sum() - 0.5) + 1)]
        )
        wanted = set() if rate == 0 else wanted
        here = set(np.flatnonzero(cache.residency[layer]))
        gone = sorted(here - wanted)
        unused = iter(np.flatnonzero(row == 0))
        for expert in sorted(wanted - here):
            n += cache.swap(layer, int(expert), int(gone.pop()) if gone else -1)
        for expert in gone:  # what is used but not wanted makes room for what is not used
            if row[expert]:
                n += any(cache.swap(layer, int(other), int(expert)) for other in unused)
    cache.commit()
    return round(1e3 * (time.perf_counter() - began) / n, 3) if n else None


def numbers(cache: ExpertCache) -> dict[str, Any]:
    found = cache.counters()
    blocks = max(1, found.blocks)
    return {
        "hit_rate": round(float(found.hits.sum() / max(1, found.uses.sum())), 3),
        "us_a_layer": {
            name: round(getattr(found, f"{name}_ns") / blocks / 1e3, 1)
            for name in ("block", "fetch", "cpu", "wait")
        },
        "graphs_built": found.graphs_built,
    }


def prefill(all_of_them: dict[str, Lines], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in all_of_them}
    for _ in range(rounds + 1):
        for name, lines in all_of_them.items():
            lines.prompt(128)
            times[name].append(lines.ms)
    return {name: round(float(np.median(found[1:])), 2) for name, found in times.items()}


def parse() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("device")
    parser.add_argument("--gib", type=float, default=8.0, help="GPU memory for experts")
    parser.add_argument("--rows", type=numbers_of(int), default=(1, 2, 4, 8))
    parser.add_argument("--rates", type=numbers_of(float), default=(0, 0.5, 0.77, 0.9, 1))
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--read", action="store_true", help="no mmap: weights in pinned memory")
    parser.add_argument("--own-stream", action="store_true", help="hits not on the scheduler's")
    parser.add_argument("--all-gpu", action="store_true", help="also all weights on the GPU")
    parser.add_argument("--no-layers", action="store_true", help="without the --n-cpu-moe baseline")
    return parser.parse_args()


def numbers_of(kind: type) -> Any:
    return lambda text: tuple(kind(part) for part in text.split(","))


if __name__ == "__main__":
    main()
