"""What `test_expert_cache.py` has its process do; all of it answers in plain values."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from expert_cache_rig import DEVICE, Case, Lines, Running, logits_of, running, standin, stock

from specfit.backend import library
from specfit.backend.errors import SpecfitError
from specfit.backend.expert_cache import ExpertCache

ROWS = (1, 2, 5, 8, 31, 1, 32, 48)
PROMPTS = (65, 128)
WITHIN = sum(n for n in ROWS if n <= 31)  # rows that the cache computes


def plain(case: Case, rows: tuple[int, ...] = ROWS, prompts: tuple[int, ...] = PROMPTS) -> Any:
    return stock(Case(case.model), rows, prompts)


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def facts(one: Running) -> dict[str, Any]:
    assert one.cache is not None
    counters = one.cache.counters()
    return {
        "slots": one.slots,
        "hits": int(counters.hits.sum()),
        "misses": int(counters.misses.sum()),
        "uses": counters.uses.tolist(),
        "unmatched": counters.unmatched,
        "graphs": counters.graphs_built,
        "uploads": counters.uploads,
        "upload_bytes": counters.upload_bytes,
        "resident": int(one.cache.residency.sum()),
        "trouble": one.cache.trouble(),
        "more_trouble": one.cache.trouble(),
        "repeats": standin().standin_repeats(),
    }


def decode(case: Case) -> dict[str, Any]:
    """All sizes of batches and prompts, against llama.cpp's own logits to the bit."""
    with running(case) as one:
        assert one.cache is not None
        one.cache.reset()
        equal = same(logits_of(one, ROWS, PROMPTS), plain(case))
        return {"equal": equal, **facts(one)}


def stress(case: Case, rounds: int) -> dict[str, Any]:
    """Small batches of changing size, which device and CPU share: how many are equal."""
    rows = (1, 4, 8) * rounds
    with running(case) as one:
        found = logits_of(one, rows, ())
    equal = [np.array_equal(a, b) for a, b in zip(found, plain(case, rows, ()), strict=True)]
    return {"equal": sum(equal), "of": len(rows)}


def prompts(case: Case) -> dict[str, Any]:
    with running(case) as one:
        assert one.cache is not None
        one.cache.reset()
        equal = same(logits_of(one, (), PROMPTS), plain(case, (), PROMPTS))
        return {"equal": equal, **facts(one)}


def steady(case: Case) -> dict[str, Any]:
    """The device graphs that are built for a size of batches, and again for the same."""
    built = []
    with running(case) as one:
        assert one.cache is not None
        for _ in range(3):
            one.cache.reset()
            for seed in range(4):
                one.rows(2, seed)
            built.append(one.cache.counters().graphs_built)
    return {"built": built}


def changing(case: Case, steps: int) -> dict[str, Any]:
    """Residency that changes with each decode, uploads running beside it."""
    random = np.random.default_rng(0)
    rows = tuple(int(n) for n in random.choice([1, 3, 8], steps))
    wanted, right, refused = plain(case, rows, ()), True, 0
    with running(case) as one:
        cache = one.cache
        assert cache is not None
        mirror = cache.residency
        coming: list[tuple[int, int]] = []
        for seed, n in enumerate(rows):
            for layer in range(one.info.n_layers):
                outgoing = int(random.choice(np.flatnonzero(mirror[layer])))
                absent = np.flatnonzero(~mirror[layer])
                incoming = int(random.choice(absent))
                right &= cache.swap(layer, incoming, outgoing)
                refused += not cache.swap(layer, incoming, outgoing)
                mirror[layer, outgoing] = False
                coming.append((layer, incoming))
            before = bool((cache.residency == mirror).all())
            right &= before and np.array_equal(one.rows(n, seed), wanted[seed])
            right &= cache.commit()
            for layer, incoming in coming:
                mirror[layer, incoming] = True
            coming.clear()
            right &= bool((cache.residency == mirror).all())
        return {"right": bool(right), "refused": refused, **facts(one)}


def losing(case: Case, lost: int) -> dict[str, Any]:
    """The next `lost` copies of an expert's part do not arrive."""
    with running(case) as one:
        cache = one.cache
        assert cache is not None
        standin().standin_lose_uploads(lost)
        begun = sum(cache.swap(layer, 0) for layer in range(one.info.n_layers))
        committed = cache.commit()
        standin().standin_lose_uploads(0)
        again = [cache.swap(layer, 0) for layer in range(one.info.n_layers)]
        equal = same(logits_of(one, ROWS, PROMPTS), plain(case))
        return {
            "equal": equal,
            "begun": begun,
            "committed": committed,
            "again": sum(again),
        } | facts(one)


def refused(device: str, ggml_version: str | None) -> str:
    """The sentence with which a cache refuses to be made."""
    standin()
    try:
        ExpertCache(device, 8, 128, 8, ggml_version=ggml_version)
    except SpecfitError as error:
        return str(error)
    return ""


def makes_its_own_streams(shared: bool) -> bool:
    """Whether a cache was opened and the device makes its streams as before."""
    gpu = standin()
    ExpertCache(DEVICE, 8, 128, 8, shared=shared)
    return bool(gpu.standin_own_streams())


def again(case: Case) -> dict[str, Any]:
    """The same model anew, with other slots, and another context of it."""
    equal = []
    for share in (0.5, 0.25, 1.0):
        with running(replace(case, share=share)) as one:
            equal.append(same(logits_of(one, ROWS, ()), plain(case, ROWS, ())))
            llama.llama_free(one.context)
            one.open()
            one.prefix()
            equal.append(same(logits_of(one, ROWS, ()), plain(case, ROWS, ())))
    return {"equal": equal}


def two(case: Case) -> dict[str, Any]:
    """A second model beside the one that has the cache: refused, or placed there all the same."""
    wanted = plain(case, ROWS, ())
    with running(case) as one:
        assert one.cache is not None
        said = refused(DEVICE, None)
        params = llama.llama_model_default_params()
        params.n_gpu_layers = case.gpu_layers
        other = Lines(case.model, params, one.cache.override())
        other.prefix()
        equal = same(logits_of(other, ROWS, ()), wanted)
        other.close()
        one.cache.reset()
        equal = same(logits_of(one, ROWS, ()), wanted) and equal
        return {"equal": equal, "said": said, **facts(one)}


def observed(case: Case, asked: str) -> dict[str, Any]:
    """An eval callback that has the scheduler stop behind nodes of that name."""
    name = library.symbol("ggml_get_name", restype=ctypes.c_char_p, argtypes=[ctypes.c_void_p])
    seen = 0

    def on_node(node: int, ask: bool, _told: object) -> bool:
        nonlocal seen
        if ask:
            return bool(name(node).startswith(asked.encode()))
        seen += 1
        return True

    callback = llama.ggml_backend_sched_eval_callback(on_node)
    with running(replace(case, callback=callback)) as one:
        equal = same(logits_of(one, ROWS, PROMPTS), plain(case))
        return {"equal": equal, "seen": seen, **facts(one)}


def trouble_of_full_slots(case: Case) -> dict[str, Any]:
    """What swaps answer that cannot be made."""
    with running(case) as one:
        cache = one.cache
        assert cache is not None
        here, absent = (int(np.flatnonzero(cache.residency[0] == yes)[0]) for yes in (True, False))
        return {
            "no free slot": cache.swap(0, absent),
            "there already": cache.swap(0, here),
            "outgoing is not there": cache.swap(0, absent, absent),
            "no such expert": cache.swap(0, 9999, here),
            "no such layer": cache.swap(9999, 0),
            "resident": bool(cache.residency[0, here]),
        }
