"""The options that all commands share, named as llama.cpp names them.

A decorator declares a group of options and hands the command one frozen value for it. The engine
is imported only when a value is turned into the engine's own, so that --help stays instant.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .entry import AppError
from .option_types import ALL_LAYERS, MAX_INT, Count, Finite, GibOrAuto
from .options_context import PROMPT_CACHE_OPTIONS, ROPE_OPTIONS, ContextChoice

if TYPE_CHECKING:
    from specfit.backend import LoadOptions, Sampling, Spec

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

RANDOM_SEED = -1
NO_LIMIT = -1
# What a seed of llama.cpp's holds, and the most threads that it takes.
MAX_SEED = 2**32 - 1
MAX_THREADS = 512
# The planner's, which takes a moment to import.
DRAFTERS = ("eagle3", "ngram")
# llama.cpp's values for its options.
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
LOAD_MODES = ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")
# By --no-mmap and --mlock, llama.cpp's older names for some of these.
_LOAD_MODES = {
    (False, False): "",
    (True, False): "none",
    (False, True): "mmap+mlock",
    (True, True): "mlock",
}


@dataclass(frozen=True)
class ModelChoice(ContextChoice):
    """Which model is loaded, and how; None means the engine's default.

    gpu_layers, n_cpu_moe, expert_cache: None is "auto". ctx_size: 0 is the model's. vram_budget,
    expert_cache: GiB. From
    cache_type_k on, options are llama.cpp's own. Raises click.UsageError for options that
    contradict each other, and for a drafter that there is not.
    """

    model: Path | None
    model_draft: Path | None
    gpu_layers: int | None
    cpu_moe: bool
    n_cpu_moe: int | None
    ctx_size: int | None
    threads: int | None
    cost_profile: str | None
    hf_repo: str | None = None
    hf_repo_draft: str | None = None
    vram_budget: float | None = None
    expert_cache: float | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "auto"
    load_mode: str = "auto"
    no_mmap: bool = False
    mlock: bool = False
    numa: str | None = None
    split_mode: str = "layer"
    tensor_split: str | None = None
    main_gpu: int = 0
    rpc: str | None = None
    drafter: str = ",".join(DRAFTERS)
    prompt_cache: Path | None = None
    prompt_cache_ro: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None and self.hf_repo is not None:
            raise click.UsageError("-m and -hf both name a model; give one.")
        if self.model_draft is not None and self.hf_repo_draft is not None:
            raise click.UsageError("-md and -hfd both name a draft head; give one.")
        if self.cpu_moe and self.n_cpu_moe is not None:
            raise click.UsageError("--cpu-moe and --n-cpu-moe contradict each other; give one.")
        if self.load_mode != "auto" and (self.no_mmap or self.mlock):
            raise click.UsageError("--load-mode says what --no-mmap and --mlock say; give one.")
        if self.prompt_cache_ro and self.prompt_cache is None:
            raise click.UsageError("--prompt-cache-ro goes with --prompt-cache FILE.")
        _proportions(self.tensor_split or "")
        _ = self.drafters

    @property
    def drafters(self) -> tuple[str, ...]:
        """Those of --drafter, in the order of DRAFTERS."""
        return _drafters(self.drafter)

    def load_options(self, *, drafting: bool, lines: int | None = 1) -> LoadOptions:
        """The engine's options. Imports the engine, which takes seconds.

        drafting: whether any generation will draft; without, the engine is a plain llama.cpp.
        lines: texts at once; None finds out how many.
        """
        assert self.hf_repo is None and self.hf_repo_draft is None, "hub_fetch.fetched comes first"
        from specfit.backend import LoadOptions
        from specfit.backend.runtime import Runtime

        return LoadOptions(
            model=self.model,
            head=self.model_draft,
            gpu_layers=self.gpu_layers,
            n_cpu_moe=MAX_INT if self.cpu_moe else self.n_cpu_moe,
            vram_budget=_bytes(self.vram_budget),
            expert_cache=_bytes(self.expert_cache),
            runtime=Runtime(
                cache_type_k=self.cache_type_k,
                cache_type_v=self.cache_type_v,
                flash_attn=self.flash_attn,
                load_mode=_LOAD_MODES[self.no_mmap, self.mlock] or self.load_mode,
                numa=self.numa,
                split_mode=self.split_mode,
                tensor_split=_proportions(self.tensor_split or ""),
                main_gpu=self.main_gpu,
                rpc=self.rpc,
                rope=self.rope,
            ),
            ctx=self.ctx_size,
            threads=self.threads,
            cost_profile=self.cost_profile,
            drafting=drafting,
            drafters=self.drafters,
            lines=lines,
            prompt_cache=self.prompt_cache,
            prompt_cache_ro=self.prompt_cache_ro,
        )


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * 2**30)


@dataclass(frozen=True)
class SamplingChoice:
    """Sampling values given by the user; None leaves the model's recommended value."""

    temp: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None

    def over(self, recommended: Sampling) -> Sampling:
        """The recommended values with the user's in their place."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        changes = {name: value for name, value in given.items() if value is not None}
        if changes.get("seed") == RANDOM_SEED:
            changes["seed"] = None
        return replace(recommended, **changes)


def parse_spec(text: str) -> Spec:
    """The engine's reading of a speculation mode; raises AppError for an unknown one."""
    from specfit.planner import Spec

    try:
        return Spec.parse(text)
    except ValueError as error:
        raise AppError(str(error)) from error


def _drafters(text: str) -> tuple[str, ...]:
    """Names with commas between, in the order of DRAFTERS. Raises click.UsageError for others."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in DRAFTERS]
    if unknown or not names:
        told = f"{unknown[0]!r} is no drafter" if unknown else "--drafter names none"
        raise click.UsageError(f"{told}; there are {' and '.join(DRAFTERS)}.")
    return tuple(name for name in DRAFTERS if name in names)


def _proportions(text: str) -> tuple[float, ...]:
    """Numbers with commas, or slashes, between. Raises click.UsageError for anything else."""
    try:
        shares = tuple(float(part) for part in text.replace("/", ",").split(",") if part)
    except ValueError:
        shares = (math.nan,)
    if not all(0 <= share < math.inf for share in shares) or (shares and not any(shares)):
        raise click.UsageError(f"--tensor-split {text!r}: write proportions like 3,1.")
    return shares


# Of two options for one thing, one that is typed goes before one that the user's settings have.
_SAME_THING = (
    *(("hf_repo", "model"), ("hf_repo_draft", "model_draft")),
    *(("model", "hf_repo"), ("model_draft", "hf_repo_draft")),
)


def _is_setting(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.DEFAULT_MAP


def _grouped(name: str, kind: type[Any], options: Sequence[Decorator]) -> Decorator:
    """Declares `options` and passes their values to the command as `kind(...)` named `name`."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            declared = [field.name for field in fields(kind) if field.name in kwargs]
            values = {name: kwargs.pop(name) for name in declared}
            for typed, set_before in _SAME_THING:
                if typed in values and values[typed] is not None and _is_setting(set_before):
                    values[set_before] = None
            return command(*args, **kwargs, **{name: kind(**values)})

        for option in reversed(options):
            option(wrapper)
        return wrapper

    return decorate


_MODEL_OPTIONS = [
    click.option("-m", "--model", type=click.Path(path_type=Path), metavar="FILE",
                 help="GGUF model; without it, the small model that comes with SpecFit."),
    click.option("-md", "--model-draft", type=click.Path(path_type=Path), metavar="PATH",
                 help="EAGLE-3 head of that model: a folder as published, or a .gguf file."),
    click.option("-hf", "-hfr", "--hf-repo", metavar="OWNER/REPO[:QUANT]",
                 help="GGUF model of the Hugging Face hub, downloaded once. Default of QUANT: "
                 "Q4_K_M, or what is nearest to it."),
    click.option("-hfd", "-hfrd", "--hf-repo-draft", metavar="OWNER/REPO",
                 help="EAGLE-3 head of that model, from the hub as well."),
    click.option("-ngl", "--gpu-layers", type=Count(ALL_LAYERS, MAX_INT), metavar="N|auto",
                 help="Layers on the GPU; -1 is all. Default, auto: as many as fit."),
    click.option("--cpu-moe", is_flag=True, help="Keep all experts in host memory."),
    click.option("--n-cpu-moe", type=Count(0, MAX_INT), metavar="N|auto",
                 help="Keep the first N layers' experts in host memory; 0: none. Default, "
                 "auto: as few as fit on the GPU with the rest."),
    click.option("--vram-budget", type=Finite(min=0, min_open=True), metavar="GIB",
                 help="Use no more GPU memory than this."),
    click.option("--expert-cache", type=GibOrAuto(min=0), metavar="GIB|auto",
                 help="Keep the experts in use in so much GPU memory, all of them being in host "
                 "memory; 0: none. Default, auto: with CUDA, what is left there, where not all "
                 "experts fit."),
    click.option("-c", "--ctx-size", type=click.IntRange(0, MAX_INT), metavar="N",
                 help="Context in tokens; 0: what the model was trained for. Default: that, but "
                 "at most 4096."),
    *ROPE_OPTIONS,
    click.option("-t", "--threads", type=click.IntRange(1, MAX_THREADS), metavar="N",
                 help="CPU threads. Default: the physical cores, of the fast kind."),
    click.option("-ctk", "--cache-type-k", type=click.Choice(CACHE_TYPES), default="f16",
                 metavar="TYPE",
                 help="Type of the keys kept: " + ", ".join(CACHE_TYPES) + ". Default: f16."),
    click.option("-ctv", "--cache-type-v", type=click.Choice(CACHE_TYPES), default="f16",
                 metavar="TYPE",
                 help="Type of the values kept, one of the same; quantised, they need flash "
                 "attention."),
    click.option("-fa", "--flash-attn", type=click.Choice(("on", "off", "auto")),
                 default="auto", help="Flash attention. Default: auto."),
    click.option("-lm", "--load-mode", type=click.Choice(LOAD_MODES), default="auto",
                 help="How the file is read. Default: auto, mapped. none: into memory that a "
                 "GPU can read fast."),
    click.option("--no-mmap", is_flag=True, help="The same as -lm none."),
    click.option("--mlock", is_flag=True,
                 help="The same as -lm mmap+mlock: mapped, and held in memory."),
    click.option("--numa", type=click.Choice(("distribute", "isolate", "numactl")),
                 help="Helps on machines of several NUMA nodes."),
    click.option("-sm", "--split-mode", type=click.Choice(("none", "layer", "row", "tensor")),
                 default="layer", help="How several GPUs share the model. Default: layer."),
    click.option("-ts", "--tensor-split", metavar="N0,N1,...",
                 help="Proportions for the GPUs. Default: as fits."),
    click.option("-mg", "--main-gpu", type=click.IntRange(0, MAX_THREADS), default=0,
                 metavar="INDEX", help="The GPU for --split-mode none, or row. Default: 0."),
    click.option("--rpc", metavar="HOST:PORT,...",
                 help="Servers of llama.cpp's RPC backend, used as GPUs."),
    click.option("--drafter", default=",".join(DRAFTERS), metavar="NAME,NAME",
                 help="What drafts, where the model has it: eagle3, its head; ngram, what followed "
                 "in the text before. Default: both."),
    click.option("--cost-profile", metavar="NAME|FILE",
                 help="Plan as if verification cost what it costs on another machine."),
]  # fmt: skip
model_options = _grouped("choice", ModelChoice, [*_MODEL_OPTIONS, *PROMPT_CACHE_OPTIONS])
# Of commands that measure, and so process every prompt.
measured_model_options = _grouped("choice", ModelChoice, _MODEL_OPTIONS)

sampling_options = _grouped(
    "sampling_choice",
    SamplingChoice,
    [
        click.option("--temp", type=Finite(min=0), metavar="T",
                     help="Temperature; 0 takes the likeliest token. Default, as for all sampling "
                     "options: what the model's makers recommend."),
        click.option("--top-k", type=click.IntRange(0, MAX_INT), metavar="K", help="0 is off."),
        click.option("--top-p", type=Finite(0, 1), metavar="P", help="1 is off."),
        click.option("--min-p", type=Finite(0, 1), metavar="P", help="0 is off."),
        click.option("-s", "--seed", type=click.IntRange(RANDOM_SEED, MAX_SEED), metavar="N",
                     help="Seed of the sampler; -1 draws one."),
    ],
)  # fmt: skip


def predict_option(default: int, meaning: str) -> Decorator:
    """-n/--predict with the command's own default, which `meaning` puts into words."""
    return click.option(
        "-n",
        "--predict",
        type=click.IntRange(NO_LIMIT, MAX_INT),
        default=default,
        metavar="N",
        help=f"Most tokens to generate. Default: {meaning}.",
    )


def token_limit(predict: int) -> int | None:
    """-n as the engine takes it; None is no limit but the context."""
    return None if predict == NO_LIMIT else predict


spec_option = click.option(
    "--spec",
    default="specfit",
    show_default=True,
    metavar="MODE",
    help="Speculation: off, chain:K, eagle3[:TOTAL[:DEPTH[:K]]], count, specfit[:ratio].",
)
