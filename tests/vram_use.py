"""What a load takes of the GPU's memory, told as JSON by a process of its own: a process's memory
is only given back at its end.

    python tests/vram_use.py MODEL HEAD GIB [LINES|auto] [KV type] [load mode]
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from specfit.backend import Engine, LoadOptions, Sampling, Spec, library
from specfit.backend.devices import gpu_memory
from specfit.backend.loading import plan_load
from specfit.backend.plan import GIB
from specfit.backend.runtime import Runtime
from specfit.backend.together import together

MIB = 1 << 20
_BUFFER = re.compile(r"(\w+): +(\S+) +(model|output|KV|compute) buffer size = +([\d.]+) MiB")
PROMPT = "Tell me all that you know of rivers, forests and the sea, in short sentences. " * 30


def logged(lines: list[str], host: bool) -> int:
    """Bytes of buffers that llama.cpp says it allocated; where it did so twice, the later ones."""
    sizes: dict[tuple[str, str], float] = {}
    for line in lines:
        if found := _BUFFER.search(line):
            sizes[found[2], found[3]] = float(found[4])
    is_host = {key: key[0].startswith("CPU") or key[0].endswith("_Host") for key in sizes}
    return int(sum(size for key, size in sizes.items() if is_host[key] == host) * MIB)


def used() -> int:
    return sum(device.used for device in gpu_memory())


def answers(engine: Engine, spec: str) -> dict[str, float]:
    """What as many answers as the engine has lines take, of a long prompt each."""
    engine.forget()
    begun = time.perf_counter()
    # Different from their first word on, or what is alike would be processed once.
    asked = [[{"role": "user", "content": f"{i}. {PROMPT}"}] for i in range(len(engine.lines))]
    generations = [
        engine.generate(one, sampling=Sampling(temp=0), max_tokens=24, spec=Spec.parse(spec))
        for one in asked
    ]
    for _ in together(engine, generations, engine.policy(Spec.parse(spec))):
        pass
    seconds = time.perf_counter() - begun
    tokens = sum(len(one.tokens) for one in generations)
    cycles = {id(cycle): cycle for one in generations for cycle in one.cycles}.values()
    return {
        "tokens": tokens,
        "seconds": seconds,
        "prompt_tokens": len(generations[0].prompt_tokens),
        "first_token_ms": generations[0].report.ttft_ms,
        "cycle_ms": sum(cycle.measured_cycle_ms for cycle in cycles) / len(cycles),
        "most_rows": max(cycle.rows for cycle in cycles),
    }


def main() -> None:
    model, head, gib, *rest = sys.argv[1:]
    lines = rest[0] if rest else "1"
    kind = rest[1] if len(rest) > 1 else "f16"
    mode = rest[2] if len(rest) > 2 else "auto"
    options = LoadOptions(
        model=Path(model),
        head=Path(head),
        lines=None if lines == "auto" else int(lines),
        vram_budget=int(float(gib) * GIB),
        runtime=Runtime(cache_type_k=kind, cache_type_v=kind, load_mode=mode),
    )
    library.start()
    before, peak, going = used(), 0, True

    def watch() -> None:
        nonlocal peak
        while going:
            peak = max(peak, used())
            time.sleep(0.02)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    begun = time.perf_counter()
    plan = plan_load(options)
    planned = time.perf_counter() - begun
    with library.listening() as log, Engine.load(replace(options, plan=plan)) as engine:
        loaded = time.perf_counter() - begun
        modes = {spec: answers(engine, spec) for spec in ("eagle3:60", "off", "specfit")}
        n_lines = len(engine.lines)
    going = False
    watcher.join()
    parts = {part.name: (part.gpu, part.host) for part in plan.parts}
    print(
        json.dumps(
            {
                "budget": options.vram_budget,
                "n_cpu_moe": plan.placement.n_cpu_moe,
                "gpu_layers": plan.placement.gpu_layers,
                "lines": n_lines,
                "planned_lines": plan.lines,
                "predicted_gpu": plan.gpu,
                "predicted_host": plan.host,
                "parts": parts,
                "logged_gpu": logged(log, host=False),
                "logged_host": logged(log, host=True),
                "taken": peak - before,
                "plan_seconds": planned,
                "load_seconds": loaded,
                "modes": modes,
            }
        )
    )


if __name__ == "__main__":
    main()
