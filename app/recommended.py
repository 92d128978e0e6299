"""Which models SpecFit is made for, and what is known of them without having them.

Sizes: of the published quantisations of Qwen3-30B-A3B, in GB as their pages list them (Q4_K_M: also
of a file of the same shape made by specfit-scale-model, 18.56). Instruct-2507 has the same shape.
Heads: each fits the model that it was trained for and no other. Names only; nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """What all quantisations of a model share, in weights and bytes.

    parameters, expert_parameters: all, and of those the routed experts'. active_experts,
    active_dense: read for one token (the input embedding is one row). kv_bytes: float16 keys and
    values of one token. layers: with experts.
    """

    parameters: float
    expert_parameters: float
    active_experts: float
    active_dense: float
    kv_bytes: int
    layers: int


@dataclass(frozen=True)
class Recommended:
    """A file on the hub. repo, quant: as -hf takes them. size: bytes. heads: for -hfd, the first
    being the one to try first."""

    repo: str
    quant: str
    size: int
    shape: Shape
    heads: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.repo}:{self.quant}"

    @property
    def expert_bytes(self) -> int:
        """Nearly: dense tensors have some more bits a weight."""
        return int(self.size * self.shape.expert_parameters / self.shape.parameters)


# 48 layers, 128 experts (8 used) of 2048 × 768 × 3; 4 heads of 128 for keys and values; a
# vocabulary of 151,936 in and out (Qwen's config.json).
QWEN3_30B_A3B = Shape(
    parameters=30.53e9,
    expert_parameters=48 * 128 * 3 * 2048 * 768,
    active_experts=48 * 8 * 3 * 2048 * 768,
    active_dense=30.53e9 - 48 * 128 * 3 * 2048 * 768 - 151_936 * 2048,
    kv_bytes=48 * 2 * 4 * 128 * 2,
    layers=48,
)
# A head: three times 2048 into 2048, one layer, a vocabulary of 32,000, in 16 bits; and its cache.
HEAD_BYTES = 500_000_000

_INSTRUCT = "unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF"
_INSTRUCT_HEADS = (
    "lmsys/SGLang-EAGLE3-Qwen3-30B-A3B-Instruct-2507-SpecForge-Nex",
    "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.eagle3",
)
_BASE = "Qwen/Qwen3-30B-A3B-GGUF"
_BASE_HEADS = ("AngelSlim/Qwen3-a3B_eagle3", "Tengyunw/qwen3_30b_moe_eagle3")


def _both(quant: str, giga: float) -> tuple[Recommended, Recommended]:
    size = int(giga * 1e9)
    return (
        Recommended(_INSTRUCT, quant, size, QWEN3_30B_A3B, _INSTRUCT_HEADS),
        Recommended(_BASE, quant, size, QWEN3_30B_A3B, _BASE_HEADS),
    )


# From the best to the smallest. Below four bits quality falls off quickly.
RECOMMENDED: tuple[Recommended, ...] = (
    *_both("Q8_0", 32.48),
    *_both("Q6_K", 25.10),
    *_both("Q5_K_M", 21.74),
    *_both("Q4_K_M", 18.56),
    Recommended(_INSTRUCT, "IQ4_XS", int(16.6e9), QWEN3_30B_A3B, _INSTRUCT_HEADS),
)

# Tokens per second against plain decoding, by where the experts are: replays of the shipped
# profiles with a head about as good as the published ones (README, LOG.md). At most: on a server
# whose rows were dearer, no draft paid.
DRAFT_GAIN = {"gpu": 1.33, "half-layers": 1.0, "cpu-experts": 1.13, "cpu": 1.13}
