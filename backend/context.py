"""A llama.cpp context: the KV cache, tree batches, and what one decode gives.

Sequence 0 holds the committed text. A draft tree is decoded in one batch: every leaf has a
sequence, and a node carries the sequences of all leaves below it, so that each row attends exactly
to its own path. The first leaf's path uses sequence 0 itself (a chain needs no copies); the other
leaves' sequences share the committed cells through `seq_cp`. `seq_cp` and `seq_rm` scan the whole
cache, so only the sequences of the plan are touched, and they keep their prefix between cycles.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from specfit.planner import DraftTree, FloatArray

from . import library
from .errors import SpecfitError
from .model import Model
from .observer import Observer

Features = NDArray[np.float32]

BATCH = 512
# Rows of the largest tree that is verified, and so the number of leaves it can have.
TREE_LIMIT = 64


class Context:
    """KV cache and batches for one conversation at a time.

    taps:     layers whose inputs are wanted after a decode (the head's features).
    observer: told the experts of a decode when armed.
    drafting: whether trees will be decoded; without, this is a plain one-sequence context.
    """

    def __init__(
        self,
        model: Model,
        *,
        ctx: int,
        threads: int,
        taps: Sequence[int] = (),
        observer: Observer | None = None,
        drafting: bool = False,
    ) -> None:
        self.model = model
        self.ctx = ctx
        self.threads = threads
        self.taps = tuple(taps)
        self.observer = observer
        n_seq = TREE_LIMIT if drafting else 1
        params = llama.llama_context_default_params()
        # A tree takes a cell a row, also for the rows that will be dropped again.
        params.n_ctx = ctx + (TREE_LIMIT if drafting else 0)
        params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max = n_seq
        params.n_outputs_max = n_seq
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        if observer is not None:
            params.cb_eval = observer.callback
            params.cb_eval_user_data = observer.address
        library.take_errors()
        handle = llama.llama_init_from_model(model.handle, params)
        if handle is None:
            raise SpecfitError(
                f"llama.cpp cannot make a context of {ctx} tokens: {library.take_errors()}; "
                "a smaller -c needs less memory"
            )
        self.handle = handle
        self._memory = llama.llama_get_memory(handle)
        self._finalizer = weakref.finalize(self, llama.llama_free, handle)
        for tap in self.taps:
            library.set_layer_input(handle, tap, True)
        self._feature_places: list[int] = []
        self._features: Features | None = None
        self._batch = _Batch(BATCH, n_seq)
        self.n_past = 0
        # How much of the committed text each sequence holds; sequence 0 holds all of it.
        self._held = [0] * n_seq
        self._sequences = np.ones((1, 1), np.bool_)

    def close(self) -> None:
        self._finalizer()

    def decode_prompt(
        self, tokens: Sequence[int], goes_on: Callable[[], bool] = lambda: True
    ) -> None:
        """Appends `tokens` to sequence 0, in batches; the last one's logits become row -1.

        goes_on: asked before every batch; False ends it there, with `n_past` saying how far it got.
        """
        for start in range(0, len(tokens), BATCH):
            if not goes_on():
                break
            chunk = tokens[start : start + BATCH]
            last = start + BATCH >= len(tokens)
            self._batch.fill_chain(chunk, self.n_past, output_last=last)
            self._decode()
            self.n_past += len(chunk)

    def decode_token(self, token: int) -> None:
        """Decodes one token and commits it: plain decoding. Its logits become row 0."""
        self._batch.fill_one(token, self.n_past)
        self._decode()
        self.n_past += 1

    def decode_tree(self, tree: DraftTree) -> None:
        """Decodes every node of `tree` behind the committed text, all with logits."""
        self._sequences = leaf_sequences(tree)
        for seq in range(1, len(tree.leaves)):
            self._share_prefix(seq)
        self._batch.fill_tree(tree, self.n_past, self._sequences)
        self._decode()

    def commit(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Keeps the cells of `path` of the tree just decoded as committed text, drops the others.

        path: nodes from the root on.
        """
        kept = self.n_past + len(path)
        memory, sequences = self._memory, self._sequences
        owner = int(sequences[path[-1]].argmax())  # any leaf below the path's end will do
        shared = int(sequences[path, 0].sum())  # nodes of the path that sequence 0 holds too
        llama.llama_memory_seq_rm(memory, 0, self.n_past + shared, -1)
        if owner != 0:
            llama.llama_memory_seq_cp(memory, owner, 0, self.n_past + shared, kept)
        for seq in range(1, len(tree.leaves)):
            llama.llama_memory_seq_rm(memory, seq, self.n_past, -1)
        self.n_past = kept

    def truncate(self, n: int) -> None:
        """Forgets everything from position `n` on, a tree that was never committed included."""
        self.n_past = min(self.n_past, n)
        llama.llama_memory_seq_rm(self._memory, -1, self.n_past, -1)
        self._held = [min(held, self.n_past) for held in self._held]

    def features(self, rows: int) -> Features:
        """float32 [rows, taps, n_embd]: inputs of the tapped layers in the last decode.

        A view of llama.cpp's own memory, where it can be: the next decode overwrites it.
        """
        inputs = [library.get_layer_input(self.handle, tap) for tap in self.taps]
        places = [ctypes.addressof(layer.contents) for layer in inputs]
        if places != self._feature_places:
            self._feature_places, self._features = places, self._feature_view(inputs, places)
        if self._features is not None:
            return self._features[:rows]
        shape = (rows, self.model.n_embd)
        return np.stack([np.ctypeslib.as_array(layer, shape) for layer in inputs], 1)

    def _feature_view(
        self, inputs: Sequence[ctypes._Pointer[ctypes.c_float]], places: Sequence[int]
    ) -> Features | None:
        """[BATCH, taps, n_embd]: all tapped layers as one array, if llama.cpp laid them out so."""
        size = BATCH * self.model.n_embd
        if any(place != places[0] + 4 * size * i for i, place in enumerate(places)):
            return None
        layers = np.ctypeslib.as_array(inputs[0], (len(inputs), BATCH, self.model.n_embd))
        return layers.transpose(1, 0, 2)

    def logits(self, row: int) -> NDArray[np.float32]:
        """float32 [n_vocab]: logits of a row of the last decode.

        llama.cpp's own memory: the next decode overwrites it.
        """
        pointer = llama.llama_get_logits_ith(self.handle, row)
        return np.ctypeslib.as_array(pointer, (self.model.n_vocab,))

    def _share_prefix(self, seq: int) -> None:
        """Makes sequence `seq` hold the committed text."""
        if self._held[seq] < self.n_past:
            llama.llama_memory_seq_cp(self._memory, 0, seq, self._held[seq], self.n_past)
            self._held[seq] = self.n_past

    def _decode(self) -> None:
        status = llama.llama_decode(self.handle, self._batch.struct)
        if status != 0:
            reason = library.take_errors() or f"status {status}"
            raise SpecfitError(f"llama.cpp failed to decode at token {self.n_past}: {reason}")
        llama.llama_synchronize(self.handle)  # a GPU may still work; times are of whole batches


def leaf_sequences(tree: DraftTree) -> NDArray[np.bool_]:
    """bool [n, leaves]: whether a node lies on the path to a leaf, so carries its sequence.

    Leaves are numbered by falling path probability, so that sequence 0, which needs no copies when
    its path is accepted, is the likeliest.
    """
    chances: FloatArray = tree.path_products(tree.probs)
    leaves = sorted(tree.leaves.tolist(), key=lambda leaf: (-chances[leaf], leaf))
    carries = np.zeros((len(tree), len(leaves)), np.bool_)
    for seq, leaf in enumerate(leaves):
        carries[tree.path(leaf), seq] = True
    return carries


class _Batch:
    """A llama_batch over numpy arrays, so that filling it is a few array writes."""

    def __init__(self, rows: int, n_seq: int) -> None:
        self.tokens = np.zeros(rows, np.int32)
        self.positions = np.zeros(rows, np.int32)
        self.logits = np.zeros(rows, np.int8)
        self._n_seq_id = np.ones(rows, np.int32)
        self._seq_ids = np.zeros((rows, n_seq), np.int32)
        row_addresses = self._seq_ids.ctypes.data + np.arange(rows) * self._seq_ids.strides[0]
        self._seq_pointers = row_addresses.astype(np.uintp)
        self.struct = llama.llama_batch()
        for name, array in (
            ("token", self.tokens),
            ("pos", self.positions),
            ("n_seq_id", self._n_seq_id),
            ("seq_id", self._seq_pointers),
            ("logits", self.logits),
        ):
            kind = dict(llama.llama_batch._fields_)[name]
            setattr(self.struct, name, ctypes.cast(array.ctypes.data, kind))

    def fill_one(self, token: int, position: int) -> None:
        self.struct.n_tokens = 1
        self.tokens[0] = token
        self.positions[0] = position
        self._n_seq_id[0] = 1
        self._seq_ids[0, 0] = 0
        self.logits[0] = 1

    def fill_chain(self, tokens: Sequence[int], start: int, *, output_last: bool) -> None:
        n = len(tokens)
        self.struct.n_tokens = n
        self.tokens[:n] = tokens
        self.positions[:n] = range(start, start + n)
        self._n_seq_id[:n] = 1
        self._seq_ids[:n, 0] = 0
        self.logits[:n] = 0
        self.logits[n - 1] = output_last

    def fill_tree(self, tree: DraftTree, start: int, sequences: NDArray[np.bool_]) -> None:
        n = len(tree)
        self.struct.n_tokens = n
        self.tokens[:n] = tree.tokens
        self.positions[:n] = start + tree.depths
        self.logits[:n] = 1
        for row, carried in enumerate(sequences):
            ids = np.flatnonzero(carried)
            self._n_seq_id[row] = len(ids)
            self._seq_ids[row, : len(ids)] = ids
