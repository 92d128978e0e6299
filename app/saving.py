"""Bringing conversations to the store: now, or as soon as it works again.

What was left before the store had all of it is still remembered here. What hinders saving is told
once, and so is its end.
"""

from __future__ import annotations

from collections.abc import Callable

from .store import Gone, Locked, OpenConversation, ReadOnly, Store, StoreError

RETRY_S = 2.0
RETRY_PATIENCE_S = 0.08


class Saving:
    """store: None keeps nothing, and so hinders nothing. trouble: why not all could be saved.

    clock: seconds, for when to try again.
    """

    def __init__(self, store: Store | None, clock: Callable[[], float]) -> None:
        self.trouble: str | None = None
        self._store = store
        self._clock = clock
        self._left: list[OpenConversation] = []  # before the store had all of them
        self._to_tell: list[str] = []
        self._retry_at = float("-inf")

    def is_done(self, current: OpenConversation) -> bool:
        """Whether the store has everything, of the conversation that is open and of the others."""
        return self._has(current) and not self._left

    def waiting(self, conversation: int, current: OpenConversation) -> OpenConversation | None:
        """The store's conversation as it is here, if the store does not have all of it."""
        unsaved = (one for one in [*self._left, current] if not self._has(one))
        return next((one for one in unsaved if one.row == conversation), None)

    def leave(self, one: OpenConversation) -> None:
        """Remembers a conversation that is open no longer, as far as it is not saved."""
        if self._store is not None and not self._has(one):
            self._left.append(one)

    def save(self, current: OpenConversation, *, force: bool = False) -> None:
        """Saves all there is. force: at once, though it failed a moment ago, and never left for the
        next time."""
        if self._store is None or (not force and self._clock() < self._retry_at):
            return
        try:
            for one in [*self._left, current]:
                self._save_one(self._store, one)
                if one in self._left:
                    self._left.remove(one)
        except StoreError as error:
            if isinstance(error, Locked) and not force and self.trouble is None:
                return  # by another window that is writing: the next piece comes soon
            if self.trouble is None:
                goes_on = (
                    ""
                    if isinstance(error, ReadOnly)
                    else " The conversation goes on, unsaved as yet."
                )
                self._to_tell.append(f"{error}.{goes_on}")
            self.trouble = str(error)
            self._retry_at = self._clock() + RETRY_S
            return
        if self.trouble is not None:
            self._to_tell.append("Everything is saved again.")
        self.trouble, self._retry_at = None, float("-inf")

    def retry(self, current: OpenConversation) -> None:
        """Saves what could not be saved before; waits for others RETRY_PATIENCE_S at most."""
        if self._store is not None and (self.trouble is not None or not self.is_done(current)):
            with self._store.hurried(RETRY_PATIENCE_S):
                self.save(current)

    def take_news(self) -> str | None:
        """What the user should be told and has not been told, in sentences."""
        told = "\n".join(self._to_tell)
        self._to_tell.clear()
        return told or None

    def _has(self, one: OpenConversation) -> bool:
        """Whether the store has all of it."""
        moved = self._store is not None and one.is_of_another_file(self._store)
        return one.is_saved and not moved

    def _save_one(self, store: Store, one: OpenConversation) -> None:
        if self._has(one):
            return
        reason = store.notices[-1] if one.is_of_another_file(store) else None
        try:
            one.save(store)
        except Gone as gone:
            reason = str(gone)
            one.forget_rows()
            one.save(store)
        if reason is not None:
            self._to_tell.append(f"{reason}. What is open here has been saved anew.")
