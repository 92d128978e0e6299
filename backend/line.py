"""A line: one text in the context, and what the head is still to be told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specfit.planner import NgramIndex

from .context import BATCH, Context
from .drafter import Drafter
from .sampling import Sampler


class Line:
    """tokens: of the text, the last ones perhaps not yet in the cache. reused: of the last prompt,
    tokens that were in the cache. tracking: whether the head's features of the present text are
    kept; a text begun without hope of drafts leaves none. lookup: what finds drafts in the text."""

    def __init__(
        self, context: Context, number: int, drafter: Drafter | None, *, looks_up: bool = False
    ) -> None:
        self.number = number
        self.drafter = drafter
        self.lookup: NgramIndex | None = NgramIndex() if looks_up else None
        self.tokens: list[int] = []
        self.reused = 0
        self.tracking = False
        self._context = context
        # Positions of the last prompt batch whose features are to be kept.
        self._unremembered = 0

    @property
    def n_past(self) -> int:
        """Tokens in the cache."""
        return self._context.n_past[self.number]

    @property
    def limit(self) -> int:
        """Tokens that it may have."""
        return self._context.ctx

    @property
    def room(self) -> int:
        """How deep drafts may be before the context ends."""
        return self.limit - 1 - self.n_past

    def missing(self, prompt: Sequence[int]) -> int:
        """Tokens of `prompt` that are in the cache and would be processed anew for drafts."""
        if self.drafter is None:
            return 0
        shared = min(shared_prefix(self.tokens, prompt), self.n_past)
        return max(0, shared - self.drafter.n_known)

    def prefill(self, prompt: Sequence[int], drafting: bool, goes_on: Callable[[], bool]) -> bool:
        """Makes the cache hold `prompt`, reusing what it shares with the text before it.

        drafting: whether drafts may be wanted. goes_on: asked before every batch. Returns whether
        all of it was processed.
        """
        drafter = self.drafter if drafting else None
        self.tracking = drafter is not None
        self._context.tap(self.number, wanted=self.tracking)
        # After an interrupt the text may be a token ahead of the cache.
        shared = min(shared_prefix(self.tokens, prompt), self.n_past)
        # The last token is decoded anew for its logits, and one more for the feature that the
        # head pairs with the first new token.
        keep = max(0, min(shared, len(prompt) - 1) - (drafter is not None))
        if drafter is not None:
            keep = min(keep, drafter.n_known)
        self.truncate(keep)
        keep = self.reused = self.n_past
        for start in range(keep, len(prompt), BATCH):
            batch = prompt[start : start + BATCH]
            self._context.decode_prompt(batch, goes_on, self.number)
            if self.n_past == start:
                return False
            self.tokens += batch
            self._unremembered = len(batch) if drafter is not None else 0
            if len(self.tokens) < len(prompt):
                self.remember_prompt()
        return True

    def adopt(self, other: Line, n: int) -> None:
        """Begins as `other` does, with its first n tokens, which are in the cache, if the model's
        can be shared."""
        self.truncate(0)
        self._context.share(other.number, self.number, n)
        self.tokens = other.tokens[: self.n_past]  # a lookup catches up by itself
        if self.drafter is not None and other.drafter is not None:
            self.drafter.adopt(other.drafter, min(self.n_past, other.drafter.n_known))

    def state(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """What `restore` needs beside the tokens: llama.cpp's state, and the head's. Drops tokens
        that are not in the cache, and drafts that were never committed."""
        self.remember_prompt()
        self.truncate(min(self.n_past, len(self.tokens)))
        head = np.empty(0, np.uint8) if self.drafter is None else self.drafter.kept(self.tokens)
        return self._context.state(self.number), head

    def restore(self, tokens: list[int], state: NDArray[np.uint8], head: NDArray[np.uint8]) -> None:
        """Has an empty line hold `tokens` as one that they come from did.

        Raises SpecfitError, with the line still empty, if llama.cpp does not take the state.
        """
        self._context.restore(state, len(tokens), self.number)
        self.tokens = tokens
        if self.drafter is not None and head.size:
            self.drafter.restore(head)

    def looked_up(self) -> NgramIndex:
        """The lookup, with all of the text."""
        assert self.lookup is not None
        self.lookup.extend(self.tokens[len(self.lookup) :])
        return self.lookup

    def remember_prompt(self) -> None:
        """Keeps the head's features of the batch just decoded. Of a prompt's last one that is put
        off until the first token is out, or another line is decoded."""
        if self._unremembered and self.drafter is not None:
            self.drafter.remember(self._context.features(self._unremembered), self.tokens)
        self._unremembered = 0

    def commit(self, drafted: Sequence[int], rows: Sequence[int] | NDArray[np.intp]) -> None:
        """Takes accepted drafts into the text, behind its root, and keeps the features of the rows
        of the last decode that are now committed."""
        self.tokens += drafted
        if self.drafter is not None:
            self.drafter.head.begin_tree()  # another line's tree may need what this one took
        if self.tracking and self.drafter is not None:
            self.drafter.remember(self._context.features(int(max(rows)) + 1)[rows], self.tokens)

    def truncate(self, n: int) -> None:
        """Forgets everything from position `n` on; all, where that cannot be."""
        self._context.truncate(n, self.number)
        self._unremembered = 0
        del self.tokens[self.n_past :]
        if self.lookup is not None:
            self.lookup.truncate(self.n_past)
        if self.drafter is not None:
            self.drafter.truncate(self.n_past)


@dataclass(frozen=True)
class Turn:
    """What a line is to be continued by. root: its last sampled token. take: told every token as
    it is committed; False ends the text with it."""

    line: Line
    root: int
    sampler: Sampler
    take: Callable[[int], bool]

    def sampled_by(self, context: Context) -> Callable[[int], int]:
        """Draws the token behind a row of the last decode."""
        return lambda row: self.sampler.sample(context, row)


def shared_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two texts share."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
