"""The store's file: opening it, transactions, and what to do when it is not as it should be.

Two connections, one to write and one to read, so that nobody who looks has to wait for the disk.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Lock

from .schema import migrate
from .values import Gone, Locked, StoreError

PATIENCE_MS = 3000
# For growth, which comes again soon, and where the file has just been found locked.
SHORT_PATIENCE_MS = 100
RETRY_S = 0.01
# SQLite's companions of a file in WAL mode.
COMPANIONS = ("", "-wal", "-shm")

_SENTENCES = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it can only be read",
    sqlite3.SQLITE_PERM: "it can only be read",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_BUSY: "it is locked by another program",
    sqlite3.SQLITE_LOCKED: "it is locked by another program",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_NOTADB: "it is damaged",
}


class StoreFile:
    """An open file; any thread may use it.

    notices: what the user should be told of it, in sentences.
    """

    def __init__(self, path: Path) -> None:
        """Raises StoreError if the file cannot be opened."""
        self.path = path
        self.notices: list[str] = []
        self._patience_ms = PATIENCE_MS
        self._identity: tuple[int, int] | None = None
        self._write_lock, self._read_lock = Lock(), Lock()
        self._open()

    def close(self) -> None:
        with self._write_lock, self._read_lock:
            self._writer.close()
            self._reader.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._in_sentences(), self._read_lock:
            yield self._reader

    @contextmanager
    def writing(
        self, *, durable: bool = True, patience_ms: int | None = None
    ) -> Iterator[sqlite3.Connection]:
        """A transaction. durable: it is on the disk when the block has been left. patience_ms: how
        long another program is waited for.

        Raises Gone if the file was replaced; the next transaction is then in a new one.
        """
        with self._in_sentences(), self._write_lock:
            self._be_the_same_file()
            db = self._writer
            patience = self._patience_ms if patience_ms is None else patience_ms
            db.execute(f"PRAGMA busy_timeout = {patience}")
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                raise
            self._patience_ms = PATIENCE_MS

    @contextmanager
    def _in_sentences(self) -> Iterator[None]:
        meant = self._identity
        try:
            yield
        except sqlite3.Error as error:
            if is_damaged(error):
                with self._write_lock, self._read_lock:
                    if self._identity == meant:  # no other thread was here before
                        self._begin_anew()
                raise Gone(self.notices[-1]) from error
            if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                self._patience_ms = SHORT_PATIENCE_MS
                raise Locked(_sentence(self.path, error)) from error
            raise StoreError(_sentence(self.path, error)) from error

    def _open(self) -> None:
        try:
            self._connect()
        except sqlite3.Error as error:
            if not is_damaged(error):
                raise StoreError(_sentence(self.path, error)) from error
            self._begin_anew()

    def _connect(self) -> None:
        """Raises sqlite3.Error or StoreError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.path.exists():
                with _alone(self.path):
                    _create(self.path)
            self._identity = _identity(self.path)
        except OSError as error:
            self._identity = None
            raise StoreError(f"{self.path}: {error.strerror or error}") from error
        self._writer = _connection(self.path)
        try:
            _use_wal(self._writer)
            migrate(self._writer)
            self._reader = _connection(self.path)
            self._reader.execute("PRAGMA query_only = ON")
        except BaseException as error:
            self._writer.close()
            if not (isinstance(error, sqlite3.Error) and is_damaged(error)):
                self._identity = None  # the next transaction tries again
            if isinstance(error, StoreError):
                raise StoreError(f"{self.path} {error}") from error
            raise

    def _begin_anew(self) -> None:
        """Moves a damaged file aside and opens a new one; both locks are held, or nobody knows us.

        A window that comes later to the same damage finds the new file and takes that.
        """
        for name in ("_writer", "_reader"):
            if hasattr(self, name):
                getattr(self, name).close()
        try:
            with _alone(self.path):
                if _identity(self.path) == self._identity:
                    kept = _move_aside(self.path)
                    notice = f"{self.path} was damaged; it is kept as {kept.name}, and a new one"
                else:
                    notice = f"{self.path} was damaged and has been moved aside, and a new one"
            self._connect()
        except OSError as error:
            raise StoreError(f"{self.path} is damaged: {error.strerror or error}") from error
        except sqlite3.Error as error:
            self._identity = None
            raise StoreError(_sentence(self.path, error)) from error
        self.notices.append(f"{notice} was begun")

    def _be_the_same_file(self) -> None:
        """Without this, all would be written to a file that has no name any more."""
        if self._identity is not None and _identity(self.path) == self._identity:
            return
        with self._read_lock:
            self._writer.close()
            self._reader.close()
            self._open()
        raise Gone(f"{self.path} was deleted or replaced while it was open")


def is_damaged(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary code; its extended ones have more in the upper bytes."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _sentence(path: Path, error: sqlite3.Error) -> str:
    return f"{path}: {_SENTENCES.get(_code(error), str(error))}"


def _connection(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        path, timeout=PATIENCE_MS / 1000, isolation_level=None, check_same_thread=False
    )
    db.text_factory = lambda data: data.decode("utf-8", "replace")
    db.execute("PRAGMA foreign_keys = ON")
    return db


def _use_wal(db: sqlite3.Connection) -> None:
    """Readers and a writer side by side; file systems that lack what it needs go on without.

    SQLite does not wait for another window that is doing the same at this moment.
    """
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if _code(error) == sqlite3.SQLITE_READONLY:
                return
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_S)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _create(path: Path) -> None:
    """Makes an empty file, which nobody else can read. What is left of an older one of that name
    would be taken for its own."""
    if not path.exists():
        for companion in COMPANIONS[1:]:
            Path(f"{path}{companion}").unlink(missing_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keeps other windows out that would create the file, or move it aside, too."""
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _move_aside(path: Path) -> Path:
    base = f"{path}.corrupt-{datetime.now():%Y-%m-%d-%H%M%S}"
    kept, number = Path(base), 1
    while kept.exists():
        kept, number = Path(f"{base}-{number}"), number + 1
    for companion in COMPANIONS:
        with suppress(FileNotFoundError):
            Path(f"{path}{companion}").rename(f"{kept}{companion}")
    return kept
