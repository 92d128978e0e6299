"""From what the user asked for to a loaded model, context, head and cost tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from specfit.models import bundled_head, bundled_model
from specfit.models.eagle3 import Eagle3Head, TargetShape
from specfit.models.embeddings import TokenEmbeddings
from specfit.models.gguf_info import GgufInfo, read_gguf_info
from specfit.planner import (
    Acceptance,
    Beliefs,
    CycleCost,
    FloatArray,
    Forecast,
    UnionByRows,
    cost_from_points,
)

from .calibration import Measured, calibrated
from .context import TREE_LIMIT, Context
from .errors import SpecfitError
from .model import Model, Progress, resolve_placement
from .observer import Observer
from .profiles import load_profile
from .sampling import QWEN3, Sampling

DEFAULT_CTX = 4096
# llama.cpp gives layer inputs for these, and their memory can drop single tokens.
DRAFTABLE = ("llama", "qwen3", "qwen3moe")


@dataclass(frozen=True)
class LoadOptions:
    """What to load and how; None means the default that the README names.

    head: EAGLE-3 checkpoint, a folder or its .safetensors file; the bundled model has its own.
    n_cpu_moe: layers, from the first, whose experts stay in host memory; None: all.
    cost_profile: name of a shipped profile or a file, to plan as if for that machine.
    drafting: False loads neither head nor callback, for plain decoding only.
    """

    model: Path | None = None
    head: Path | None = None
    gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    ctx: int | None = None
    threads: int | None = None
    cost_profile: str | None = None
    drafting: bool = True


@dataclass(frozen=True)
class Loaded:
    """own_cost: this machine's cycles. steering_cost: those that the planner plans for."""

    model: Model
    context: Context
    head: Eagle3Head | None
    own_cost: CycleCost
    steering_cost: CycleCost
    new_beliefs: Callable[[], Beliefs]
    sampling: Sampling
    notices: tuple[str, ...]
    description: str


def load(options: LoadOptions, progress: Progress | None = None) -> Loaded:
    """Loads everything that `options` name; see `Engine.load`."""
    path = options.model or bundled_model()
    head_path = options.head or (bundled_head() if options.model is None else None)
    share = progress or (lambda _fraction: True)
    model = _load_model(path, options, lambda fraction: share(0.9 * fraction))
    notices: list[str] = []
    head = None
    if options.drafting:
        head, reason = _load_head(model, head_path)
        if reason:
            notices.append(f"decoding without drafts: {reason}")
    weights = _layer_weights(model)
    if options.cost_profile is not None:
        load_profile(options.cost_profile, weights, TREE_LIMIT)  # refuse before long work
    observer = None
    if head is not None and model.info.n_experts:
        try:
            observer = Observer(
                model.n_layers, model.info.n_experts, model.info.n_experts_used, TREE_LIMIT
            )
        except SpecfitError as error:
            notices.append(str(error))
    context = Context(
        model,
        ctx=_context_size(model, options.ctx),
        threads=options.threads or physical_cores(),
        taps=() if head is None else head.taps,
        observer=observer,
        drafting=head is not None,
    )
    measured = None
    if head is not None:
        measured = calibrated(context, head, lambda done: share(0.9 + 0.1 * done))
    own = _own_cost(measured, weights, model.info.n_experts_used)
    steering = own
    if options.cost_profile is not None:
        steering = load_profile(options.cost_profile, weights, TREE_LIMIT)
    share(1.0)
    return Loaded(
        model=model,
        context=context,
        head=head,
        own_cost=own,
        steering_cost=steering,
        new_beliefs=lambda: _beliefs(model.info, model.n_layers, weights, measured),
        sampling=_recommended(options, model.info),
        notices=tuple(notices),
        description=_describe(model, head, context),
    )


def physical_cores() -> int:
    """Physical cores that this process may use."""
    physical = psutil.cpu_count(logical=False) or 1
    try:
        allowed = len(psutil.Process().cpu_affinity())
    except (AttributeError, psutil.Error):  # macOS has no affinity
        return physical
    return max(1, min(physical, allowed))


def _load_model(path: Path, options: LoadOptions, progress: Progress) -> Model:
    info = read_gguf_info(path)
    placement = resolve_placement(info, options.gpu_layers, options.n_cpu_moe)
    return Model(path, placement, progress)


def _load_head(model: Model, path: Path | None) -> tuple[Eagle3Head | None, str]:
    """The draft head, or the reason why there can be none."""
    if path is None:
        return None, "no draft head was given (-md)"
    if not model.rolls_back:
        return None, "this architecture's memory cannot drop rejected drafts"
    if model.info.architecture not in DRAFTABLE:
        return None, (
            f"llama.cpp gives no draft features for the architecture {model.info.architecture}"
        )
    head = Eagle3Head.load(
        path,
        embeddings=TokenEmbeddings.load(model.info),
        target=TargetShape(model.n_embd, model.n_vocab, model.n_layers),
        device="cuda" if _gpu_torch() and model.placement.gpu_layers else "cpu",
    )
    return head, ""


def _gpu_torch() -> bool:
    import torch

    return torch.cuda.is_available()


def _layer_weights(model: Model) -> FloatArray:
    if not model.info.n_experts:
        return np.zeros(0)
    return np.array(model.placement.expert_layer_weights(model.n_layers))


def _context_size(model: Model, wanted: int | None) -> int:
    if wanted is None:
        return min(DEFAULT_CTX, model.context_length or DEFAULT_CTX)
    if model.context_length and wanted > model.context_length:
        raise SpecfitError(
            f"-c {wanted}: {model.info.path.name} was trained for {model.context_length} tokens; "
            "ask for at most that"
        )
    return wanted


def _own_cost(measured: Measured | None, weights: FloatArray, top_k: int) -> CycleCost:
    if measured is None:  # nothing will be planned
        flat = np.ones(TREE_LIMIT + 1)
        return CycleCost(flat, np.zeros(TREE_LIMIT + 1), weights, 0.0)
    return cost_from_points(
        measured.points,
        top_k=top_k,
        layer_weights=weights,
        draft_ms=measured.draft_level_ms,
        max_rows=TREE_LIMIT,
    )


def _beliefs(
    info: GgufInfo, n_layers: int, weights: FloatArray, measured: Measured | None
) -> Beliefs:
    routed = bool(info.n_experts)
    unions = np.zeros(TREE_LIMIT + 1)
    if routed and measured is not None:
        unions = measured.union_by_rows(TREE_LIMIT)
    return Beliefs(
        acceptance=Acceptance(),
        forecast=Forecast(n_layers, info.n_experts, info.n_experts_used, weights)
        if routed and measured is not None
        else None,
        unions=UnionByRows(unions),
        layer_weights=weights,
    )


def _recommended(options: LoadOptions, info: GgufInfo) -> Sampling:
    if options.model is not None and info.architecture.startswith("qwen3"):
        return QWEN3
    return Sampling()


def _describe(model: Model, head: Eagle3Head | None, context: Context) -> str:
    info = model.info
    parts = [info.name, info.architecture, f"{model.n_layers} layers"]
    if info.n_experts:
        parts.append(f"{info.n_experts} experts top-{info.n_experts_used}")
    layers = min(model.placement.gpu_layers, model.n_layers + 1)
    parts.append(f"{layers} layers on the GPU" if layers else "on the CPU")
    if layers and info.n_experts and model.placement.n_cpu_moe:
        parts.append(f"experts of {model.placement.n_cpu_moe} layers in host memory")
    parts += [f"context {context.ctx}", f"{context.threads} threads"]
    parts.append("EAGLE-3 head" if head is not None else "no draft head")
    return ", ".join(parts)
