"""A llama.cpp context: the KV cache, tree batches, and what one decode gives.

Sequence i holds the committed text of line i. Draft trees are decoded in one batch: every leaf has
a sequence, and a node carries the sequences of all leaves below it, so that each row attends
exactly to its own path. The likeliest leaf's path uses the line's sequence itself (a chain needs no
copies); the other leaves' sequences share the committed cells through `seq_cp`. `seq_cp` and
`seq_rm` scan the whole cache, so only the sequences of the plan are touched, and they keep their
prefix between cycles.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from specfit.planner import DraftTree, IntArray

from . import library
from .errors import SpecfitError
from .hostmemory import host_memory
from .model import Model
from .observer import Observer
from .runtime import Runtime

Features = NDArray[np.float32]
_BYTES = ctypes.POINTER(ctypes.c_uint8)

BATCH = 512
# Most rows that are verified at once, and so the number of leaves that trees can have.
TREE_LIMIT = 64


class Context:
    """KV cache and batches for one or several lines of text at a time.

    ctx:      tokens that each line may have.
    lines:    how many, fewer than TREE_LIMIT.
    taps:     layers whose inputs can be wanted after a decode (the head's features).
    observer: told the experts of a decode when armed.
    drafting: whether trees will be decoded; without, there is one sequence a line.
    n_past:   tokens of committed text in the cache, of each line.
    """

    def __init__(
        self,
        model: Model,
        *,
        ctx: int,
        threads: int,
        lines: int = 1,
        taps: Sequence[int] = (),
        observer: Observer | None = None,
        drafting: bool = False,
    ) -> None:
        self.model = model
        self.ctx = ctx
        self.lines = lines
        self.threads = threads
        self.taps = tuple(taps)
        self.observer = observer
        params = context_params(model.runtime, ctx, lines, drafting=drafting)
        n_seq = params.n_seq_max
        params.n_threads = params.n_threads_batch = threads
        if observer is not None:
            params.cb_eval = observer.callback
            params.cb_eval_user_data = observer.address
        library.take_errors()
        handle = llama.llama_init_from_model(model.handle, params)
        if handle is None:
            raise SpecfitError(
                f"llama.cpp cannot make a context of {lines * ctx} tokens: "
                f"{library.take_errors()}; "
                "a smaller -c needs less memory"
            )
        self.handle = handle
        self._memory = llama.llama_get_memory(handle)
        self._finalizer = weakref.finalize(self, llama.llama_free, handle)
        self._watch = library.eval_callback_of(handle) if observer is not None else None
        self._tapped: set[int] = set()  # lines whose features are wanted
        self._feature_places: list[int] = []
        self._features: Features | None = None
        self._batch = _Batch(BATCH, n_seq)
        self.n_past = [0] * lines
        # Of the sequences that are no line's: the line whose text each holds, and how much of it.
        self._spare = dict.fromkeys(range(lines, n_seq), (0, 0))
        # Of the last tree decoded: its lines, the sequences of every node, and those of padding.
        self._decoded: tuple[Sequence[int], list[list[int]], list[int]] = (), [], []

    def close(self) -> None:
        self._finalizer()

    @property
    def tapped(self) -> bool:
        """Whether the last decode has handed out features."""
        return bool(self.taps and self._tapped)

    def tap(self, line: int, *, wanted: bool) -> None:
        """Whether decodes are to hand out the features of a line, if there are taps at all.

        Where no line's are wanted they cost nothing. After a change llama.cpp plans its memory
        anew, which is for once an answer.
        """
        before = bool(self._tapped)
        (self._tapped.add if wanted else self._tapped.discard)(line)
        if bool(self._tapped) != before:
            for tap in self.taps:
                library.set_layer_input(self.handle, tap, wanted)

    def decode_prompt(
        self, tokens: Sequence[int], goes_on: Callable[[], bool] = lambda: True, line: int = 0
    ) -> None:
        """Appends `tokens` to a line, in batches; the last one's logits become row -1.

        goes_on: asked before every batch; False ends it there, with `n_past` saying how far it got.
        """
        for start in range(0, len(tokens), BATCH):
            if not goes_on():
                break
            chunk = tokens[start : start + BATCH]
            last = start + BATCH >= len(tokens)
            self._batch.fill_chain(chunk, self.n_past[line], line, output_last=last)
            self._decode()
            self.n_past[line] += len(chunk)

    def decode_token(self, token: int, line: int = 0) -> None:
        """Decodes one token and commits it: plain decoding. Its logits become row 0."""
        self._batch.fill_one(token, self.n_past[line], line)
        self._decode()
        self.n_past[line] += 1

    def decode_tree(self, tree: DraftTree, lines: Sequence[int] = (0,), padding: int = 0) -> None:
        """Decodes every node of `tree` behind the committed text, all with logits.

        lines: of this context, those that the tree's lines are. padding: further rows, copies of
        the first root, each in a sequence of its own that no node sees, so that it uses the root's
        experts.
        """
        carried, apart = self._sequences(tree, lines, padding)
        self._decoded = lines, carried, apart
        starts = np.array([self.n_past[line] for line in lines], np.int32)
        tokens, positions = tree.tokens, starts[tree.lines] + tree.depths
        if padding:
            copies = np.concatenate([np.arange(len(tree)), np.zeros(padding, np.intp)])
            tokens, positions = tokens[copies], positions[copies]
        self._batch.fill_tree(tokens, positions, [*carried, *([seq] for seq in apart)])
        self._decode()

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keeps the cells of `paths`, one for each line of the tree just decoded, as committed
        text, and drops the tree's others.

        paths: nodes from a root on.
        """
        memory, (lines, carried, apart) = self._memory, self._decoded
        for seq in apart:
            llama.llama_memory_seq_rm(memory, seq, self.n_past[lines[0]], -1)
        for root, (path, line) in enumerate(zip(paths, lines, strict=True)):
            start, kept = self.n_past[line], self.n_past[line] + len(path)
            # Nodes of the path that its line's sequence holds too.
            shared = sum(line in carried[node] for node in path)
            llama.llama_memory_seq_rm(memory, line, start + shared, -1)
            if shared < len(path):
                owner = carried[path[-1]][0]  # any leaf below the path's end will do
                llama.llama_memory_seq_cp(memory, owner, line, start + shared, kept)
            for seq in carried[root][1:]:
                llama.llama_memory_seq_rm(memory, seq, start, -1)
            self.n_past[line] = kept

    def truncate(self, n: int, line: int = 0) -> None:
        """Forgets everything of a line from position `n` on, a tree that was never committed
        included; all of it, where the model keeps no state of every token (recurrent ones)."""
        past = min(self.n_past[line], n)
        if past < self.n_past[line] and not self._keeps_all(line):
            past = 0
        self.n_past[line] = past
        llama.llama_memory_seq_rm(self._memory, line, past, -1)
        for seq, (of, held) in self._spare.items():
            if of == line:
                llama.llama_memory_seq_rm(self._memory, seq, past, -1)
                self._spare[seq] = (line, min(held, past))

    def share(self, source: int, line: int, n: int) -> None:
        """Makes the first `n` tokens of line `source` those of an empty `line`, without copying;
        none, where the model keeps no state of every token."""
        if self._keeps_all(source):
            llama.llama_memory_seq_cp(self._memory, source, line, 0, n)
            self.n_past[line] = n

    def _keeps_all(self, line: int) -> bool:
        """Whether every token of a line has its own cells, and not one state for all of them."""
        return bool(llama.llama_memory_seq_pos_min(self._memory, line) == 0)

    def state(self, line: int = 0) -> NDArray[np.uint8]:
        """Keys and values of a line's text, as `restore` takes them.

        Raises SpecfitError if there is no memory for them, or they are not kept for every token.
        """
        if not self._keeps_all(line):
            raise SpecfitError("this model keeps no state of every token")
        size = llama.llama_state_seq_get_size(self.handle, line)
        if size > host_memory().free:
            raise SpecfitError(f"its {size / 2**20:.0f} MiB are more memory than is free")
        state = np.empty(size, np.uint8)
        place = state.ctypes.data_as(_BYTES)
        return state[: llama.llama_state_seq_get_data(self.handle, place, size, line)]

    def restore(self, state: NDArray[np.uint8], n: int, line: int = 0) -> None:
        """Makes `state` that of an empty line, which has `n` tokens then. It must be one that
        llama.cpp gave: what else it is told it believes.

        Raises SpecfitError, with the line still empty, if it is of another kind of cache.
        """
        library.take_errors()
        place = state.ctypes.data_as(_BYTES)
        read = llama.llama_state_seq_set_data(self.handle, place, len(state), line)
        first = llama.llama_memory_seq_pos_min(self._memory, line)
        last = llama.llama_memory_seq_pos_max(self._memory, line)
        if read == 0 or (first, last) != (0, n - 1):
            llama.llama_memory_seq_rm(self._memory, line, -1, -1)
            raise SpecfitError(f"is none of this context's: {library.take_errors()}")
        self.n_past[line] = n

    def features(self, rows: int) -> Features:
        """float32 [rows, taps, n_embd]: inputs of the tapped layers in the last decode.

        A view of llama.cpp's own memory, where it can be: the next decode overwrites it.
        """
        places = [library.get_layer_input(self.handle, tap) for tap in self.taps]
        if places != self._feature_places:
            self._feature_places, self._features = places, self._feature_view(places)
        if self._features is not None:
            return self._features[:rows]
        n_embd = self.model.n_embd
        return np.stack([library.floats(place, rows, n_embd) for place in places], 1)

    def _feature_view(self, places: Sequence[int]) -> Features | None:
        """[BATCH, taps, n_embd]: all tapped layers as one array, if llama.cpp laid them out so."""
        size = BATCH * self.model.n_embd
        if any(place != places[0] + 4 * size * i for i, place in enumerate(places)):
            return None
        layers = library.floats(places[0], len(places), BATCH, self.model.n_embd)
        return layers.transpose(1, 0, 2)

    def logits(self, row: int) -> NDArray[np.float32]:
        """float32 [n_vocab]: logits of a row of the last decode.

        llama.cpp's own memory: the next decode overwrites it.
        """
        return library.floats(library.get_logits_ith(self.handle, row), self.model.n_vocab)

    def _sequences(
        self, tree: DraftTree, lines: Sequence[int], padding: int
    ) -> tuple[list[list[int]], list[int]]:
        """The sequences that every node carries, one for each leaf below it, the likeliest first:
        for the first leaf of a line the line's own, for the others one that holds the line's
        committed text, made so now. And such ones for padding behind the first line."""
        free = list(self._spare)
        carried: list[list[int]] = [[] for _ in range(len(tree))]
        for path in leaf_paths(tree):
            seq = line = lines[path[0]]
            if carried[path[0]]:
                seq = self._taken(free, line)
            for node in path:
                carried[node].append(seq)
        return carried, [self._taken(free, lines[0]) for _ in range(padding)]

    def _taken(self, free: list[int], line: int) -> int:
        """One of the free sequences, no longer among them, that holds the committed text of `line`:
        best one that does so already, else made so now."""
        seq = next((seq for seq in free if self._spare[seq][0] == line), free[0])
        free.remove(seq)
        of, held = self._spare[seq]
        if of != line:
            llama.llama_memory_seq_rm(self._memory, seq, -1, -1)
            held = 0
        past = self.n_past[line]
        if held < past:
            llama.llama_memory_seq_cp(self._memory, line, seq, held, past)
        self._spare[seq] = (line, past)
        return seq

    def _decode(self) -> None:
        if self._watch is not None and self.observer is not None:
            # With a callback the scheduler takes graphs to pieces, even if it looks at nothing.
            self._watch(*self.observer.watching)
        status = llama.llama_decode(self.handle, self._batch.struct)
        if status != 0:
            reason = library.take_errors() or f"status {status}"
            raise SpecfitError(
                f"llama.cpp failed to decode tokens behind {sum(self.n_past)}: {reason}"
            )
        llama.llama_synchronize(self.handle)  # a GPU may still work; times are of whole batches


def context_params(runtime: Runtime, ctx: int, lines: int, *, drafting: bool) -> Any:
    """llama_context_params for so many lines of `ctx` tokens each."""
    params = llama.llama_context_default_params()
    # A tree takes a cell a row, also for the rows that will be dropped again.
    params.n_ctx = lines * ctx + (TREE_LIMIT if drafting else 0)
    params.n_batch = params.n_ubatch = BATCH
    # Of a full tree's leaves, the likeliest needs none of its own; and a single line's tree may be
    # full while the other lines wait.
    params.n_seq_max = params.n_outputs_max = TREE_LIMIT + lines - 1 if drafting else lines
    params.kv_unified = True
    params.no_perf = True
    runtime.set_context(params)
    return params


def leaf_paths(tree: DraftTree) -> list[list[int]]:
    """The nodes from a root to each leaf, by falling path probability: the first one of a line,
    which needs no copies when it is accepted, is the likeliest."""
    probs = tree.path_probs.tolist()
    return [tree.path(leaf) for leaf in sorted(tree.leaves, key=lambda leaf: -probs[leaf])]


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

    def fill_one(self, token: int, position: int, seq: int) -> None:
        self.struct.n_tokens = 1
        self.tokens[0] = token
        self.positions[0] = position
        self._n_seq_id[0] = 1
        self._seq_ids[0, 0] = seq
        self.logits[0] = 1

    def fill_chain(self, tokens: Sequence[int], start: int, seq: int, *, output_last: bool) -> None:
        n = len(tokens)
        self.struct.n_tokens = n
        self.tokens[:n] = tokens
        self.positions[:n] = range(start, start + n)
        self._n_seq_id[:n] = 1
        self._seq_ids[:n, 0] = seq
        self.logits[:n] = 0
        self.logits[n - 1] = output_last

    def fill_tree(
        self, tokens: IntArray, positions: IntArray, sequences: Sequence[Sequence[int]]
    ) -> None:
        """tokens, positions: [n]. sequences: those of every node."""
        n = len(tokens)
        self.struct.n_tokens = n
        self.tokens[:n] = tokens
        self.positions[:n] = positions
        self.logits[:n] = 1
        for row, of_row in enumerate(sequences):
            self._n_seq_id[row] = len(of_row)
            self._seq_ids[row, : len(of_row)] = of_row
