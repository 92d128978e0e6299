"""The numbers of a training run: one frozen value, so that a run is a recipe and a seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Shape:
    """Sizes of the target, a `qwen3moe`; the head has the width, heads and head_dim of it."""

    layers: int = 8
    width: int = 256
    heads: int = 8
    kv_heads: int = 1
    head_dim: int = 128
    experts: int = 128
    experts_used: int = 8
    expert_ff: int = 32
    vocab: int = 8192
    context: int = 2048
    rope_theta: float = 1e6
    norm_eps: float = 1e-6

    @property
    def taps(self) -> tuple[int, int, int]:
        """Layers whose inputs are the head's features."""
        return 2, self.layers // 2, self.layers - 3


@dataclass(frozen=True)
class Voice:
    """How a part of a conversation is sampled: at most `cap` tokens, with the recipe's min-p."""

    temperature: float
    cap: int


@dataclass(frozen=True)
class Recipe:
    """seconds: of the part of a stage that is worth its time, without starting and compiling."""

    shape: Shape = field(default_factory=Shape)
    min_p: float = 0.05

    # text, and what the target writes itself: conversations at a time, tokens of the longest.
    decode_rows: int = 8192
    decode_length: int = 512
    text_seconds: float = 260.0
    text_chunks: int = 4
    scripts: int = 131_072

    # corpus
    row_length: int = 1024
    arithmetic_share: float = 0.1
    held_out: int = 1500

    # target: rows of a batch, peak rates, and share of the time after which they fall to nothing.
    batch: int = 64
    target_seconds: float = 420.0
    muon_rate: float = 0.02
    adam_rate: float = 0.003
    warmup_steps: int = 100
    decay_from: float = 0.5
    balance: float = 0.003

    # polish: the model's own answers in its batches, and rates in parts of the target's.
    own_seconds: float = 16.0
    own_share: float = 0.5
    polish_seconds: float = 100.0
    polish_rate: float = 0.15

    # answers, head
    answers_seconds: float = 36.0
    answers_length: int = 512
    least_answers: int = 48
    head_seconds: float = 210.0
    head_ff: int = 1024
    head_vocab: int = 4096
    head_steps: int = 6
    head_rate: float = 1.5e-3
    head_kept: tuple[int, ...] = (50, 100, 150, 250, 400)

    def hurried(self, part: float) -> Recipe:
        """The same with every stage's time multiplied by `part`."""
        return replace(
            self,
            text_seconds=self.text_seconds * part,
            target_seconds=self.target_seconds * part,
            own_seconds=self.own_seconds * part,
            polish_seconds=self.polish_seconds * part,
            answers_seconds=self.answers_seconds * part,
            head_seconds=self.head_seconds * part,
        )


# Seconds on two CPU cores: every stage runs, nothing is learned.
TINY = Recipe(
    shape=Shape(layers=8, width=64, heads=2, head_dim=32, experts=16, vocab=512),
    decode_rows=8,
    decode_length=352,
    text_seconds=4.0,
    text_chunks=1,
    scripts=1000,
    row_length=160,
    held_out=4,
    batch=4,
    target_seconds=0.5,
    warmup_steps=2,
    own_seconds=0.5,
    polish_seconds=0.5,
    answers_seconds=0.5,
    answers_length=128,
    least_answers=12,
    head_seconds=0.5,
    head_ff=64,
    head_vocab=256,
    head_kept=(2,),
)
