"""The options of long contexts, as llama.cpp names them: positions that are stretched, and prompts
that are kept between runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .option_types import MAX_INT, Finite

if TYPE_CHECKING:
    from specfit.backend.rope import Rope

# No factor that makes sense comes near it, and float32 has room for it many times over.
_MOST = 1e6
_LEAST = 1e-6


@dataclass(frozen=True, kw_only=True)
class ContextChoice:
    """How positions are stretched; None leaves a value to the model. Raises click.UsageError for
    options that contradict each other."""

    rope_scaling: str | None = None
    rope_scale: float | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None

    def __post_init__(self) -> None:
        if self.rope_scale is not None and self.rope_freq_scale is not None:
            raise click.UsageError("--rope-freq-scale is 1 over --rope-scale; give one.")

    @property
    def rope(self) -> Rope:
        """The engine's own value, whose import takes a second."""
        from specfit.backend.rope import Rope

        given: dict[str, Any] = {
            "scaling": self.rope_scaling,
            "freq_base": self.rope_freq_base,
            "freq_scale": 1 / self.rope_scale if self.rope_scale else self.rope_freq_scale,
            "yarn_orig_ctx": self.yarn_orig_ctx,
            "yarn_ext_factor": self.yarn_ext_factor,
            "yarn_attn_factor": self.yarn_attn_factor,
            "yarn_beta_slow": self.yarn_beta_slow,
            "yarn_beta_fast": self.yarn_beta_fast,
        }
        return Rope(**{name: value for name, value in given.items() if value is not None})


ROPE_OPTIONS = [
    click.option("--rope-scaling", type=click.Choice(("none", "linear", "yarn")),
                 help="How positions are stretched over a longer context than the model was "
                 "trained for. Default: as the model says, else linear."),
    click.option("--rope-scale", type=Finite(_LEAST, _MOST), metavar="N",
                 help="Make the context N times as long."),
    click.option("--rope-freq-base", type=Finite(0, 1e12), metavar="N",
                 help="Base frequency of RoPE, for NTK-aware scaling. Default, as for all of "
                 "these: the model's."),
    click.option("--rope-freq-scale", type=Finite(_LEAST, _MOST), metavar="N",
                 help="The same as --rope-scale 1/N."),
    click.option("--yarn-orig-ctx", type=click.IntRange(0, MAX_INT), metavar="N",
                 help="YaRN: context that the model was trained for before it was stretched."),
    click.option("--yarn-ext-factor", type=Finite(-1, _MOST), metavar="N",
                 help="YaRN: how much to extrapolate; 0 only interpolates."),
    click.option("--yarn-attn-factor", type=Finite(-1, _MOST), metavar="N",
                 help="YaRN: factor of the attention's magnitude."),
    click.option("--yarn-beta-slow", type=Finite(-1, _MOST), metavar="N",
                 help="YaRN: turns below which a dimension is interpolated."),
    click.option("--yarn-beta-fast", type=Finite(-1, _MOST), metavar="N",
                 help="YaRN: turns above which a dimension is left as it is."),
]  # fmt: skip

PROMPT_CACHE_OPTIONS = [
    click.option("--prompt-cache", type=click.Path(path_type=Path), metavar="FILE",
                 help="Keep what was processed in FILE; the next time, what a prompt has in common "
                 "with it is not processed again."),
    click.option("--prompt-cache-ro", is_flag=True, help="Use that FILE, but leave it as it is."),
]  # fmt: skip
