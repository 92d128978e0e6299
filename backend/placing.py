"""The plan for a model on this machine: what llama.cpp would take, and what there is."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from math import prod
from pathlib import Path

from specfit.models import ModelFileError
from specfit.models.gguf_header import read_header
from specfit.models.gguf_info import GgufInfo
from specfit.models.weights import checkpoint_files

from . import library
from .context import TREE_LIMIT
from .devices import gpu_names, shares_memory
from .errors import SpecfitError
from .fit import fit
from .hostmemory import host_memory
from .plan import (
    Machine,
    Needs,
    Placement,
    Plan,
    Wish,
    head_buffers,
    head_bytes_of,
    needs_of,
    weights_of,
)
from .probe import Probed, feature_bytes, probe
from .runtime import Runtime

# A head reads the inputs of three layers.
_TAPS = 3
# With the number of lines still open, so many are planned for, if their keys and values take no
# more of the GPUs than this.
_LINES, _LINES_SHARE = TREE_LIMIT // 2, 0.25
# What comes of a head that is damaged.
_UNREADABLE = (
    *(ModelFileError, OSError, struct.error, ValueError, LookupError, TypeError),
    *(AttributeError, RecursionError),
)


def plan_placement(
    info: GgufInfo,
    wish: Wish,
    runtime: Runtime,
    *,
    ctx: int,
    lines: int | None,
    head: Path | None,
    drafting: bool,
    budget: int | None,
) -> Plan:
    """Where everything goes; see `fit`.

    lines: None plans for as many as seem sensible. head: a draft head that will be loaded.
    drafting: whether trees will be decoded. budget: bytes of GPU memory to stay within.
    Raises SpecfitError for what cannot be, before anything is loaded.
    """
    runtime.prepare()
    gpu_build = library.supports_gpu()
    if wish.gpu_layers and not gpu_build:
        raise SpecfitError(
            f"--gpu-layers {wish.gpu_layers}: this build of llama.cpp sees no GPU; build for yours "
            "with `make setup GPU=cuda` (or vulkan, hip, metal), or leave the option out"
        )

    if runtime.main_gpu >= max(1, n_gpus := len(gpu_names())):
        seen = f"{n_gpus} GPU{'s' * (n_gpus > 1)}, counted from 0" if n_gpus else "no GPU"
        raise SpecfitError(f"--main-gpu {runtime.main_gpu}: llama.cpp sees {seen}")

    def measured(placement: Placement, lines: int) -> Probed:
        return probe(info, placement, runtime, ctx, lines, drafting=drafting)

    guess = _first_guess(info, wish, gpu_build)
    found = measured(guess, lines or 1)
    machine = _machine(found, budget)
    if lines is None:
        lines = _lines(found.kv, machine)
        found = measured(guess, lines)
    weights = weights_of(info)
    needs = _needs(info, found, ctx, lines, head)
    plan = fit(weights, needs, machine, wish)
    # Buffers depend on the placement; where a plan needs larger ones it is made again for those.
    while plan.placement != guess:
        guess, found = plan.placement, measured(plan.placement, lines)
        own = _needs(info, found, ctx, lines, head)
        needs = replace(own, gpu=max(needs.gpu, own.gpu))
        plan = fit(weights, needs, machine, wish)
    return plan


def _first_guess(info: GgufInfo, wish: Wish, gpu_build: bool) -> Placement:
    """All on the GPUs, but for what the user wants elsewhere."""
    n = info.n_layers
    if not gpu_build:
        return Placement(0, n)
    layers = n + 1 if wish.gpu_layers is None else min(wish.gpu_layers, n + 1)
    on_host = min(wish.n_cpu_moe or 0, n) if info.n_experts else 0
    return Placement(layers, on_host, wish.split)


def _machine(found: Probed, budget: int | None) -> Machine:
    memory = host_memory()
    machine = Machine(memory.free, memory.total, found.gpus, found.gpus != () and shares_memory())
    return machine.within(budget)


def _lines(kv: int, machine: Machine) -> int:
    """kv: of one line."""
    room = sum(gpu.free for gpu in machine.gpus)
    return max(1, min(_LINES, int(_LINES_SHARE * room / max(1, kv))))


def _needs(info: GgufInfo, found: Probed, ctx: int, lines: int, head: Path | None) -> Needs:
    on_gpu = head is not None and found.gpus != ()
    sizes = (0, 0)
    if head is not None:
        sizes = (
            head_bytes(head, ctx * lines, on_gpu=True) if on_gpu else 0,
            head_bytes(head, ctx * lines, on_gpu=False),
        )
    return needs_of(
        ctx=ctx,
        lines=lines,
        kv=found.kv,
        gpu=found.gpu,
        host=found.host,
        features=_features(info, head),
        head=sizes,
        on_gpu=found.gpus != (),
    )


def _features(info: GgufInfo, head: Path | None) -> int:
    return feature_bytes(info, 0 if head is None else _TAPS)


def head_bytes(path: Path, pairs: int, *, on_gpu: bool) -> int:
    """Bytes of a draft head with a cache for so many pairs; 0 for one that cannot be read, which
    its loader will say. Of pickled heads only the files' sizes are looked at.
    """
    try:
        if path.suffix == ".gguf":
            return _gguf_bytes(path, pairs, on_gpu=on_gpu)
        files = checkpoint_files(path)[1]
        return sum(
            _tensor_bytes(file, pairs, on_gpu=on_gpu)
            if file.suffix == ".safetensors"
            else file.stat().st_size
            for file in files
        )
    except _UNREADABLE:
        return 0


def _gguf_bytes(path: Path, pairs: int, *, on_gpu: bool) -> int:
    header = read_header(path)
    on_host = ("token_embd.weight",) if on_gpu else ()
    weights = sum(tensor.n_bytes for tensor in header.tensors if tensor.name not in on_host)
    width = sum(
        tensor.shape[0]
        for tensor in header.tensors
        if tensor.name in ("blk.0.attn_k.weight", "blk.0.attn_v.weight")
    )
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    buffers = head_buffers(getattr(tokens, "length", 0), on_gpu=on_gpu)
    return weights + buffers + pairs * width * (2 if on_gpu else 4)


def _tensor_bytes(file: Path, pairs: int, *, on_gpu: bool) -> int:
    if not file.is_file():  # a pipe would be waited for
        raise ValueError("no file")
    with file.open("rb") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(min(size, 1 << 24)))
        there = stream.seek(0, 2)
    shapes = [tensor["shape"] for name, tensor in header.items() if name != "__metadata__"]
    if sum(map(prod, shapes)) > 8 * there:  # in no type
        raise ValueError("its tensors are larger than the file")
    return head_bytes_of(header, pairs, on_gpu=on_gpu)
