"""From what the user asked for to a loaded model, context, head and cost tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np

from specfit.models import bundled_head, bundled_model
from specfit.models.convert_head import ARCHITECTURE as HEAD_ARCHITECTURE
from specfit.models.gguf_info import GgufInfo, read_gguf_info
from specfit.planner import (
    DRAFTERS,
    HEAD,
    LOOKUP,
    NO_OVERHEADS,
    Beliefs,
    CycleCost,
    Overheads,
)

from .calibration import Measured
from .context import BATCH, TREE_LIMIT, Context
from .cores import keep_numpy_off, performance_cores
from .errors import SpecfitError
from .expert_cache import MAX_ROWS, ExpertCache
from .head import Head
from .heads import HeadSource, find_head
from .held import HeldExperts, cacheable, uses_path
from .hostmemory import host_memory
from .kept_costs import calibrated
from .memory import memory_path
from .model import Model, Progress
from .observer import Observer
from .placing import plan_placement
from .plan import Plan, Wish
from .priors import beliefs_of, lines_that_pay, own_cost
from .profiles import load_profile
from .prompt_cache import PromptCache, made_with
from .rope import context_size, overreach
from .runtime import Runtime
from .sampling import QWEN3, Sampling

# llama.cpp gives layer inputs for these, and their memory can drop single tokens.
DRAFTABLE = ("llama", "qwen3", "qwen3moe")
# What loading comes to when the weights are there, and measuring begins.
LOADED = 0.9
# Bytes of host memory to be left free where weights are read into pinned memory.
PINNED_SPARE = 2 << 30


_SAMPLING_KEYS = ("temp", "top_k", "top_p", "min_p")


@dataclass(frozen=True)
class LoadOptions:
    """What to load and how; None means the default that the README names.

    head: EAGLE-3 head, a .gguf file, or a checkpoint, a folder or its weights' file; the bundled
    model has its own.
    gpu_layers: -1 is all. n_cpu_moe: layers, from the first, whose experts stay in host memory.
    None, for either: as fits. vram_budget: bytes of GPU memory that may be used. expert_cache: of
    them, for a cache of the experts in use; None: what is left, where not all experts fit.
    ctx: tokens; 0 is what the model was trained for.
    cost_profile: name of a shipped profile or a file, to plan as if for that machine.
    drafting: False loads neither head nor callback, for plain decoding only.
    drafters: of DRAFTERS, those to draft with where the model has them.
    lines: texts that can be decoded at once, each with a context of its own; None finds out with
    how many this machine makes the most tokens a second.
    """

    model: Path | None = None
    head: Path | None = None
    gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    ctx: int | None = None
    threads: int | None = None
    cost_profile: str | None = None
    drafting: bool = True
    drafters: tuple[str, ...] = DRAFTERS
    lines: int | None = 1
    vram_budget: int | None = None
    expert_cache: int | None = None
    runtime: Runtime = field(default_factory=Runtime)
    plan: Plan | None = None
    prompt_cache: Path | None = None
    prompt_cache_ro: bool = False


@dataclass(frozen=True)
class Loaded:
    """plan: where everything went. lines: texts at once. drafters: those there are, of DRAFTERS.
    memory: where what is learned about the pair is kept, None without drafters.
    measured: of this machine; None if nothing is to be planned. own_cost: its cycles. overheads:
    what drafting takes beside them.
    steering_cost: the cycles of another machine to plan for, if asked. held: a cache of experts."""

    plan: Plan
    model: Model
    context: Context
    lines: int
    head: Head | None
    drafters: tuple[str, ...]
    measured: Measured | None
    own_cost: CycleCost
    overheads: Overheads
    steering_cost: CycleCost | None
    memory: Path | None
    new_beliefs: Callable[[], Beliefs]
    sampling: Sampling
    prompt_cache: PromptCache | None
    held: HeldExperts | None
    notices: tuple[str, ...]
    description: str


def load(options: LoadOptions, progress: Progress | None = None) -> Loaded:
    """Loads everything that `options` name; see `Engine.load`.

    What can be refused is refused before the weights, which may take minutes, are loaded.
    """
    share = progress or (lambda _fraction: True)
    info = read_gguf_info(options.model or bundled_model())
    plan, cache, cache_trouble = _with_cache(info, options, options.plan or plan_load(options))
    placement = plan.placement
    threads = options.threads or performance_cores()
    ctx = context_size(info, options.ctx, options.runtime.rope)
    weights = np.array(placement.expert_layer_weights(info.n_layers) if info.n_experts else [])
    steering = None
    if options.cost_profile is not None:
        steering = load_profile(options.cost_profile, weights, TREE_LIMIT)
    source, observer, why_not = None, None, ""
    stretched = overreach(info, ctx, options.runtime.rope)
    notices = [told for told in (plan.notice, stretched, cache_trouble) if told]
    if options.drafting and DRAFTERS[HEAD] in options.drafters:
        source, why_not = _find_head(info, options, plan, threads)

    prompt_cache = None
    if options.prompt_cache is not None:
        made = made_with(info, options.runtime, None if source is None else _head_path(options))
        prompt_cache = PromptCache(options.prompt_cache, made, writes=not options.prompt_cache_ro)

    keep_numpy_off()
    runtime = _pinned(options.runtime, plan)
    model = Model(info, placement, lambda fraction: share(LOADED * fraction), runtime, cache)

    drafters = _drafters(options, source, model)
    if options.drafting and DRAFTERS[LOOKUP] not in drafters:
        if DRAFTERS[LOOKUP] in options.drafters:
            why_not = "its memory is one state of the whole text, which drafts would spoil"
        if source is None:
            notices.append(f"decoding without drafts: {why_not}")
    elif why_not:
        notices.append(f"drafting by n-grams alone: {why_not}")
    if drafters and info.n_experts:
        try:
            observer = Observer(info.n_layers, info.n_experts, info.n_experts_used, BATCH)
        except SpecfitError as error:
            notices.append(f"planning without looking at experts: {error}")

    def new_context(lines: int, *, trees: bool) -> Context:
        taps = () if source is None else source.taps
        return Context(
            model,
            ctx=ctx,
            threads=threads,
            lines=lines,
            taps=taps,
            observer=observer,
            drafting=trees,
        )

    wanted = options.lines
    if wanted is None and _keeps_one_state(model):
        wanted = 1
    auto = wanted is None
    trees = auto or bool(drafters)
    if steering is not None and not trees:  # nor what pads a decode
        steering = replace(steering, unions=None)
    context, measured = new_context(wanted or 1, trees=trees), None
    held = None if cache is None else _filled(cache, context, plan.cache)
    head = None if source is None else source.start(context)
    if trees:
        rest = 1 - LOADED
        measured = calibrated(context, head, lambda done: share(LOADED + rest * done), held)
    if held is not None:
        held.begin(uses_path(info))
    trouble = cache.trouble() if cache is not None else None
    notices += [trouble] if trouble else []
    lines = wanted or lines_that_pay(measured, weights, info, ctx, plan)
    if auto and lines > 1:
        if head is not None:
            head.close()
        context.close()
        context = new_context(lines, trees=trees)
        head = None if source is None else source.start(context)
    pair = info.path, None if head is None else _head_path(options)
    memory = None
    if drafters:
        memory = memory_path(*pair, cached=held is not None, profile=options.cost_profile)
    own = own_cost(measured, weights, info.n_experts_used)
    missing = 1.0 if held is None else held.missing_share
    share(1.0)
    return Loaded(
        plan=plan,
        model=model,
        context=context,
        lines=lines,
        head=head,
        drafters=drafters,
        measured=measured,
        own_cost=own,
        overheads=NO_OVERHEADS if measured is None else measured.overheads,
        steering_cost=steering,
        memory=memory,
        new_beliefs=lambda: beliefs_of(info, weights, measured, memory, missing),
        sampling=_recommended(options, info),
        prompt_cache=prompt_cache,
        held=held,
        notices=tuple(notices),
        description=_describe(model, drafters, context, held),
    )


def _with_cache(
    info: GgufInfo, options: LoadOptions, plan: Plan
) -> tuple[Plan, ExpertCache | None, str]:
    """The plan, its cache of experts, and why there is none where one was planned."""
    if not plan.cache:
        return plan, None, ""
    device = plan.machine.gpus[0].name
    try:
        cache = ExpertCache(device, info.n_layers, info.n_experts, info.n_experts_used)
    except SpecfitError as error:
        return plan_load(replace(options, expert_cache=0)), None, str(error)
    return plan, cache, ""


def _pinned(runtime: Runtime, plan: Plan) -> Runtime:
    """Without a word from the user, experts in host memory are read into memory that a GPU reads
    fast, if there is plenty: prompts, for which they are copied there, and a cache's uploads are
    several times as fast as from a mapped file (LOG.md)."""
    experts = sum(part.host for part in plan.parts if part.name == "experts")
    gpu = plan.gpu and not plan.machine.shared
    if runtime.load_mode != "auto" or not (gpu and experts):
        return runtime
    plenty = plan.host + experts // 4 + PINNED_SPARE < host_memory().free
    return replace(runtime, load_mode="none") if plenty else runtime


def _filled(cache: ExpertCache, context: Context, budget: int) -> HeldExperts | None:
    """The slots of a loaded model's cache; None if there is no room for any."""
    context.decode_prompt([0] * min(MAX_ROWS, context.ctx))
    context.truncate(0)
    held = HeldExperts(cache, budget)
    return held if held.share else None


def plan_load(options: LoadOptions) -> Plan:
    """Where everything will go; takes well under a second, and loads nothing.

    Raises SpecfitError or ModelFileError for what cannot be loaded.
    """
    info = read_gguf_info(options.model or bundled_model())
    if info.architecture == HEAD_ARCHITECTURE:
        raise SpecfitError(f"{info.path} is a draft head: give it with -md, and its model with -m")
    if options.lines is not None and options.lines >= TREE_LIMIT:
        most = TREE_LIMIT - 1
        raise SpecfitError(f"{options.lines} lines at once are too many: {most} at most")
    wants_head = options.drafting and DRAFTERS[HEAD] in options.drafters
    head = _head_path(options) if wants_head and info.architecture in DRAFTABLE else None
    looks_up = options.drafting and DRAFTERS[LOOKUP] in options.drafters and not _recurs(info)
    runtime = options.runtime
    layers = options.gpu_layers
    return plan_placement(
        info,
        Wish(
            gpu_layers=info.n_layers + 1 if layers is not None and layers < 0 else layers,
            n_cpu_moe=options.n_cpu_moe,
            split=runtime.tensor_split,
            pooled=runtime.split_mode in ("row", "tensor"),
            resident=runtime.resident,
            expert_cache=options.expert_cache if cacheable(info) else 0,
        ),
        runtime,
        ctx=context_size(info, options.ctx, runtime.rope),
        lines=options.lines,
        head=head,
        drafting=options.lines is None or head is not None or looks_up,
        budget=options.vram_budget,
    )


def _drafters(options: LoadOptions, source: HeadSource | None, model: Model) -> tuple[str, ...]:
    """Those of DRAFTERS that are wanted and that the model has."""
    if not options.drafting:
        return ()
    there = (source is not None, not _keeps_one_state(model))
    return tuple(
        name
        for name, is_there in zip(DRAFTERS, there, strict=True)
        if is_there and name in options.drafters
    )


def _find_head(
    info: GgufInfo, options: LoadOptions, plan: Plan, threads: int
) -> tuple[HeadSource | None, str]:
    """The draft head, or the reason why there can be none."""
    path = _head_path(options)
    if path is None:
        return None, "no draft head was given (-md)"
    if info.architecture not in DRAFTABLE:
        return None, (f"llama.cpp gives no draft features for the architecture {info.architecture}")
    on_gpu = plan.placement.gpu_layers > 0
    return find_head(path, info, options.runtime, threads=threads, on_gpu=on_gpu), ""


def _head_path(options: LoadOptions) -> Path | None:
    return options.head or (bundled_head() if options.model is None else None)


def _keeps_one_state(model: Model) -> bool:
    """Whether a text has one state (recurrent, in some layers or all), so that no tree can be
    decoded, to measure with; llama.cpp refuses the batch."""
    handle = model.handle
    return bool(llama.llama_model_is_recurrent(handle) or llama.llama_model_is_hybrid(handle))


def _recurs(info: GgufInfo) -> bool:
    """The same by the file alone, before llama.cpp has read it: for what it will need."""
    marks = (".ssm.", ".wkv.", ".shortconv.", ".time_mix_")
    return any(mark in name for name in info.metadata for mark in marks)


def _recommended(options: LoadOptions, info: GgufInfo) -> Sampling:
    """What the file says; else Qwen3's for Qwen3; else the engine's."""
    given = {name: info.metadata.get(f"general.sampling.{name}") for name in _SAMPLING_KEYS}
    qwen3 = options.model is not None and info.architecture.startswith("qwen3")
    otherwise = QWEN3 if qwen3 and not any(given.values()) else Sampling()

    def number(name: str) -> float:
        value = given[name]
        if not isinstance(value, int | float) or not 0 <= value < 1e6:
            value = getattr(otherwise, name)
        # Written as float32: 0.7 would read 0.699999988.
        return round(float(value), 6)

    temp, top_p, min_p = (number(name) for name in ("temp", "top_p", "min_p"))
    return Sampling(temp=temp, top_k=int(number("top_k")), top_p=top_p, min_p=min_p)


def _describe(
    model: Model, drafters: Sequence[str], context: Context, held: HeldExperts | None
) -> str:
    info = model.info
    parts = [info.name, info.architecture, f"{info.n_layers} layers"]
    if info.n_experts:
        parts.append(f"{info.n_experts} experts top-{info.n_experts_used}")
    layers = min(model.placement.gpu_layers, info.n_layers + 1)
    parts.append(f"{layers} layers on the GPU" if layers else "on the CPU")
    if layers and info.n_experts and model.placement.n_cpu_moe:
        parts.append(f"experts of {model.placement.n_cpu_moe} layers in host memory")
    if held is not None:
        parts.append(f"{held.share:.0%} of them in the GPU's cache")
    if context.lines > 1:
        parts.append(f"{context.lines} lines")
    parts += [
        f"context {context.ctx}",
        f"{context.threads} thread{'s' if context.threads > 1 else ''}",
    ]
    parts.append("EAGLE-3 head" if DRAFTERS[HEAD] in drafters else "no draft head")
    if DRAFTERS[LOOKUP] in drafters:
        parts.append("n-grams")
    return ", ".join(parts)
