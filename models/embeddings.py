"""Token embeddings of the target, dequantised from its GGUF as the draft head asks for them.

An EAGLE-3 head shares the target's embedding table, which llama.cpp does not hand out. The table is
read from the mapped file instead. A small one is dequantised whole when it is loaded; a large one
(152k tokens by 2048 would take 1.2 GB as float32) row by row, with a cache, since text uses few of
its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from specfit.models.errors import ModelFileError
from specfit.models.gguf_header import TensorInfo
from specfit.models.gguf_info import GgufInfo

TokenIds = Sequence[int] | NDArray[np.integer] | torch.Tensor

_WHOLE_BYTES = 64 << 20
_CACHE_ROWS = 8192


class TokenEmbeddings:
    """A token embedding table: float32 rows by token id, on the CPU."""

    def __init__(self, table: _WholeTable | _MappedTable) -> None:
        self._table = table
        self.n_vocab, self.n_embd = table.shape

    @classmethod
    def load(cls, model: GgufInfo, *, whole_bytes: int = _WHOLE_BYTES) -> TokenEmbeddings:
        """Opens the table of a model's file.

        whole_bytes: a table of at most this size as float32 is dequantised now, a larger one row by
        row. Raises ModelFileError if the file has no such table or it cannot be dequantised.
        """
        mapped = _MappedTable(model.tensor("token_embd.weight"))
        n_vocab, n_embd = mapped.shape
        if n_vocab * n_embd * 4 <= whole_bytes:
            return cls.of_table(torch.from_numpy(mapped.dequantised(slice(None))))
        return cls(mapped)

    @classmethod
    def of_table(cls, table: torch.Tensor) -> TokenEmbeddings:
        """A table [n_vocab, n_embd] held in memory, in whatever type it has."""
        return cls(_WholeTable(table))

    def rows(self, ids: TokenIds) -> torch.Tensor:
        """float32 [n, n_embd]: the embeddings of n token ids."""
        return self._table.rows(ids)


class _WholeTable:
    def __init__(self, table: torch.Tensor) -> None:
        self._table = table
        self.shape: tuple[int, int] = (table.shape[0], table.shape[1])

    def rows(self, ids: TokenIds) -> torch.Tensor:
        return self._table.index_select(0, torch.as_tensor(ids, dtype=torch.int64)).float()


class _MappedTable:
    """A quantised table in a mapped file; the rows used last (first in, first out) are kept."""

    def __init__(self, tensor: TensorInfo) -> None:
        if len(tensor.shape) != 2:
            raise ModelFileError(f"{tensor.path} has a {tensor.name} that is no table.")
        self._tensor = tensor
        self.shape: tuple[int, int] = (tensor.shape[0], tensor.shape[1])
        self._data = np.memmap(
            tensor.path,
            dtype=np.uint8,
            mode="r",
            offset=tensor.offset,
            shape=(self.shape[0], tensor.n_bytes // self.shape[0]),
        )
        self._cache = np.empty((min(_CACHE_ROWS, self.shape[0]), self.shape[1]), np.float32)
        self._place_of: dict[int, int] = {}
        self._id_at = np.full(len(self._cache), -1, np.int64)
        self._next_place = 0
        self.dequantised(slice(0, 1))  # so that an unknown type is refused when it is loaded

    def dequantised(self, which: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """float32 [n, n_embd]: the rows, straight from the file."""
        try:
            rows = gguf.dequantize(self._data[which], self._tensor.type)
        except NotImplementedError:
            raise ModelFileError(
                f"{self._tensor.path} stores its token embeddings as {self._tensor.type.name}, "
                "which cannot be read here; use another quantisation to draft with a head."
            ) from None
        # A copy where the file already holds float32: the result must not stay tied to the map.
        return np.array(rows, dtype=np.float32).reshape(-1, self.shape[1])

    def rows(self, ids: TokenIds) -> torch.Tensor:
        wanted = np.asarray(ids, dtype=np.int64)
        places = np.array([self._place_of.get(token, -1) for token in wanted.tolist()], np.int64)
        # Taken before anything is replaced, so that a batch cannot push out its own rows.
        rows = self._cache[places]
        missing = np.flatnonzero(places < 0)
        if missing.size:
            new, inverse = np.unique(wanted[missing], return_inverse=True)
            fresh = self.dequantised(new)
            rows[missing] = fresh[inverse]
            self._keep(new, fresh)
        return torch.from_numpy(rows)

    def _keep(self, ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        size = len(self._cache)
        ids, rows = ids[:size], rows[:size]
        places = (self._next_place + np.arange(len(ids))) % size
        for place, token in zip(places.tolist(), ids.tolist(), strict=True):
            self._place_of.pop(int(self._id_at[place]), None)
            self._place_of[token] = place
        self._id_at[places] = ids
        self._cache[places] = rows
        self._next_place = int(self._next_place + len(ids)) % size
