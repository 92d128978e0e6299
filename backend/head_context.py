"""The llama.cpp context of a draft head: pairs in, hidden states and logits out.

The head's graph shares the target's embeddings, so its context is told the target's (`ctx_other`).
An encoder fuses features; the decoder takes a token and a state for each row, which llama_batch
carries side by side. Of the decoder's rows all have outputs or none: its graph computes every row's
logits, and llama.cpp hands out the first ones.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from . import last_words, library
from .context import Context
from .errors import SpecfitError
from .head_file import HeadFile
from .hostmemory import host_memory
from .runtime import Runtime

Floats = NDArray[np.float32]
_BYTES = ctypes.POINTER(ctypes.c_uint8)

# Rows of a batch, and sequences: one for each line, and for each path of a tree, of which a level
# needs one for each of its nodes at most. llama.cpp sets memory aside for the logits of all rows,
# which a vocabulary of 152,000 makes 600 KB a row, and wants no fewer rows than sequences.
ROWS = 64
# Cells for the nodes of one line's tree, of which the published settings expand 71.
TREE_CELLS = 128

_set_states = library.symbol(
    "_Z26llama_set_embeddings_nextnP13llama_contextbb",
    "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
    restype=None,
    argtypes=[ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool],
)
_get_states = library.symbol(
    "_Z26llama_get_embeddings_nextnP13llama_context",
    "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
    restype=ctypes.c_void_p,
    argtypes=[ctypes.c_void_p],
)


class HeadModel:
    """A head's weights in llama.cpp. Close it, or let it be collected, to free them."""

    def __init__(self, file: HeadFile, runtime: Runtime, *, on_gpu: bool) -> None:
        """on_gpu: whether its layer is to be computed on the GPU. Raises SpecfitError."""
        self.file = file
        self.runtime = runtime
        self.on_gpu = on_gpu
        params = llama.llama_model_default_params()
        params.n_gpu_layers = 2 if on_gpu else 0  # its layer, and the output
        kept = runtime.set_model(params, ())
        if runtime.split_mode != "none":  # one layer is not worth a second device
            params.split_mode, params.main_gpu = llama.LLAMA_SPLIT_MODE_NONE, 0
        library.take_errors()
        last_words.about(file.path)
        handle = llama.llama_model_load_from_file(str(file.path).encode(), params)
        del kept
        if handle is None:
            raise SpecfitError(
                f"llama.cpp cannot load the draft head {file.path}: {library.take_errors()}"
            )
        self.handle = handle
        self._finalizer = weakref.finalize(self, llama.llama_model_free, handle)

    def close(self) -> None:
        self._finalizer()


class HeadContext:
    """A cache and batches for the heads of all lines of `target`."""

    def __init__(self, model: HeadModel, target: Context, threads: int) -> None:
        """Raises SpecfitError if there is no memory for it."""
        self.model = model
        self.lines = target.lines
        params = llama.llama_context_default_params()
        params.n_ctx = target.lines * (target.ctx + TREE_CELLS)
        params.n_batch = params.n_ubatch = params.n_outputs_max = ROWS
        params.n_seq_max = ROWS
        params.kv_unified = True
        params.no_perf = True
        params.n_threads = params.n_threads_batch = threads
        if not model.on_gpu:
            # A CPU's flash attention and float16 lose digits, and gain nothing in one layer.
            params.type_k = params.type_v = Type.F32
            params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.ctx_other = target.handle
        model.file.set_rope(params, model.runtime.rope.stretch(target.model.info))
        library.take_errors()
        handle = llama.llama_init_from_model(model.handle, params)
        if handle is None:
            raise SpecfitError(
                f"llama.cpp cannot make a context for the draft head {model.file.path}: "
                f"{library.take_errors()}"
            )
        self.handle = handle
        self._finalizer = weakref.finalize(self, llama.llama_free, handle)
        _set_states(handle, True, True)
        self._memory = llama.llama_get_memory(handle)
        self._width, self._n_vocab = model.file.width, model.file.n_vocab
        self._batch = _Batch(ROWS, self._width)
        self._features = _Batch(ROWS, model.file.n_features)
        # Of the sequences that are no line's: the line whose pairs each holds, and how many.
        self.spare = dict.fromkeys(range(target.lines, params.n_seq_max), (0, 0))
        self.in_trees: set[int] = set()  # those of them that lines' trees use now

    def close(self) -> None:
        self._finalizer()

    def encode(self, features: Floats, first: int, sequence: int) -> Floats:
        """float32 [m, width], llama.cpp's own memory: features [m, 3 * target width], fused.

        first: position behind what the sequence holds; the graph reads none, but llama.cpp checks.
        """
        m, batch = len(features), self._features
        batch.fill(m, features)
        batch.positions[:m] = np.arange(first, first + m)
        batch.sequences[:m] = sequence
        self._check(llama.llama_encode(self.handle, self._features.without_tokens))
        return library.floats(_get_states(self.handle), m, self._width)

    def decode(
        self,
        tokens: NDArray[Any],
        states: Floats,
        first: int,
        sequences: Sequence[int] | NDArray[np.int32] | int,
        *,
        chain: bool,
        outputs: bool,
    ) -> tuple[Floats, Floats] | None:
        """Pairs of tokens [m] and states [m, width], at most ROWS, each in a sequence of its own at
        position `first`, or, a chain, from there on in one.

        Returns the next states [m, width] and logits [m, vocabulary], llama.cpp's own memory; None
        without outputs. Raises SpecfitError.
        """
        m, batch = len(tokens), self._batch
        batch.fill(m, states)
        batch.tokens[:m] = tokens
        batch.positions[:m] = np.arange(first, first + m) if chain else first
        batch.sequences[:m] = sequences
        batch.outputs[:m] = outputs
        self._check(llama.llama_decode(self.handle, batch.struct))
        if not outputs:
            return None
        logits = library.get_logits(self.handle)  # which waits for a GPU
        states = library.floats(_get_states(self.handle), m, self._width)
        return states, library.floats(logits, m, self._n_vocab)

    def share(self, source: int, to: int, start: int, end: int) -> None:
        """Makes the pairs from position start to end of one sequence another's as well."""
        llama.llama_memory_seq_cp(self._memory, source, to, start, end)

    def drop(self, sequence: int, start: int) -> None:
        """Forgets a sequence's pairs from a position on; -1 is all sequences."""
        llama.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def synchronize(self) -> None:
        llama.llama_synchronize(self.handle)

    def state(self, sequence: int) -> NDArray[np.uint8]:
        """Its keys and values. Raises SpecfitError if there is no memory for them."""
        size = llama.llama_state_seq_get_size(self.handle, sequence)
        if size > host_memory().free:
            raise SpecfitError(f"its {size / 2**20:.0f} MiB are more memory than is free")
        state = np.empty(size, np.uint8)
        place = state.ctypes.data_as(_BYTES)
        return state[: llama.llama_state_seq_get_data(self.handle, place, size, sequence)]

    def restore(self, state: NDArray[np.uint8], sequence: int) -> int:
        """Makes it that of an empty sequence; returns how many pairs that has then. It must be one
        that llama.cpp gave. Raises SpecfitError if it is of another kind of cache."""
        state = np.ascontiguousarray(state)
        place = state.ctypes.data_as(_BYTES)
        library.take_errors()
        if not llama.llama_state_seq_set_data(self.handle, place, len(state), sequence):
            self.drop(sequence, -1)
            raise SpecfitError(f"is none of this draft head's: {library.take_errors()}")
        return int(llama.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def _check(self, status: int) -> None:
        if status != 0:
            reason = library.take_errors() or f"status {status}"
            raise SpecfitError(f"llama.cpp failed to run the draft head: {reason}")


class _Batch:
    """A llama_batch over numpy arrays, each row in one sequence."""

    def __init__(self, rows: int, width: int) -> None:
        self.tokens = np.zeros(rows, np.int32)
        self.positions = np.arange(rows, dtype=np.int32)
        self.sequences = np.zeros(rows, np.int32)
        self.outputs = np.ones(rows, np.int8)
        self._n_sequences = np.ones(rows, np.int32)
        self._states = np.zeros((rows, width), np.float32)
        places = self.sequences.ctypes.data + 4 * np.arange(rows)
        self._places = places.astype(np.uintp)
        self.struct = self._struct(self.tokens)
        self.without_tokens = self._struct(None)

    def _struct(self, tokens: NDArray[np.int32] | None) -> Any:
        struct = llama.llama_batch()
        for name, array in (
            ("token", tokens),
            ("embd", self._states),
            ("pos", self.positions),
            ("n_seq_id", self._n_sequences),
            ("seq_id", self._places),
            ("logits", self.outputs),
        ):
            if array is not None:
                kind = dict(llama.llama_batch._fields_)[name]
                setattr(struct, name, ctypes.cast(array.ctypes.data, kind))
        return struct

    def fill(self, m: int, states: Floats) -> None:
        self.struct.n_tokens = self.without_tokens.n_tokens = m
        self._states[:m] = states
