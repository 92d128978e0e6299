"""The EAGLE-3 head as it is trained: fed its own states, as when it drafts (training-time test).

The pair at position t is (feature of token t, embedding of token t + 1); the first step predicts
token t + 2. Each further step takes the state that the one before left at t, with the embedding of
the next true token, and predicts one token further (Li et al., EAGLE-3, arXiv 2503.01840). A query
of a later step at t sees the keys of the first step up to t, and those that its chain left at t.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from specfit.models.training.fit import Clock, Report, endless
from specfit.models.training.recipe import Recipe, Shape
from specfit.models.training.rows import Rows
from specfit.models.training.target import Target, rope_tables, rotated, shared_by

_WARM_STEPS = 3
_WARMUP = 50
_DISCOUNT = 0.85
# What a token of a prompt counts, where one of an answer counts 1.
_PROMPT_WEIGHT = 0.1
_PROMPT_COUNT = 0.05
_SPECIALS = 5
_HELD_OUT_BATCHES = 2

Tensors = list[torch.Tensor]


class Head(nn.Module):
    """The head's layer over whole rows.

    target_ids: int64 [draft vocabulary], ascending: the target's ids of the draft tokens.
    """

    target_ids: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, shape: Shape, ff: int, target_ids: torch.Tensor, seed: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.eps = shape.norm_eps
        width, query = shape.width, shape.heads * shape.head_dim
        key = shape.kv_heads * shape.head_dim

        def normal(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
            weights = torch.randn(rows, columns, generator=random)
            return nn.Parameter(weights * scale * columns**-0.5)

        self.fc = normal(width, len(shape.taps) * width)
        self.norm_embedded = nn.Parameter(torch.ones(width))
        self.norm_hidden = nn.Parameter(torch.ones(width))
        self.q, self.k, self.v = (normal(n, 2 * width) for n in (query, key, key))
        self.o = normal(width, query, 0.3)
        self.norm_post = nn.Parameter(torch.ones(width))
        self.gate, self.up = normal(ff, width), normal(ff, width)
        self.down = normal(width, ff, 0.3)
        self.norm_out = nn.Parameter(torch.ones(width))
        self.lm_head = normal(len(target_ids), width, 0.3)
        cos, sin = rope_tables(shape)
        for name, buffer in (("cos", cos), ("sin", sin), ("target_ids", target_ids.cpu())):
            self.register_buffer(name, buffer, persistent=False)
        self._projected, self._attended, self._fed = self._project, self._attend, self._feed

    def compile_parts(self) -> None:
        """Compiles what is the same in every step."""
        self._projected = torch.compile(self._project, dynamic=False)
        self._attended = torch.compile(self._attend, dynamic=False)
        self._fed = torch.compile(self._feed, dynamic=False)

    def step(
        self, embedded: torch.Tensor, hidden: torch.Tensor, keys: Tensors, values: Tensors
    ) -> torch.Tensor:
        """One step over rows: the next hidden states [B, T, width].

        embedded, hidden: [B, T, width]; `fc` of the features is the first step's hidden. keys,
        values: of the steps before, to which this step's are appended.
        """
        n, time_ = len(keys), hidden.shape[1]
        q, k, v = self._projected(
            embedded, hidden, self.cos[n : n + time_], self.sin[n : n + time_]
        )
        keys.append(k)
        values.append(v)
        mixed, lse = self._attended(q, keys[0], values[0])
        if n:
            scale = self.head_dim**-0.5
            own = [
                (q * shared_by(k, self.heads)).sum(-1, keepdim=True, dtype=torch.float32) * scale
                for k in keys[1:]
            ]
            shares = torch.softmax(torch.cat([lse, *own], -1), -1).to(hidden.dtype)
            mixed = mixed * shares[..., :1]
            for i, v in enumerate(values[1:], 1):
                share = shares[..., i : i + 1].expand(-1, -1, -1, self.head_dim)
                mixed = torch.addcmul(mixed, share, shared_by(v, self.heads))
        return self._fed(hidden, mixed.transpose(1, 2).flatten(2))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[B, T, draft vocabulary]"""
        return self._norm(hidden, self.norm_out).to(hidden.dtype) @ self.lm_head.to(hidden.dtype).T

    def _project(
        self, embedded: torch.Tensor, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys, values [B, (kv) heads, T, head_dim]; cos and sin are [T, head_dim / 2]."""
        batch, time_, _ = hidden.shape
        dtype = hidden.dtype
        normed = self._norm(embedded, self.norm_embedded), self._norm(hidden, self.norm_hidden)
        x = torch.cat(normed, -1).to(dtype)
        q, k, v = (
            (x @ w.to(dtype).T).view(batch, time_, -1, self.head_dim).transpose(1, 2)
            for w in (self.q, self.k, self.v)
        )
        return rotated(q, cos, sin), rotated(k, cos, sin), v

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Causal attention, with the log of each query's sum of exponentials [B, heads, T, 1]."""
        k, v = shared_by(k, self.heads), shared_by(v, self.heads)
        scores = (q @ k.transpose(-1, -2)).float() * self.head_dim**-0.5
        places = torch.arange(q.shape[2], device=q.device)
        scores = scores.masked_fill(places[None, :] > places[:, None], -1e30)
        lse = torch.logsumexp(scores, -1, keepdim=True)
        return torch.exp(scores - lse).to(q.dtype) @ v, lse

    def _feed(self, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        dtype = hidden.dtype
        x = hidden + mixed @ self.o.to(dtype).T
        y = self._norm(x, self.norm_post).to(dtype)
        inner = F.silu((y @ self.gate.to(dtype).T).float()) * (y @ self.up.to(dtype).T).float()
        return x + inner.to(dtype) @ self.down.to(dtype).T

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), weight, self.eps)


@dataclass(frozen=True)
class HeadResult:
    """accuracy: by step, how often the likeliest draft is the target's likeliest token, in the
    answers of held-out rows, fed with true tokens. coverage: of the training rows' answer tokens
    by the draft vocabulary. curve: (step, seconds, loss of the first step) of some steps.
    """

    head: Head
    accuracy: tuple[float, ...]
    coverage: float
    steps: int
    tokens: int
    curve: tuple[tuple[int, float, float], ...]

    def figures(self) -> dict[str, Any]:
        """All but the head."""
        return {
            "accuracy": self.accuracy,
            "coverage": self.coverage,
            "steps": self.steps,
            "tokens": self.tokens,
            "curve": self.curve,
        }


def fit_head(
    target: Target,
    rows: Rows,
    recipe: Recipe,
    seconds: float,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    report: Report = print,
    keep: Callable[[int, Head], None] = lambda step, head: None,
    clock: Clock = time.monotonic,
) -> HeadResult:
    """Trains a head for `target`, which is frozen and left on `device`, on text that it wrote.

    rows: with mask. seconds: without compiling. keep: called after the steps of
    `recipe.head_kept`. Equal seeds draw equal batches; the clock sets the rates, and how many.
    Raises ValueError for rows without mask, or fewer than two.
    """
    torch.set_float32_matmul_precision("high")
    on_gpu = torch.device(device).type == "cuda"
    if rows.mask is None or len(rows) < 2:
        raise ValueError("a head is trained on at least two rows, with a mask of their answers")
    target = target.to(device).eval().requires_grad_(False)
    text = _Text.of(rows, device)
    known, coverage = draft_vocabulary(rows, target.shape.vocab, recipe.head_vocab)
    head = Head(target.shape, recipe.head_ff, torch.from_numpy(known), seed).to(device)
    with torch.no_grad():
        head.lm_head.copy_(target.output_matrix()[head.target_ids])
    report(f"{len(known)} draft tokens are {coverage:.2%} of the answers")
    loss_of = _loss
    if on_gpu:
        for layer in target.layers:
            layer.compile(dynamic=False)
        loss_of = torch.compile(_loss, dynamic=False)
        head.compile_parts()

    def run(which: torch.Tensor) -> tuple[Tensors, Tensors]:
        """Losses and accuracies by step."""
        given, features, wanted, likeliest, weights = _prepared(target, head, text, which)
        hidden = F.linear(features, head.fc.to(features.dtype))
        keys, values, losses, right = Tensors(), Tensors(), Tensors(), Tensors()
        for _ in range(recipe.head_steps):
            embedded = F.embedding(given, target.token_embd).to(hidden.dtype)
            hidden = head.step(embedded, hidden, keys, values)
            loss, accuracy = loss_of(head, hidden, wanted, weights, likeliest)
            losses.append(loss)
            right.append(accuracy)
            given, wanted, weights = _earlier(given), _earlier(wanted), _earlier(weights)
            likeliest = _earlier(likeliest, -1)
        return losses, right

    n_held = min(_HELD_OUT_BATCHES * recipe.batch, max(1, len(rows) // 20))
    if n_held > recipe.batch:  # whole batches, for which everything is compiled
        n_held -= n_held % recipe.batch
    batches = endless(len(rows) - n_held, recipe.batch, torch.Generator().manual_seed(seed))
    adam = torch.optim.AdamW(
        head.parameters(), lr=recipe.head_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=on_gpu
    )
    began = clock()
    step, elapsed, curve = 0, 0.0, list[tuple[int, float, float]]()
    every = 50 if on_gpu else 2
    while elapsed < seconds:
        falling = 0.5 * (1 + math.cos(math.pi * elapsed / seconds)) * 0.98 + 0.02
        for group in adam.param_groups:
            group["lr"] = recipe.head_rate * min(1.0, (step + 1) / _WARMUP) * falling
        losses, right = run((n_held + next(batches)).to(device, non_blocking=True))
        total = sum((loss * _DISCOUNT**k for k, loss in enumerate(losses)), losses[0].new_zeros(()))
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        step += 1
        if on_gpu and (step % 10 == 0 or step == _WARM_STEPS):
            torch.cuda.synchronize()
        if step == _WARM_STEPS:
            report(f"ready after {clock() - began:.1f} s")
            began = clock()
        elapsed = clock() - began if step >= _WARM_STEPS else 0.0
        if step in recipe.head_kept:
            keep(step, head)
        if step % every == 0:
            curve.append((step, elapsed, float(losses[0].detach())))
            if step % (4 * every) == 0:
                shown = " ".join(f"{float(a):.3f}" for a in right)
                report(f"step {step}, {elapsed:.0f} s: loss {curve[-1][2]:.4f}, right {shown}")
    held = [
        [
            float(a)
            for a in run(torch.arange(start, min(start + recipe.batch, n_held)).to(device))[1]
        ]
        for start in range(0, n_held, recipe.batch)
    ]
    accuracy = tuple(sum(by_step) / len(held) for by_step in zip(*held, strict=True))
    report(f"{step} steps, right in held-out answers: {' '.join(f'{a:.3f}' for a in accuracy)}")
    tokens = step * recipe.batch * rows.length
    return HeadResult(head, accuracy, coverage, step, tokens, tuple(curve))


def draft_vocabulary(rows: Rows, vocab: int, size: int) -> tuple[NDArray[np.int64], float]:
    """The `size` tokens that answers use most, ascending, and their share of the answers' tokens.

    Special tokens are always among them. Prompts count too, but little. rows: with mask.
    """
    if rows.mask is None:
        raise ValueError("rows without a mask have no answers to count")
    used = np.arange(rows.length)[None] < rows.fill[:, None]
    in_answers = used & (rows.mask > 0)
    answers = np.bincount(rows.tokens[in_answers], minlength=vocab).astype(np.float64)
    counts = answers + _PROMPT_COUNT * np.bincount(rows.tokens[used & ~in_answers], minlength=vocab)
    counts[:_SPECIALS] = np.inf
    known = np.sort(np.argsort(-counts, kind="stable")[:size])
    return known, float(answers[known].sum() / max(1.0, answers.sum()))


@dataclass(frozen=True)
class _Text:
    """Rows on the device: tokens int32 [n, T], fill int64 [n], what a token counts [n, T]."""

    tokens: torch.Tensor
    fill: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def of(cls, rows: Rows, device: torch.device | str) -> _Text:
        assert rows.mask is not None
        answers = torch.from_numpy(rows.mask > 0).to(device)
        return cls(
            torch.from_numpy(rows.tokens.astype(np.int32)).to(device),
            torch.from_numpy(rows.fill.astype(np.int64)).to(device),
            answers.half() * (1 - _PROMPT_WEIGHT) + _PROMPT_WEIGHT,
        )


class _Batch(NamedTuple):
    """What the first step needs at each position t of rows [B, T].

    given: token t + 1. features: of token t [B, T, 3 * width]. wanted: the target's chances of
    token t + 2 over the draft vocabulary [B, T, n]. likeliest: the draft id of the target's choice
    for it, -1 if it has none. weights: what it counts, 0 beyond the row's end and where the
    target's choice cannot be drafted.
    """

    given: torch.Tensor
    features: torch.Tensor
    wanted: torch.Tensor
    likeliest: torch.Tensor
    weights: torch.Tensor


@torch.no_grad()
def _prepared(target: Target, head: Head, text: _Text, which: torch.Tensor) -> _Batch:
    ids = text.tokens[which].long()
    passed = target.hidden(ids, target.shape.taps)
    logits = target.logits(passed.hidden)
    draft_ids = torch.full((target.shape.vocab,), -1, dtype=torch.int64, device=ids.device)
    draft_ids[head.target_ids] = torch.arange(len(head.target_ids), device=ids.device)
    likeliest = _earlier(draft_ids[logits.argmax(-1)], -1)
    wanted = torch.softmax(logits[..., head.target_ids], -1).to(passed.hidden.dtype)
    places = torch.arange(ids.shape[1], device=ids.device)[None]
    counted = (places < (text.fill[which] - 2)[:, None]) & (likeliest >= 0)
    weights = _earlier(_earlier(text.weights[which].float())) * counted
    features = torch.cat(passed.taps, -1)
    return _Batch(_earlier(ids), features, _earlier(wanted), likeliest, weights)


def _earlier(x: torch.Tensor, fill: int = 0) -> torch.Tensor:
    """x [B, T, …] moved one position to the front."""
    return torch.cat([x[:, 1:], torch.full_like(x[:, :1], fill)], 1)


def _loss(
    head: Head,
    hidden: torch.Tensor,
    wanted: torch.Tensor,
    weights: torch.Tensor,
    likeliest: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted mean cross-entropy against `wanted`, and how often the first choices agree."""
    logits = head.logits(hidden).float()
    log_chances = torch.log_softmax(logits, -1)
    crossed = (wanted.float() * log_chances).sum(-1)
    loss = -(crossed * weights).sum() / (weights.sum() + 1e-6)
    answers = weights > 0.5
    agreed = (logits.argmax(-1) == likeliest) & answers
    return loss, agreed.float().sum() / (answers.float().sum() + 1e-6)
