"""What a context of a model will take, as llama.cpp says without allocating it.

With `no_alloc` llama.cpp reads a model's header and reserves its graphs for the very placement,
but takes no memory for weights, keys and values; what it logs tells the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import llama_cpp.llama_cpp as llama

from specfit.models.gguf_info import GgufInfo

from . import last_words, library
from .context import BATCH, context_params
from .devices import gpus_named
from .errors import SpecfitError
from .model import model_params
from .plan import Gpu, Placement
from .runtime import Runtime

_MIB = 1 << 20
_CELLS = re.compile(r"size = +([\d.]+) MiB \( *\d+ cells")
_COMPUTE = re.compile(r"reserve: +(\S+) compute buffer size = +([\d.]+) MiB")
_OUTPUT = re.compile(r" output buffer size = +([\d.]+) MiB")


@dataclass(frozen=True)
class Probed:
    """Bytes. gpus: that llama.cpp would use, in its order, with what is free. kv: all keys and
    values. gpu: buffers to compute in, on the GPU that has most of them. host: in host memory."""

    gpus: tuple[Gpu, ...]
    kv: int
    gpu: int
    host: int


def probe(
    info: GgufInfo, placement: Placement, runtime: Runtime, ctx: int, lines: int, *, drafting: bool
) -> Probed:
    """Takes some 0.2 s for a large vocabulary.

    Raises SpecfitError, with llama.cpp's reason, for what it would refuse to load or to run.
    """
    runtime.prepare()
    params, kept = model_params(placement, runtime)
    params.no_alloc = True
    params.load_mode = llama.LLAMA_LOAD_MODE_NONE
    library.take_errors()
    last_words.about(info.path)
    with library.listening() as lines_logged:
        model = llama.llama_model_load_from_file(str(info.path).encode(), params)
        del kept
        if model is None:
            raise SpecfitError(f"llama.cpp cannot load {info.path}: {library.take_errors()}")
        try:
            context = llama.llama_init_from_model(
                model, context_params(runtime, ctx, lines, drafting=drafting)
            )
            if context is None:
                raise SpecfitError(
                    f"llama.cpp cannot make a context of {lines * ctx} tokens: "
                    f"{library.take_errors()}"
                )
            llama.llama_free(context)
        finally:
            llama.llama_model_free(model)
    return read_log(lines_logged)


def read_log(lines: Iterable[str]) -> Probed:
    """What llama.cpp logged of a model and a context."""
    lines = list(lines)
    kv = host = 0.0
    computing: dict[str, float] = {}
    for line in lines:
        if found := _COMPUTE.search(line):
            computing[found[1]] = float(found[2])
        elif found := _CELLS.search(line):
            kv += float(found[1])
        elif found := _OUTPUT.search(line):
            host += float(found[1])
    # "CPU", and the pinned memory of some GPU, like "CUDA_Host".
    on_host = {name for name in computing if name.startswith("CPU") or name.endswith("_Host")}
    host += sum(computing[name] for name in on_host)
    on_gpu = max((size for name, size in computing.items() if name not in on_host), default=0.0)
    return Probed(gpus_named(lines), int(kv * _MIB), int(on_gpu * _MIB), int(host * _MIB))


def feature_bytes(info: GgufInfo, taps: int) -> int:
    """What handing out the inputs of so many layers takes, once in the graph and once on the
    host."""
    return taps * BATCH * info.n_embd * 4
