"""Sampling within a grammar (llama.cpp's GBNF), and what the model made of every token drawn."""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np

from specfit.planner import Spec

from .context import Context
from .engine import Engine
from .errors import SpecfitError
from .generation import Generation
from .grammars import check_grammar
from .model import Message, Model
from .sampling import Sampler, Sampling

# Seconds that a grammar may take to say what follows; it should be hundredths.
PATIENCE_S = 10.0


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
        self._rules: Any = None
        if grammar is None:
            return
        check_grammar(grammar)
        self._rules = llama.llama_sampler_init_grammar(model.vocab, grammar.encode(), b"root")
        if not self._rules:
            raise SpecfitError("llama.cpp does not take the grammar for this model's vocabulary")
        self._free_rules = weakref.finalize(self, llama.llama_sampler_free, self._rules)
        self._greedy = False  # the likeliest token may be forbidden

    def sample(self, context: Context, row: int) -> int:
        if self._rules is None:
            token = super().sample(context, row)
        else:
            token = self._allowed(context.logits(row))
        if self._top is not None:
            self.noted.append(_noted(context.logits(row), token, self._top))
        return token

    def _allowed(self, logits: np.ndarray) -> int:
        """As llama.cpp samples by a chain that begins with the grammar, but for where nothing may
        follow: there it ends the process.

        Raises SpecfitError then, and where the grammar takes too long.
        """
        candidates = np.zeros(len(logits), llama.llama_token_data)
        candidates["id"], candidates["logit"] = np.arange(len(logits)), logits
        address = candidates.ctypes.data_as(llama.llama_token_data_p)
        array = llama.llama_token_data_array(address, len(logits), -1, False)
        began = time.monotonic()
        llama.llama_sampler_apply(self._rules, ctypes.byref(array))
        if not (candidates["logit"] > -np.inf).any():
            raise SpecfitError("the grammar lets no token of this model's vocabulary follow")
        llama.llama_sampler_apply(self._chain, ctypes.byref(array))
        token = int(array.data[array.selected].id)
        for sampler in (self._rules, self._chain):
            llama.llama_sampler_accept(sampler, token)
        if (took := time.monotonic() - began) > PATIENCE_S:
            raise SpecfitError(f"the grammar took {took:.0f} s for a token; make it simpler")
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
