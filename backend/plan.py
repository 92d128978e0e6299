"""Values of the placement that fits: what a model takes, what a machine has, and the plan."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from specfit.models.gguf_info import GgufInfo

GIB = 1 << 30
_LAYER = re.compile(r"blk\.(\d+)\.")
_EXPERTS = re.compile(r"ffn_(up|down|gate|gate_up)_(ch|)exps")


@dataclass(frozen=True)
class Placement:
    """Where the weights go: layers on GPUs, and how many layers' experts stay on the host.

    split: of the layers on GPUs, how many each one takes; empty leaves it to llama.cpp.
    cached: all experts lie on the host, and those in use in a cache on the GPU too.
    """

    gpu_layers: int
    n_cpu_moe: int
    split: tuple[float, ...] = ()
    cached: bool = False

    def first_gpu_layer(self, n_layers: int) -> int:
        """Of so many, the first whose attention is on a GPU; n_layers if none is."""
        return max(0, n_layers + 1 - self.gpu_layers) if self.gpu_layers else n_layers

    def expert_layer_weights(self, n_layers: int) -> list[float]:
        """What an expert of each layer costs, relative to others: nothing where it lies on the GPU.

        Where all layers are alike, all count, and the measured price says how much.
        """
        first = max(self.n_cpu_moe, self.first_gpu_layer(n_layers))
        on_host = [layer < first for layer in range(n_layers)]
        return [1.0] * n_layers if not any(on_host) else [float(host) for host in on_host]


@dataclass(frozen=True)
class Weights:
    """Bytes. table: token embeddings. layers: of each, less its routed experts. experts: those, of
    each layer. output: what makes logits, counted also where it is the table. count: parameters."""

    table: int
    layers: tuple[int, ...]
    experts: tuple[int, ...]
    output: int
    tied: bool = False
    count: int = 0

    @property
    def total(self) -> int:
        return self.table + sum(self.layers) + sum(self.experts) + self.output * (not self.tied)

    def scaled(self, factor: float) -> Weights:
        """The same model at another precision, roughly."""
        return replace(
            self,
            table=int(self.table * factor),
            layers=tuple(int(size * factor) for size in self.layers),
            experts=tuple(int(size * factor) for size in self.experts),
            output=int(self.output * factor),
        )


@dataclass(frozen=True)
class Needs:
    """What runs beside the weights, in bytes.

    kv: keys and values of all layers, for `lines` of `ctx` tokens. gpu, host: buffers to compute
    in, on each GPU that has layers and in host memory. gpu_head, host_head: the draft head, on the
    first GPU or on the host, where there are GPU layers; without them all of it is `plain_head`.
    """

    ctx: int
    lines: int
    kv: int
    gpu: int = 0
    host: int = 0
    gpu_head: int = 0
    host_head: int = 0
    plain_head: int = 0


@dataclass(frozen=True)
class Gpu:
    """free: bytes that may be used, those included that `fit` leaves free."""

    name: str
    free: int


@dataclass(frozen=True)
class Machine:
    """Bytes of host memory, free and in all. gpus: in llama.cpp's order. shared: they use the
    host's memory."""

    ram: int
    ram_total: int
    gpus: tuple[Gpu, ...] = ()
    shared: bool = False

    def within(self, budget: int | None) -> Machine:
        """This machine with no more than `budget` bytes of GPU memory, taken from the first on."""
        if budget is None:
            return self
        gpus = []
        for gpu in self.gpus:
            gpus.append(replace(gpu, free=min(gpu.free, budget)))
            budget -= gpus[-1].free
        return replace(self, gpus=tuple(gpus))


@dataclass(frozen=True)
class Wish:
    """What the user asked for; None: as much on the GPUs as fits.

    split: how llama.cpp is to share layers between GPUs. pooled: it splits every tensor, so that
    only their memory together counts. resident: weights in host memory are to stay there.
    expert_cache: bytes on the GPU for a cache of experts; None: what is left there, where not all
    experts fit.
    """

    gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    split: tuple[float, ...] = ()
    pooled: bool = False
    resident: bool = False
    expert_cache: int | None = 0


@dataclass(frozen=True)
class Part:
    """Bytes of one part of what is loaded, and a word about it."""

    name: str
    gpu: int
    host: int
    note: str = ""


@dataclass(frozen=True)
class Plan:
    """gpus: bytes on each. notice: a sentence for the user, or nothing. cache: bytes on the GPU for
    the experts in use."""

    placement: Placement
    machine: Machine
    lines: int
    parts: tuple[Part, ...]
    gpus: tuple[int, ...]
    notice: str = ""
    cache: int = 0

    @property
    def gpu(self) -> int:
        return sum(self.gpus)

    @property
    def host(self) -> int:
        return sum(part.host for part in self.parts)


class Tensor(Protocol):
    """Of a model's file, or of one that is only described."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def n_bytes(self) -> int: ...


def weights_of(info: GgufInfo) -> Weights:
    """Where the bytes of a model's file belong."""
    return sorted_weights(info.tensors, info.n_layers)


def sorted_weights(tensors: Sequence[Tensor], n_layers: int) -> Weights:
    """Where the bytes of these tensors, named as in GGUF files, belong."""
    layers, experts = [0] * n_layers, [0] * n_layers
    table = output = 0
    tied = True
    for tensor in tensors:
        layer = _LAYER.match(tensor.name)
        if layer is not None and int(layer[1]) < n_layers:
            group = experts if _EXPERTS.search(tensor.name) else layers
            group[int(layer[1])] += tensor.n_bytes
        elif tensor.name.startswith("output"):
            output += tensor.n_bytes
            tied = tied and tensor.name != "output.weight"
        else:
            table += tensor.n_bytes
    if tied:  # llama.cpp makes logits with the table, a copy of it on a GPU
        output += next((t.n_bytes for t in tensors if t.name == "token_embd.weight"), 0)
    count = sum(prod(tensor.shape) for tensor in tensors)
    return Weights(table, tuple(layers), tuple(experts), output, tied, count)


def needs_of(
    *,
    ctx: int,
    lines: int,
    kv: int,
    gpu: int,
    host: int,
    features: int,
    head: tuple[int, int],
    on_gpu: bool,
) -> Needs:
    """From what was measured, or reckoned, of the parts.

    gpu, host: buffers to compute in. features: of the layers' inputs that a head reads.
    head: its bytes on a GPU and on the host. on_gpu: whether there is a GPU that llama.cpp can use.
    """
    return Needs(
        ctx=ctx,
        lines=lines,
        kv=kv,
        gpu=gpu + features if on_gpu else 0,
        host=host + features * (1 if on_gpu else 2),
        gpu_head=head[0] if on_gpu else 0,
        host_head=0 if on_gpu else head[1],
        plain_head=head[1],
    )


_OVER_VOCABULARY = ("t2d", "embed_tokens.weight", "lm_head.weight")
# Rows of a head's batch, whose logits over the whole vocabulary lie in the buffer to compute in,
# and copied in host memory; see `head_context.ROWS`.
_HEAD_ROWS = 64


def head_buffers(vocab: int, *, on_gpu: bool) -> int:
    """Bytes that a head computes in. vocab: of the target."""
    return _HEAD_ROWS * vocab * 4 * (1 if on_gpu else 2)


def head_bytes_of(tensors: Mapping[str, Mapping[str, Any]], pairs: int, *, on_gpu: bool) -> int:
    """Bytes of a draft head with a cache for so many pairs. tensors: as a safetensors header has
    them, "dtype" and "shape" by name.

    llama.cpp is given it in float16 but for `fc`; on a GPU its own embeddings stay on the host. The
    CPU keeps keys and values in float32.
    """
    vocab = max(
        (tensors[name]["shape"][0] for name in _OVER_VOCABULARY if name in tensors), default=0
    )
    total = head_buffers(vocab, on_gpu=on_gpu)
    for name, tensor in tensors.items():
        if name == "__metadata__":
            continue
        if "embed_tokens" in name and on_gpu:
            continue
        each = 4 if name.endswith("fc.weight") or len(tensor["shape"]) == 1 else 2
        total += prod(tensor["shape"]) * each
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            total += pairs * tensor["shape"][0] * (2 if on_gpu else 4)
    return total
