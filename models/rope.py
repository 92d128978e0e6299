"""RoPE's frequencies from a checkpoint's config, in the ways transformers and vLLM write it.

`rope_scaling` (or `rope_parameters`, since transformers 5) with `rope_type` (older: `type`):
default and mrope (one frequency for all three of its positions, as text has them equal), linear,
dynamic, llama3 and yarn. Formulas: transformers' `modeling_rope_utils.py`; `dynamic` as vLLM reads
it, with one base for all lengths, as keys that are cached cannot be turned again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specfit.models.errors import ModelFileError
from specfit.models.fields import number, section

_PLAIN = ("default", "mrope", None)


@dataclass(frozen=True)
class Rope:
    """frequencies: radians per position, for half of the rotated part of a head, fastest first.

    magnitude: factor of rotated queries and keys (YaRN's attention factor).
    """

    frequencies: tuple[float, ...]
    magnitude: float = 1.0


def read_rope(path: Path, config: Mapping[str, Any], head_dim: int) -> Rope:
    """Raises ModelFileError for a kind of scaling that is not known, and senseless values."""
    values = _values(config)
    theta = number(path, values, "rope_theta", number(path, config, "rope_theta", 10000.0))
    part = number(
        path, values, "partial_rotary_factor", number(path, config, "partial_rotary_factor", 1.0)
    )
    size = int(head_dim * part)
    if not 2 <= size <= head_dim or size % 2 or theta < 1:
        raise _impossible(path)
    steps = np.arange(0, size, 2) / size
    plain = theta**-steps
    kind = values.get("rope_type", values.get("type"))
    if "mrope_section" in values or kind in _PLAIN:
        return _rope(path, plain)
    if kind not in ("linear", "dynamic", "llama3", "yarn"):
        raise ModelFileError(f"{path} asks for RoPE scaling {kind!r:.40}, which is not supported.")
    factor = number(path, values, "factor")
    if not 1e-3 < factor < 1e6:
        raise _impossible(path)
    trained = number(
        path,
        values,
        "original_max_position_embeddings",
        number(path, config, "max_position_embeddings", 2048),
    )
    if kind == "linear":
        return _rope(path, plain / factor)
    if kind == "dynamic":
        # At length trained * factor, the longest.
        base = theta * (factor * factor - factor + 1) ** (size / max(size - 2, 1))
        return _rope(path, base**-steps)
    if kind == "llama3":
        return _rope(path, _llama3(path, values, plain, factor, trained))
    return _yarn(path, values, plain, theta, factor, trained)


def _values(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the config says of RoPE, wherever; of several kinds of layers, that of the first."""
    values = section(config, "rope_parameters") or section(config, "rope_scaling")
    layers = config.get("layer_types")
    first = layers[0] if isinstance(layers, list) and layers else "full_attention"
    return section(values, str(first)) or values


def _llama3(
    path: Path, values: Mapping[str, Any], plain: NDArray[np.float64], factor: float, trained: float
) -> NDArray[np.float64]:
    """Slow rotations are slowed down by factor, fast ones kept, with a ramp between them."""
    low = number(path, values, "low_freq_factor", 1.0)
    high = number(path, values, "high_freq_factor", 4.0)
    turns = trained * plain / (2 * math.pi)
    kept = np.clip((turns - low) / max(high - low, 1e-6), 0, 1)
    return plain * (kept + (1 - kept) / factor)


def _yarn(
    path: Path,
    values: Mapping[str, Any],
    plain: NDArray[np.float64],
    theta: float,
    factor: float,
    trained: float,
) -> Rope:
    """YaRN (Peng et al., arXiv 2309.00071): the ramp lies between two numbers of turns."""
    size = 2 * len(plain)

    def place(turns: float) -> float:
        """The dimension that turns so often within the trained positions."""
        return size * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))

    if theta < 2:
        raise _impossible(path)
    low = place(number(path, values, "beta_fast", 32.0))
    high = place(number(path, values, "beta_slow", 1.0))
    if values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / ((high - low) or 0.001), 0, 1)
    frequencies = plain * (1 - ramp + ramp / factor)

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    magnitude = scale(1.0)
    if values.get("mscale") and values.get("mscale_all_dim"):
        magnitude = scale(number(path, values, "mscale")) / scale(
            number(path, values, "mscale_all_dim")
        )
    return _rope(path, frequencies, number(path, values, "attention_factor", magnitude))


def _rope(path: Path, frequencies: NDArray[np.float64], magnitude: float = 1.0) -> Rope:
    if not np.isfinite(frequencies).all() or not 0 < magnitude < 1e3:
        raise _impossible(path)
    return Rope(tuple(frequencies.tolist()), magnitude)


def _impossible(path: Path) -> ModelFileError:
    return ModelFileError(f"{path}: config.json asks for RoPE that heads cannot have.")
