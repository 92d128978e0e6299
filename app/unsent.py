"""What one window has in the input, kept in the store.

The event loop notes what there is, and threads write it: one at a time, and always the newest.
"""

from __future__ import annotations

from threading import Lock

from .store import Gone, Store, StoreError, Unsent

# The conversation that is open, and what is in the input.
Noted = tuple[int | None, Unsent]


class UnsentText:
    """store: None keeps nothing."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._lock = Lock()
        self._row: int | None = None
        self._generation = 0  # of the store, that the row is of
        self._noted: Noted = (None, Unsent())
        self._saved: Noted = self._noted

    def note(self, conversation: int | None, unsent: Unsent) -> None:
        """What there is now."""
        self._noted = (conversation, unsent)

    @property
    def is_saved(self) -> bool:
        store = self._store
        return store is None or (self._noted == self._saved and not self._is_elsewhere(store))

    def save(self, *, wait: bool = False) -> None:
        """Writes what was noted, unless another thread is at it: to be called until `is_saved`.
        wait: until that one is done. Raises StoreError."""
        if self._lock.acquire(blocking=wait):
            try:
                self._save(held=True)
            finally:
                self._lock.release()

    def leave(self) -> None:
        """Writes what was noted, and leaves it to whoever opens that conversation next. Raises
        StoreError; nothing is left then."""
        if self._store is None:
            raise StoreError("nothing is kept")
        with self._lock:
            self._save(held=False)
            self._row = None
            self._noted = (None, Unsent())
            self._saved = self._noted

    def take(self, conversation: int | None) -> Unsent:
        """What was left in the conversation: it is this window's now. Raises StoreError."""
        if self._store is None:
            return Unsent()
        with self._lock:
            found = self._store.take_unsent(conversation)
            if found is None:
                return Unsent()
            self._row, unsent = found
            self._generation = self._store.generation
            self._noted = (conversation, unsent)
            self._saved = self._noted
            return unsent

    def _save(self, *, held: bool) -> None:
        store, noted = self._store, self._noted
        if store is None or not (noted[1] or self._row):
            self._saved = noted
            return
        if held and self.is_saved:
            return
        try:
            row = None if self._is_elsewhere(store) else self._row
            self._row = store.keep_unsent(row, *noted, held=held)
        except Gone:  # the file: there is another one now
            self._row = store.keep_unsent(None, *noted, held=held)
        self._generation, self._saved = store.generation, noted

    def _is_elsewhere(self, store: Store) -> bool:
        """Whether the row is of a file that is not there any more."""
        return self._row is not None and self._generation != store.generation
