"""llama.cpp's own sampler chain, so that speculation samples exactly as it does."""

from __future__ import annotations

import ctypes
import secrets
import weakref
from dataclasses import dataclass

import llama_cpp.llama_cpp as llama
import numpy as np

from .context import Context


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; names and meanings are llama.cpp's.

    temp: 0 takes the likeliest token. top_k: 0 is off. top_p: 1 is off. min_p: 0 is off.
    seed: None draws one at random for every generation.
    """

    temp: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.05
    seed: int | None = None


# The model card of Qwen3 recommends these for thinking, its default mode.
QWEN3 = Sampling(temp=0.6, top_k=20, top_p=0.95, min_p=0.0)


class Sampler:
    """A sampler chain with its state: random numbers, and what was sampled."""

    def __init__(self, sampling: Sampling) -> None:
        chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        self._greedy = sampling.temp <= 0
        if self._greedy:
            llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_greedy())
        else:
            seed = secrets.randbits(32) if sampling.seed is None else sampling.seed & 0xFFFFFFFF
            if sampling.top_k > 0:
                llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_top_k(sampling.top_k))
            if sampling.top_p < 1:
                llama.llama_sampler_chain_add(
                    chain, llama.llama_sampler_init_top_p(sampling.top_p, 1)
                )
            if sampling.min_p > 0:
                llama.llama_sampler_chain_add(
                    chain, llama.llama_sampler_init_min_p(sampling.min_p, 1)
                )
            llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_temp(sampling.temp))
            llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_dist(seed))
        self._chain = chain
        self._finalizer = weakref.finalize(self, llama.llama_sampler_free, chain)

    def sample(self, context: Context, row: int) -> int:
        """Draws the token after `row` of the last decode, and remembers it.

        llama.cpp lays out 12 bytes a token of the vocabulary even to take the likeliest: of
        151,936 that is 0.2 ms, and numpy's argmax, which also takes the first of equals, 0.01.
        """
        if self._greedy:
            return int(context.logits(row).argmax())
        return int(llama.llama_sampler_sample(self._chain, context.handle, row))

    def probabilities(self, context: Context, row: int) -> dict[int, float]:
        """What the tokens after `row` of the last decode are drawn by, those filtered out left out.

        Uses up a random number, so ask another sampler than the one that draws the text. Raises
        ValueError at temperature 0, where nothing is drawn.
        """
        if self._greedy:
            raise ValueError("at temperature 0 no token is drawn")
        logits = context.logits(row)
        candidates = np.zeros(len(logits), llama.llama_token_data)
        candidates["id"], candidates["logit"] = np.arange(len(logits)), logits
        address = candidates.ctypes.data_as(llama.llama_token_data_p)
        array = llama.llama_token_data_array(address, len(logits), -1, False)
        llama.llama_sampler_apply(self._chain, ctypes.byref(array))
        left = candidates[: array.size]
        weights = np.exp(left["logit"] - left["logit"].max(), dtype=np.float64)
        return dict(zip(left["id"].tolist(), (weights / weights.sum()).tolist(), strict=True))
