"""llama.cpp's own plain decoding, to hold the modes against: a bare loop, and llama-bench."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .entry import AppError
from .interrupts import Interrupts
from .report_programs import Placed, check_program, last_line

if TYPE_CHECKING:
    from specfit.backend import CycleReport, Report
    from specfit.backend.model import Model

BATCH = 512
BENCH, REPETITIONS = "llama-bench", 3


class PlainLoop:
    """llama_decode and the likeliest token, in a context of its own.

    Nothing of ours takes part, so that what the engine costs beyond llama.cpp shows. tokens: of the
    present answer; cycles: none of its are told one by one.
    """

    cycles: Sequence[CycleReport] = ()

    def __init__(self, model: Model, ctx: int, threads: int) -> None:
        """Raises AppError if there is no memory for the context."""
        import llama_cpp.llama_cpp as llama

        from specfit.backend import library

        self._llama, self._library = llama, library
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = ctx, BATCH, BATCH
        params.n_threads = params.n_threads_batch = threads
        model.runtime.set_context(params)
        self._context = llama.llama_init_from_model(model.handle, params)
        if self._context is None:
            raise AppError("there is no memory for a second context, in which llama.cpp is timed")
        self._memory = llama.llama_get_memory(self._context)
        self._vocab = llama.llama_model_get_vocab(model.handle)
        self._n_vocab = int(llama.llama_vocab_n_tokens(self._vocab))
        self._n_prompt = 0
        self.tokens: list[int] = []

    def close(self) -> None:
        self._llama.llama_free(self._context)

    def begin(self, prompt: Sequence[int]) -> None:
        """Begins another answer: processes `prompt`, takes its first token. The last token of the
        prompt is decoded again alone, as in the engine's lines, so that texts part less often."""
        self._llama.llama_memory_clear(self._memory, True)
        for start in range(0, len(prompt), BATCH):
            self._decode(prompt[start : start + BATCH])
        self._n_prompt = len(prompt)
        self._drop_from(len(prompt) - 1)
        self._decode(prompt[-1:])
        self.tokens = [self._likeliest()]

    @property
    def ended(self) -> bool:
        return bool(self._llama.llama_vocab_is_eog(self._vocab, self.tokens[-1]))

    def settle(self) -> None:
        """Decodes the last token, and drops it again."""
        self._decode(self.tokens[-1:])
        self._drop_from(self._n_prompt + len(self.tokens) - 1)

    def step(self) -> None:
        self._decode(self.tokens[-1:])
        self.tokens.append(self._likeliest())

    def _drop_from(self, position: int) -> None:
        self._llama.llama_memory_seq_rm(self._memory, 0, position, -1)

    def _decode(self, tokens: Sequence[int]) -> None:
        llama = self._llama
        array = (llama.llama_token * len(tokens))(*tokens)
        status = llama.llama_decode(self._context, llama.llama_batch_get_one(array, len(tokens)))
        if status != 0:
            raise AppError(f"llama_decode failed in the bare loop: status {status}")

    def _likeliest(self) -> int:
        logits = self._library.get_logits_ith(self._context, -1)
        return int(self._library.floats(logits, self._n_vocab).argmax())

    def report(self, seconds: float) -> Report:
        """seconds: of all tokens after the first."""
        return report_of_times(self._n_prompt, len(self.tokens), seconds, len(self.tokens) - 1)


def report_of_times(
    n_prompt: int, n_tokens: int, seconds: float, cycles: int, drafted: int = 0, accepted: int = 0
) -> Report:
    """Of an answer of which nothing else is known. seconds: of all tokens after the first."""
    from specfit.backend import CycleMeans, Report

    committed = (n_tokens - 1) / cycles if cycles else 1.0
    ms = seconds / cycles * 1e3 if cycles else 0.0
    means = CycleMeans(
        mean_acceptance_length=committed,
        rows_per_cycle=1.0 + (drafted / cycles if cycles else 0.0),
        verify_ms=0.0 if drafted else ms,
        measured_cycle_ms=ms,
        measured_committed=committed,
    )
    return Report(
        text="",
        finish_reason="",
        prompt_tokens=n_prompt,
        completion_tokens=n_tokens,
        ttft_ms=0.0,
        seconds=seconds,
        cycles=cycles,
        drafted=drafted,
        accepted=accepted,
        means=means,
    )


@dataclass(frozen=True)
class Benched:
    """What llama-bench printed. command: without the paths. took_s: loading included."""

    tokens_per_second: float
    error: float
    command: str
    took_s: float


def check_llama_bench(path: Path) -> None:
    """Raises AppError unless `path` is a llama-bench that starts here."""
    check_program(BENCH, path, "-p, --n-prompt")


def llama_bench(
    path: Path, placed: Placed, *, tokens: int, depth: int, interrupts: Interrupts
) -> Benched:
    """Plain decoding of `tokens` tokens behind `depth` others.

    Raises AppError if it fails, KeyboardInterrupt on Ctrl-C.
    """
    options = ["-p", "0", "-n", str(tokens), "-d", str(depth), *placed.options]
    options += ["-r", str(REPETITIONS)]
    begun = time.monotonic()
    process = subprocess.Popen(
        [path, "-m", placed.model, *options, "-o", "json"],
        env=placed.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is ours to pass on
    )
    interrupts.on_interrupt = process.terminate
    try:
        out, err = process.communicate()
    finally:
        interrupts.on_interrupt = None
        process.kill()
    interrupts.check()
    try:
        speeds = [float(speed) for speed in json.loads(out)[0]["samples_ts"]]
        mean, error = np.mean(speeds), np.std(speeds, ddof=1) / len(speeds) ** 0.5
    except (ValueError, LookupError, TypeError) as problem:
        why = last_line(err) or "it printed no result"
        raise AppError(f"{BENCH} failed: {why}") from problem
    command = placed.command(BENCH, options)
    return Benched(float(mean), float(error), command, time.monotonic() - begun)
