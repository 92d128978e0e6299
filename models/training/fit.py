"""Trains the target on rows of tokens for a given time: Muon for matrices, AdamW for the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F

from specfit.models.training.muon import Muon
from specfit.models.training.recipe import Recipe
from specfit.models.training.rows import Rows
from specfit.models.training.target import ATTENTION, EXPERTS, NORMS, ROUTER, Target

Clock = Callable[[], float]
Report = Callable[[str], object]

# Steps before the time counts: compiling, first allocations.
WARM_STEPS = 5
_IGNORED = -100
_Z_LOSS = 1e-4
_CLIP = 1.0
_VALIDATE_EVERY = 1000


@dataclass(frozen=True)
class FitResult:
    """held_out: nats a token of the held-out rows, at the end.

    tokens: fed in all, padding included. curve: (step, seconds, training loss) of some steps.
    """

    held_out: float
    steps: int
    tokens: int
    seconds: float
    curve: tuple[tuple[int, float, float], ...]


def fit_target(
    model: Target,
    train: Rows,
    held_out: Rows,
    recipe: Recipe,
    seconds: float,
    *,
    rate: float = 1.0,
    own: Rows | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    report: Report = print,
    clock: Clock = time.monotonic,
) -> FitResult:
    """Trains `model` in place and leaves it on `device`.

    seconds: without compiling. rate: of the recipe's peak rates. own: rows that make up
    `recipe.own_share` of each batch. Equal seeds draw equal batches; how many, and at which rates,
    is for the clock to say. Raises ValueError for rows of different lengths or none at all.
    """
    torch.set_float32_matmul_precision("high")
    on_gpu = torch.device(device).type == "cuda"
    sources = (train,) if own is None else (train, own)
    if not all(len(rows) for rows in (*sources, held_out)):
        raise ValueError("no rows to train on, or none held out")
    if len({rows.length for rows in (*sources, held_out)}) != 1:
        raise ValueError("rows of different lengths cannot be mixed")
    model.to(device).train()
    batches = _mixed(sources, recipe, torch.Generator().manual_seed(seed))
    ids, fill = _on_device(sources, device)
    held_ids, held_fill = _on_device((held_out,), device)
    loss_of = _loss
    if on_gpu:
        for layer in model.layers:
            layer.compile(dynamic=False)
        loss_of = torch.compile(_loss, dynamic=False)

    def losses(
        rows: torch.Tensor, n_used: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        given, wanted = _inputs(rows, n_used)
        hidden, _, balance, z = model.hidden(given)
        return loss_of(hidden, model.output_matrix(), wanted), balance, z

    def validated() -> float:
        # Whole batches, and with gradients: what is compiled for training serves here too.
        n, size = len(held_ids), min(recipe.batch, len(held_ids))
        total, count = 0.0, 0
        for start in range(0, n - size + 1, size):
            used = held_fill[start : start + size]
            weight = int((used - 1).sum())
            total += float(losses(held_ids[start : start + size], used)[0].detach()) * weight
            count += weight
        return total / count

    muon, adam = _optimisers(model, recipe, rate, on_gpu)
    peaks = [group["lr"] for group in adam.param_groups]
    plain = [p for group in adam.param_groups for p in group["params"]]
    began = clock()
    step, elapsed, curve = 0, 0.0, list[tuple[int, float, float]]()
    every = 50 if on_gpu else 5
    while elapsed < seconds:
        rows = next(batches).to(device, non_blocking=True)
        loss, balance, z = losses(ids[rows], fill[rows])
        (loss + recipe.balance * balance + _Z_LOSS * z).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(plain, _CLIP)
        factor = rate_factor(step, elapsed / seconds, recipe)
        for group, peak in zip(adam.param_groups, peaks, strict=True):
            group["lr"] = peak * factor
        adam.step()
        muon.step(factor, momentum=0.85 + 0.10 * min(1.0, step / 300))
        model.zero_grad(set_to_none=True)
        step += 1
        if on_gpu and (step % 10 == 0 or step == WARM_STEPS):
            torch.cuda.synchronize()  # or the clock would run ahead of the work
        if step == WARM_STEPS:
            report(f"ready after {clock() - began:.1f} s")
            began = clock()
        elapsed = clock() - began if step >= WARM_STEPS else 0.0
        if step % every == 0:
            curve.append((step, elapsed, float(loss.detach())))
            if step % (4 * every) == 0:
                speed = recipe.batch * train.length * (step - WARM_STEPS) / max(elapsed, 1e-3)
                report(
                    f"step {step}, {elapsed:.0f} s: loss {curve[-1][2]:.4f}, balance "
                    f"{float(balance.detach()):.3f}, rate {factor:.3f}, {speed / 1e3:.0f}k tokens/s"
                )
        if step % _VALIDATE_EVERY == 0:
            report(f"step {step}: held-out loss {validated():.4f}")
    result = FitResult(
        held_out=validated(),
        steps=step,
        tokens=step * recipe.batch * train.length,
        seconds=elapsed,
        curve=tuple(curve),
    )
    report(f"{step} steps, {result.tokens / 1e6:.1f}M tokens, held-out loss {result.held_out:.4f}")
    return result


def rate_factor(step: int, progress: float, recipe: Recipe) -> float:
    """Part of the peak rate: up over the first steps, constant, then down to nothing.

    progress: 0 to 1, of the time.
    """
    up = min(1.0, (step + 1) / recipe.warmup_steps)
    down = (1 - progress) / (1 - recipe.decay_from)
    return up if down >= 1 else max(0.01, up * down)


def endless(n: int, size: int, random: torch.Generator) -> Iterator[torch.Tensor]:
    """int64 [size], again and again: indices below n, all of them once before any comes twice."""
    left = torch.empty(0, dtype=torch.int64)
    while True:
        while len(left) < size:
            left = torch.cat([left, torch.randperm(n, generator=random)])
        yield left[:size]
        left = left[size:]


def _mixed(
    sources: Sequence[Rows], recipe: Recipe, random: torch.Generator
) -> Iterator[torch.Tensor]:
    """Indices of batches into all sources' rows, one behind the other."""
    if len(sources) == 1:
        yield from endless(len(sources[0]), recipe.batch, random)
        return
    first, second = sources
    n_own = round(recipe.batch * recipe.own_share)
    ours = endless(len(first), recipe.batch - n_own, random)
    own = endless(len(second), n_own, random)
    while True:
        yield torch.cat([next(ours), len(first) + next(own)])


def _on_device(
    sources: Sequence[Rows], device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows int32 [n, length] and their fill int64 [n]."""
    ids = torch.cat([torch.from_numpy(s.tokens.astype("int32")) for s in sources])
    fill = torch.cat([torch.from_numpy(s.fill.astype("int64")) for s in sources])
    return ids.to(device), fill.to(device)


def _inputs(rows: torch.Tensor, n_used: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is fed and what should follow, int64 [B, T]; nothing should follow the last token."""
    given = rows.long()
    following = torch.cat([given[:, 1:], given[:, :1]], 1)
    places = torch.arange(given.shape[1], device=given.device)[None]
    return given, following.masked_fill(places >= (n_used - 1)[:, None], _IGNORED)


def _loss(hidden: torch.Tensor, output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    logits = (hidden @ output.to(hidden.dtype).T).float()
    return F.cross_entropy(
        logits.view(-1, logits.shape[-1]), wanted.view(-1), ignore_index=_IGNORED
    )


def _optimisers(
    model: Target, recipe: Recipe, rate: float, fused: bool
) -> tuple[Muon, torch.optim.AdamW]:
    def everywhere(name: str) -> list[torch.nn.Parameter]:
        return [cast(torch.nn.Parameter, getattr(block, name)) for block in model.blocks]

    matrices = [everywhere(name) for name in (*ATTENTION, *EXPERTS)]
    norms = [model.output_norm, *(p for name in NORMS for p in everywhere(name))]
    peak = recipe.adam_rate * rate
    groups = [
        {"params": [model.token_embd], "lr": 3 * peak, "weight_decay": 0.0},
        {"params": [model.output], "lr": peak, "weight_decay": 0.01},
        {"params": everywhere(ROUTER), "lr": 0.5 * peak, "weight_decay": 0.01},
        {"params": norms, "lr": peak, "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, fused=fused)
    return Muon(matrices, recipe.muon_rate * rate), adam
