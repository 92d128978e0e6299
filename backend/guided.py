"""Sampling within a grammar (llama.cpp's GBNF), and what the model made of every token drawn."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import llama_cpp.llama_cpp as llama
import numpy as np
from llama_cpp.llama_grammar import json_schema_to_gbnf

from specfit.planner import Spec

from . import library
from .context import Context
from .engine import Engine
from .errors import SpecfitError
from .generation import Generation
from .model import Message, Model
from .sampling import Sampler, Sampling

# llama.cpp reads grammars by recursion: much deeper ones overflow its stack.
LONGEST, DEEPEST = 200_000, 2000


@dataclass(frozen=True)
class Noted:
    """A token drawn. logprob: the model's own, before any sampling. top: the likeliest tokens with
    theirs, the likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class GuidedSampler(Sampler):
    """grammar: GBNF whose rule is "root"; None: any text. top: how many of the likeliest tokens are
    noted beside each that is drawn; None notes nothing."""

    def __init__(
        self, sampling: Sampling, model: Model, grammar: str | None, top: int | None
    ) -> None:
        """Raises SpecfitError for a grammar that llama.cpp does not take."""
        super().__init__(sampling)
        self._top = top
        self.noted: list[Noted] = []
        if grammar is None:
            return
        check_grammar(grammar)
        rules = llama.llama_sampler_init_grammar(model.vocab, grammar.encode(), b"root")
        if not rules:
            raise SpecfitError("llama.cpp does not take the grammar for this model's vocabulary")
        # What it forbids must be gone before the others choose.
        others = [
            llama.llama_sampler_chain_remove(self._chain, 0)
            for _ in range(llama.llama_sampler_chain_n(self._chain))
        ]
        for sampler in (rules, *others):
            llama.llama_sampler_chain_add(self._chain, sampler)
        self._greedy = False  # the likeliest token may be forbidden

    def sample(self, context: Context, row: int) -> int:
        token = super().sample(context, row)
        if self._top is not None:
            self.noted.append(_noted(context.logits(row), token, self._top))
        return token


def _noted(logits: np.ndarray, token: int, top: int) -> Noted:
    likeliest = np.argpartition(-logits, min(top, len(logits) - 1))[:top]
    likeliest = likeliest[np.argsort(-logits[likeliest], kind="stable")]
    highest = float(logits.max())
    total = highest + float(np.log(np.exp(logits - highest, dtype=np.float64).sum()))
    best = tuple((int(one), float(logits[one]) - total) for one in likeliest)
    return Noted(token, float(logits[token]) - total, best)


def guided(
    engine: Engine,
    messages: Sequence[Message],
    *,
    sampling: Sampling,
    max_tokens: int | None,
    spec: Spec,
    stop: Sequence[str],
    grammar: str | None,
    top: int | None,
) -> tuple[Generation, GuidedSampler]:
    """`Engine.generate` with a sampler that keeps to `grammar` and notes what it draws: an entry
    for every token of the generation."""
    prompt = engine.prompt(messages)
    sampler = GuidedSampler(sampling, engine.model, grammar, top)
    policy = engine.policy(spec)
    policy.beliefs.acceptance.heat(sampling.temp)
    return Generation(engine, prompt, policy, sampler, max_tokens, stop), sampler


@functools.lru_cache(maxsize=64)
def check_grammar(grammar: str) -> None:
    """Raises SpecfitError if llama.cpp does not take it; no model is needed."""
    if "\0" in grammar or not grammar.strip():
        raise SpecfitError("the grammar is empty, or holds a NUL character")
    if len(grammar) > LONGEST or _depth(grammar) > DEEPEST:
        raise SpecfitError(
            f"the grammar is longer than {LONGEST} characters, or nested deeper than {DEEPEST}"
        )
    library.start()
    library.take_errors()
    with _stderr() as written:
        rules = llama.llama_sampler_init_grammar(None, grammar.encode(), b"root")
    if rules:
        llama.llama_sampler_free(rules)
        return
    first = (written().splitlines() or [library.take_errors()])[0]
    raise SpecfitError(f"not a GBNF grammar: {first.rpartition('error parsing grammar: ')[2]}")


def _depth(grammar: str) -> int:
    depth = deepest = 0
    for char in grammar:
        if char == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif char == ")":
            depth = max(0, depth - 1)
    return deepest


def grammar_of_schema(schema: object) -> str:
    """The GBNF of a JSON schema, by llama.cpp's rules. Raises SpecfitError for one that has none:
    remote references are not followed."""
    try:
        return str(json_schema_to_gbnf(json.dumps(schema)))
    except RecursionError:
        raise SpecfitError("the JSON schema is nested too deeply") from None
    except Exception as error:  # it is of many kinds, and no assertion of ours
        raise SpecfitError(f"the JSON schema cannot be followed: {error!r}") from error


@contextmanager
def _stderr() -> Iterator[Callable[[], str]]:
    """What C code writes to stderr in the block, which goes nowhere else."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        text = ""
        os.dup2(file.fileno(), 2)
        try:
            yield lambda: text
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            text = file.read().decode("utf-8", "replace").strip()
