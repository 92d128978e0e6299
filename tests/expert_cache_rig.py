"""A model behind the expert cache on a stand-in GPU, for tests; each runs in a process of its own,
since a device that ggml was told of stays in the list.

Its functions are what the process is asked to do; they answer in plain values.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np

from specfit.backend import library, native
from specfit.backend.expert_cache.cache import ExpertCache, experts_in
from specfit.models.gguf_info import read_gguf_info

FOLDER = Path(__file__).parent
PREFIX, VOCABULARY = 24, 300
DEVICE = "StandIn0"
STANDIN = native.Native(
    "standin-gpu",
    "there is no stand-in",
    "C++",
    (FOLDER / "standin_gpu.cpp",),
    (FOLDER.parent / "backend/expert_cache/ggml_backend_abi.h",),
    ("-std=c++17", "-pthread", f"-I{FOLDER.parent / 'backend/expert_cache'}"),
    links=True,
)


@functools.cache
def standin() -> ctypes.CDLL:
    library.start()
    loaded = native.loaded(STANDIN)
    for name in ("standin_delay", "standin_free_bytes", "standin_lose_uploads"):
        getattr(loaded, name).argtypes = [ctypes.c_long]
    for name in ("events", "lookup", "experts", "pinned", "immediate"):
        getattr(loaded, f"standin_{name}").argtypes = [ctypes.c_bool]
    loaded.standin_own_streams.restype = ctypes.c_bool
    loaded.standin_register()
    return loaded


@dataclass(frozen=True)
class Case:
    """share: of each layer's experts that are resident. slots: room beside those. gpu_layers: on
    the stand-in. mapped: weights stay in the file. lookup: the device can look slots up.
    shared: hits are computed on the scheduler's stream. lacks: "experts" or "pinned", which the
    stand-in does not offer while slots are given."""

    model: Path
    share: float = 0.0
    slots: int = 0
    gpu_layers: int = 99
    mapped: bool = True
    events: bool = True
    lookup: bool = True
    end_sync: bool = True
    shared: bool = True
    max_rows: int = 31
    delay_us: int = 0
    free_bytes: int = 1 << 40
    lacks: str = ""
    callback: Any = None


class Lines:
    """A model, and a context of 64 lines behind one prefix. vocabulary: tokens are below that."""

    def __init__(
        self,
        path: Path,
        params: Any,
        override: Any = None,
        *,
        threads: int = 1,
        callback: Any = None,
    ) -> None:
        self.info, self.vocabulary = read_gguf_info(path), VOCABULARY
        self._threads, self._callback = threads, callback
        if override is not None:
            params.tensor_buft_overrides = ctypes.addressof(override)
        self.model = llama.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, library.take_errors()
        self.n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.batch = llama.llama_batch_init(256, 0, 64)
        self.open()

    def open(self) -> None:
        """Makes the context."""
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 1024, 256, 256, 64
        params.kv_unified, params.no_perf = True, True
        params.n_threads = params.n_threads_batch = self._threads
        params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if self._callback is not None:
            params.cb_eval = self._callback
        self.context = llama.llama_init_from_model(self.model, params)
        assert self.context, library.take_errors()
        self.memory = llama.llama_get_memory(self.context)

    def prefix(self) -> None:
        tokens = np.random.default_rng(1).integers(10, self.vocabulary, PREFIX)
        self.decode(tokens.tolist(), list(range(PREFIX)), [0] * PREFIX)
        for line in range(1, 64):
            llama.llama_memory_seq_cp(self.memory, 0, line, -1, -1)

    def decode(self, tokens: list[int], positions: list[int], lines: list[int]) -> np.ndarray:
        """f32 [row, vocabulary], until the next decode."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, position, line) in enumerate(zip(tokens, positions, lines, strict=True)):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, line
        began = time.perf_counter()
        assert llama.llama_decode(self.context, batch) == 0
        llama.llama_synchronize(self.context)
        self.ms = 1e3 * (time.perf_counter() - began)
        logits = llama.llama_get_logits(self.context)
        return np.ctypeslib.as_array(logits, (len(tokens), self.n_vocab))

    def rows(self, n: int, seed: int) -> np.ndarray:
        """Logits of n lines' next tokens, which are forgotten again."""
        tokens = np.random.default_rng(seed).integers(10, self.vocabulary, n)
        logits = self.decode(tokens.tolist(), [PREFIX] * n, list(range(n))).copy()
        for line in range(n):
            llama.llama_memory_seq_rm(self.memory, line, PREFIX, -1)
        return logits

    def prompt(self, n: int) -> np.ndarray:
        """Logits of n more tokens of one line, which are forgotten again."""
        tokens = np.random.default_rng(n).integers(10, self.vocabulary, n)
        logits = self.decode(tokens.tolist(), [PREFIX + i for i in range(n)], [0] * n).copy()
        llama.llama_memory_seq_rm(self.memory, 0, PREFIX, -1)
        return logits

    def close(self) -> None:
        llama.llama_batch_free(self.batch)
        llama.llama_free(self.context)
        llama.llama_model_free(self.model)


class Running(Lines):
    """A case on the stand-in."""

    def __init__(self, case: Case, cached: bool) -> None:
        gpu = standin()
        gpu.standin_delay(0)
        gpu.standin_free_bytes(1 << 40)
        gpu.standin_events(case.events)
        gpu.standin_lookup(case.lookup)
        params = llama.llama_model_default_params()
        params.n_gpu_layers = case.gpu_layers
        params.use_extra_bufts = False
        params.load_mode = llama.LLAMA_LOAD_MODE_MMAP if case.mapped else llama.LLAMA_LOAD_MODE_NONE
        self.cache, override = None, experts_in(plain_buffers())
        if cached:
            info = read_gguf_info(case.model)
            self.cache = ExpertCache(
                DEVICE,
                info.n_layers,
                info.n_experts,
                info.n_experts_used,
                case.max_rows,
                events=case.events,
                end_sync=case.end_sync,
                shared=case.shared,
            )
            override = self.cache.override()
        super().__init__(case.model, params, override, callback=case.callback)
        if self.cache is not None:
            gpu.standin_free_bytes(case.free_bytes)
            lacking = getattr(gpu, f"standin_{case.lacks}") if case.lacks else lambda _offered: None
            lacking(False)
            self.slots = self.give(case)
            lacking(True)
            gpu.standin_free_bytes(1 << 40)  # or the scheduler could not grow either
        gpu.standin_delay(case.delay_us)
        self.prefix()

    def give(self, case: Case) -> list[int]:
        """Room for the case's experts, and the first of each layer in it."""
        assert self.cache is not None
        n = round(case.share * self.info.n_experts)
        room = int(self.cache.expert_bytes.sum()) * (n + case.slots + 1) if n + case.slots else 0
        slots = self.cache.allocate(room)
        for layer, expert in itertools.product(range(self.info.n_layers), range(n)):
            self.cache.swap(layer, expert * self.info.n_experts // n)
        self.cache.commit()
        return slots.tolist()

    def close(self) -> None:
        standin().standin_delay(0)
        super().close()


def plain_buffers() -> int:
    name = "ggml_backend_cpu_buffer_type"
    return library.symbol(name, restype=ctypes.c_void_p, argtypes=[])()


@contextmanager
def running(case: Case, cached: bool = True) -> Iterator[Running]:
    one = Running(case, cached)
    try:
        yield one
    finally:
        one.close()


@functools.cache
def stock(case: Case, rows: tuple[int, ...], prompts: tuple[int, ...]) -> list[np.ndarray]:
    """What llama.cpp makes of it by itself, with the experts on the CPU."""
    with running(case, cached=False) as one:
        return logits_of(one, rows, prompts)


def logits_of(one: Running, rows: tuple[int, ...], prompts: tuple[int, ...]) -> list[np.ndarray]:
    return [one.rows(n, seed) for seed, n in enumerate(rows)] + [one.prompt(n) for n in prompts]
