"""What followed earlier where a text ended as it does now: drafts that cost no model.

Occurrences of the last LEAST tokens are found by hash chains, as deflate finds them (RFC 1951,
section 4): a dictionary gives the latest place behind such tokens, and every place the one before
it. So a token is appended, or taken away again, in constant time. At each occurrence tokens are
compared backwards, which gives the length of the match.

Matches of n tokens and more, N of them of which c go on with a token, give that token

    p_n = (c + p_(n-1)) / (N + 1),   p_(LEAST-1) = 0:

a back-off in which one match of any length weighs as much as all shorter ones together. A single
match of n tokens has 1 - 2^-(n - LEAST + 1). What such a number is worth is learned. Computed by
`ngram.cpp`.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence

from .native import library

LEAST, LONGEST = 2, 16
# So many of the latest occurrences count.
OCCURRENCES = 32

_i32, _i64, _f64, _bytes = ctypes.c_int32, ctypes.c_int64, ctypes.c_double, ctypes.c_char_p
_address = ctypes.c_void_p
_create, _free = library.specfit_ngrams, library.specfit_ngrams_free
_extend, _following = library.specfit_ngrams_extend, library.specfit_ngrams_following
_create.restype, _create.argtypes = _address, ()
_free.restype, _free.argtypes = None, (_address,)
_extend.restype, _extend.argtypes = ctypes.c_bool, (_address, _i64, _bytes, _i64)
_following.argtypes = (_address, _bytes, _i64, _address, _address)


class NgramIndex:
    """Over the tokens of one text, which grows at its end and is cut there.

    Everything raises MemoryError where there is none.
    """

    def __init__(self) -> None:
        self.handle: int = _create()
        if not self.handle:
            raise MemoryError(_NO_MEMORY)
        weakref.finalize(self, _free, self.handle)
        self._n = 0

    def __len__(self) -> int:
        """Tokens of the text that it has."""
        return self._n

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens."""
        self._go_on(self._n, tokens)

    def truncate(self, n: int) -> None:
        """Forgets tokens from the n-th on."""
        if n < self._n:
            self._go_on(n, ())

    def following(self, path: Sequence[int] = ()) -> list[tuple[int, float]]:
        """Tokens that may follow the text and `path`, and their probabilities, falling."""
        tokens, probs = (_i32 * OCCURRENCES)(), (_f64 * OCCURRENCES)()
        n = _following(self.handle, array("i", path).tobytes(), len(path), tokens, probs)
        if n < 0:
            raise MemoryError(_NO_MEMORY)
        return list(zip(tokens[:n], probs[:n], strict=True))

    def _go_on(self, kept: int, tokens: Sequence[int]) -> None:
        if not _extend(self.handle, kept, array("i", tokens).tobytes(), len(tokens)):
            raise MemoryError(_NO_MEMORY)
        self._n = kept + len(tokens)


_NO_MEMORY = "no memory to look up what followed before"
