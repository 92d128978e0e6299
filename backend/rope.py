"""How far apart a model's positions are (RoPE), and how long a context may be by that.

A model knows the positions that it was trained on. llama.cpp can stretch them over a longer text:
linearly, by another base (NTK-aware), or by YaRN (Peng et al., arXiv 2309.00071).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from typing import Any

import llama_cpp.llama_cpp as llama

from specfit.models.gguf_info import GgufInfo
from specfit.models.stretch import Stretch

from .errors import SpecfitError

DEFAULT_CTX = 4096
SCALING = {
    "none": llama.LLAMA_ROPE_SCALING_TYPE_NONE,
    "linear": llama.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": llama.LLAMA_ROPE_SCALING_TYPE_YARN,
}


@dataclass(frozen=True)
class Rope:
    """Values as llama.cpp's options take them; those here leave everything to the model.

    scaling: a key of SCALING. freq_scale: 1/N makes a context N times as long.
    """

    scaling: str | None = None
    freq_base: float = 0.0
    freq_scale: float = 0.0
    yarn_orig_ctx: int = 0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_fast: float = -1.0
    yarn_beta_slow: float = -1.0

    def set_context(self, params: Any) -> None:
        """Writes into llama_context_params."""
        if self.scaling is not None:
            params.rope_scaling_type = SCALING[self.scaling]
        params.rope_freq_base = self.freq_base
        params.rope_freq_scale = self.freq_scale
        params.yarn_orig_ctx = self.yarn_orig_ctx
        params.yarn_ext_factor = self.yarn_ext_factor
        params.yarn_attn_factor = self.yarn_attn_factor
        params.yarn_beta_fast = self.yarn_beta_fast
        params.yarn_beta_slow = self.yarn_beta_slow

    def reach(self, info: GgufInfo) -> int | None:
        """Tokens over which these values stretch the model's positions; None if that cannot be
        told, as of another base."""
        trained = info.context_length
        if self.freq_base or not trained:
            return None
        if self.scaling == "none" or not self.freq_scale:
            return trained
        return round(self._trained(info) / self.freq_scale)

    def stretch(self, info: GgufInfo) -> Stretch | None:
        """What these values do to the model's positions; None if they leave them as they are."""
        if self == Rope():
            return None
        own_factor = _number(info, "scaling.factor", _number(info, "scale_linear", 1.0))
        own_base = _number(info, "freq_base", 10_000.0)
        kind = self.scaling or info.metadata.get(f"{info.architecture}.rope.scaling.type")
        factor = 1.0 if kind == "none" else 1 / self.freq_scale if self.freq_scale else own_factor
        mix = self.yarn_ext_factor if self.yarn_ext_factor >= 0 else float(kind == "yarn")
        magnitude = self.yarn_attn_factor if self.yarn_attn_factor >= 0 else 1.0
        if mix:  # llama.cpp sets it itself
            magnitude = 1 + 0.1 * log(factor) if factor > 1 else 1.0
        return Stretch(
            factor=factor,
            base=self.freq_base / own_base if self.freq_base else 1.0,
            extrapolated=mix,
            trained=self._trained(info),
            beta_fast=self.yarn_beta_fast if self.yarn_beta_fast >= 0 else 32.0,
            beta_slow=self.yarn_beta_slow if self.yarn_beta_slow >= 0 else 1.0,
            magnitude=magnitude,
        )

    def _trained(self, info: GgufInfo) -> int:
        """Positions that the model was trained on, before any stretch."""
        own = int(_number(info, "scaling.original_context_length", info.context_length))
        return self.yarn_orig_ctx or own


def _number(info: GgufInfo, key: str, otherwise: float) -> float:
    """Of what the file says of RoPE, a number above 0."""
    value = info.metadata.get(f"{info.architecture}.rope.{key}")
    return float(value) if isinstance(value, int | float) and value > 0 else otherwise


def context_size(info: GgufInfo, wanted: int | None, rope: Rope) -> int:
    """Tokens of the context. wanted: 0 is what the model was trained for; None is that, but at most
    DEFAULT_CTX.

    Raises SpecfitError for more than the model was trained for, unless something is said of RoPE.
    """
    trained = info.context_length
    if wanted is None:
        return min(DEFAULT_CTX, trained or DEFAULT_CTX)
    if wanted == 0:
        return trained or DEFAULT_CTX
    if trained and wanted > trained and rope == Rope():
        raise SpecfitError(
            f"-c {wanted}: {info.path.name} was made for {trained} tokens; ask for at most that, "
            f"or stretch it with --rope-scaling yarn --rope-scale {ceil(wanted / trained)}"
        )
    return wanted


def overreach(info: GgufInfo, ctx: int, rope: Rope) -> str | None:
    """What to tell somebody whose context is longer than the model's positions reach."""
    reach = rope.reach(info)
    if reach is None or ctx <= max(reach, info.context_length):
        return None
    scale = ceil(ctx / info.context_length)
    return (
        f"the context of {ctx} tokens is longer than the {reach} that this model has positions for "
        f"(--rope-scale {scale} would do); beyond them its answers lose their sense"
    )


def larger_context(tokens: int, ctx: int, trained: int) -> int | None:
    """A context for a prompt of so many tokens and an answer, where `ctx` is too small; None if the
    model was not made for it. trained: what it was made for, or 0."""
    larger = 1 << (4 * tokens // 3).bit_length()
    if trained:
        larger = min(larger, trained)
    return larger if larger > max(ctx, tokens) else None


def make_room(tokens: int, ctx: int, info: GgufInfo) -> str:
    """What can be done about a prompt of so many tokens, for which `ctx` is too small."""
    # A larger one than the model was trained for is one whose positions are stretched.
    trained = info.context_length if info.context_length >= ctx else 0
    larger = larger_context(tokens, ctx, trained)
    if larger is None:
        return f"shorten it: the model was made for {trained}"
    return f"shorten it, or make room with -c {larger}"
