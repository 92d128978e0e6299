"""The library by its C functions (`expert_cache.h`), in numpy's terms."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specfit.planner import FloatArray

from .. import library, native
from ..errors import SpecfitError

_FOLDER = Path(__file__).parent
NATIVE = native.Native(
    "expert-cache",
    "the expert cache is off",
    "C++",
    tuple(sorted(_FOLDER.glob("*.cpp"))),
    tuple(sorted(_FOLDER.glob("*.h"))),
    ("-std=c++17", "-fvisibility=hidden", "-pthread"),
    links=True,
)
# From 32 rows on llama.cpp has the GPU compute on weights that it copies there (op offload).
MAX_ROWS = 31
EXPERTS = rb"\.ffn_(up|gate|down)_exps\.weight$"


class _Options(ctypes.Structure):
    """xc_options."""

    _fields_ = (
        ("device", ctypes.c_char_p),
        ("ggml_version", ctypes.c_char_p),
        ("n_layers", ctypes.c_int32),
        ("n_experts", ctypes.c_int32),
        ("n_used", ctypes.c_int32),
        ("max_rows", ctypes.c_int32),
        ("events", ctypes.c_int32),
        ("end_sync", ctypes.c_int32),
        ("shared", ctypes.c_int32),
    )


class BufferOverride(ctypes.Structure):
    """llama_model_tensor_buft_override, which the binding leaves out."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


@dataclass(frozen=True)
class Counters:
    """Since the model was loaded, or the last `reset`.

    hits, misses: int64 [layer, expert], pairs of a row and an expert. blocks: layers computed
    through the cache. unmatched: multiplications that no known pattern surrounds, computed on the
    CPU. The last four, in ns, are of the blocks: until the router's choice was on the host,
    computing misses, waiting for the GPU at the end, and altogether.
    """

    hits: NDArray[np.int64]
    misses: NDArray[np.int64]
    blocks: int
    unmatched: int
    uploads: int
    upload_bytes: int
    graphs_built: int
    fetch_ns: int
    cpu_ns: int
    wait_ns: int
    block_ns: int

    @property
    def uses(self) -> NDArray[np.int64]:
        return self.hits + self.misses


_TOTALS = [field.name for field in dataclasses.fields(Counters)[2:]]


class _Totals(ctypes.Structure):
    """xc_totals."""

    _fields_ = tuple((name, ctypes.c_int64) for name in _TOTALS)


class ExpertCache:
    """Slots on one GPU for the experts of one model; the package's docstring has the order of use.

    Raises SpecfitError, with a sentence for the user, if it cannot be used here.
    """

    def __init__(
        self,
        device: str,
        n_layers: int,
        n_experts: int,
        n_used: int,
        max_rows: int = MAX_ROWS,
        *,
        ggml_version: str | None = None,
        events: bool = True,
        end_sync: bool = True,
        shared: bool = True,
    ) -> None:
        """device: as llama.cpp names it ("CUDA0"), with all layers but their experts on it.

        The others are for tests. ggml_version: that ggml should have. events: whether the GPU's are
        used. shared: whether hits are computed on llama.cpp's own stream, so that the GPU need not
        wait for the host behind them. end_sync: whether a block on a stream of its own waits for
        the GPU before its results are read; without that they are wrong now and then."""
        library.start()
        self.shape = n_layers, n_experts
        self._native = _functions()
        options = _Options(
            device.encode(),
            ggml_version.encode() if ggml_version else None,
            n_layers,
            n_experts,
            n_used,
            max_rows,
            events,
            end_sync,
            shared,
        )
        if not self._native.xc_open(ctypes.byref(options)):
            raise SpecfitError(self.trouble() or "the expert cache is off")

    def override(self) -> ctypes.Array[BufferOverride]:
        """What llama_model_params.tensor_buft_overrides is to point to while the model is loaded;
        it has to live as long."""
        return experts_in(self._native.xc_buffer_type())

    @property
    def expert_bytes(self) -> NDArray[np.int64]:
        """int64 [layer]: of one expert, 0 for layers that have none. After the model was loaded."""
        sizes = np.zeros(self.shape[0], np.int64)
        self._native.xc_expert_bytes(sizes.ctypes.data)
        return sizes

    def allocate(self, budget: int) -> NDArray[np.int32]:
        """int32 [layer]: the slots that `budget` bytes of GPU memory hold, all empty.

        Fewer, or none, where the GPU has less memory than that; `trouble` then says so.
        """
        slots = slots_within(budget, self.expert_bytes, self.shape[1])
        self._native.xc_allocate(slots.ctypes.data)
        return slots

    def swap(self, layer: int, incoming: int, outgoing: int = -1) -> bool:
        """Begins to upload `incoming` into the slot of `outgoing`, or an empty one.

        False, and nothing done, if there is no such slot or `incoming` is there already.
        """
        return bool(self._native.xc_swap(layer, incoming, outgoing))

    def commit(self) -> bool:
        """Waits for what `swap` began, which counts from now on. False: some uploads failed, and
        their slots are given up."""
        return bool(self._native.xc_commit())

    @property
    def residency(self) -> NDArray[np.bool_]:
        """bool [layer, expert]: those that the next decode finds on the GPU."""
        resident = np.zeros(self.shape, np.bool_)
        self._native.xc_residency(resident.ctypes.data)
        return resident

    def counters(self) -> Counters:
        hits, misses = np.zeros(self.shape, np.int64), np.zeros(self.shape, np.int64)
        totals = _Totals()
        self._native.xc_counters(hits.ctypes.data, misses.ctypes.data, ctypes.byref(totals))
        return Counters(hits, misses, **{name: getattr(totals, name) for name in _TOTALS})

    def take_uses(self) -> tuple[FloatArray, NDArray[np.int64]]:
        """Since `reset`, which this is: float64 [layer, expert], the uses of every expert; int64
        [layer, 3], hits, experts that were missing, and the uses of those."""
        uses, sums = np.empty(self.shape), np.empty((self.shape[0], 3), np.int64)
        self._native.xc_take_uses(uses.ctypes.data, sums.ctypes.data)
        return uses, sums

    def reset(self) -> None:
        self._native.xc_reset_counters()

    def trouble(self) -> str | None:
        """The oldest sentence for the user that was not read yet."""
        text = ctypes.create_string_buffer(512)
        return text.value.decode() if self._native.xc_trouble(text, len(text)) else None


def experts_in(
    buffer_type: int, layers: Sequence[int] | None = None
) -> ctypes.Array[BufferOverride]:
    """Overrides that place experts, all or those of some layers, in buffers of that type."""
    which = [b""] if layers is None else [rb"^blk\.%d" % layer for layer in layers]
    rows = [BufferOverride(layer + EXPERTS, buffer_type) for layer in which]
    return (BufferOverride * (len(rows) + 1))(*rows, BufferOverride(None, None))


def slots_within(budget: int, expert_bytes: NDArray[np.int64], n_experts: int) -> NDArray[np.int32]:
    """int32 [layer]: as many slots for each layer that has experts, what is left going to the
    first ones. A layer with slots takes the room of one more, which is all zero."""
    routed = expert_bytes > 0
    slots = np.where(routed, max(0, budget // max(1, int(expert_bytes.sum())) - 1), 0)
    left = budget - int(((slots + 1) * expert_bytes).sum())
    if slots.any():
        for layer in np.flatnonzero(routed):
            if expert_bytes[layer] <= left:
                slots[layer] += 1
                left -= int(expert_bytes[layer])
    return np.minimum(slots, n_experts).astype(np.int32)


@functools.cache
def _functions() -> ctypes.CDLL:
    functions = native.loaded(NATIVE)
    pointer, number, yes = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool
    for name, result, arguments in (
        ("xc_open", yes, [pointer]),
        ("xc_buffer_type", pointer, []),
        ("xc_expert_bytes", None, [pointer]),
        ("xc_allocate", None, [pointer]),
        ("xc_swap", yes, [number, number, number]),
        ("xc_commit", yes, []),
        ("xc_residency", None, [pointer]),
        ("xc_counters", None, [pointer, pointer, pointer]),
        ("xc_reset_counters", None, []),
        ("xc_take_uses", None, [pointer, pointer]),
        ("xc_trouble", yes, [pointer, ctypes.c_size_t]),
    ):
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    return functions
