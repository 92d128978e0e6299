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

from .rescue import bring_over
from .schema import check, migrate
from .values import Gone, Locked, ReadOnly, StoreError

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

    notices: what the user should be told of it, in sentences. generation: rises when another file
    has taken its place. read_only: it was opened for reading, since more is not allowed.
    """

    def __init__(self, path: Path) -> None:
        """Raises StoreError if the file cannot be opened."""
        self.path = path
        self.notices: list[str] = []
        self.generation = 0
        self.read_only = False
        self._deadline: float | None = None
        self._patience_ms = PATIENCE_MS
        self._identity: tuple[int, int] | None = None
        self._write_lock, self._read_lock = Lock(), Lock()
        self._open()

    def close(self) -> None:
        self.fold()
        with self._write_lock, self._read_lock:
            self._writer.close()
            self._reader.close()

    def fold(self) -> None:
        """Brings SQLite's log into the file and empties it, so that the file is all there is; not
        where another window is at work, of which the last one will."""
        with self._write_lock, self._read_lock, suppress(sqlite3.Error):
            self._writer.execute(f"PRAGMA busy_timeout = {self._hurry_ms(SHORT_PATIENCE_MS)}")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextmanager
    def hurried(self, seconds: float) -> Iterator[None]:
        """Whatever any thread waits for is waited for no longer than until then."""
        self._deadline = time.monotonic() + seconds
        try:
            yield
        finally:
            self._deadline = None

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
        with self._in_sentences(), self._to_write():
            self._be_the_same_file()
            self._be_writable()
            db = self._writer
            patience = self._patience_ms if patience_ms is None else patience_ms
            db.execute(f"PRAGMA busy_timeout = {self._hurry_ms(patience)}")
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
    def _to_write(self) -> Iterator[None]:
        hurry = -1 if self._deadline is None else self._hurry_ms(PATIENCE_MS) / 1000
        if not self._write_lock.acquire(timeout=hurry):
            raise Locked(f"{self.path}: it is being written")
        try:
            yield
        finally:
            self._write_lock.release()

    def _hurry_ms(self, patience_ms: int) -> int:
        if self._deadline is None:
            return patience_ms
        return max(0, min(patience_ms, int(1000 * (self._deadline - time.monotonic()))))

    @contextmanager
    def _in_sentences(self) -> Iterator[None]:
        meant = self._identity
        try:
            yield
        except sqlite3.Error as error:
            if is_damaged(error) and self.read_only:
                raise StoreError(
                    f"{_sentence(self.path, error)}, and it can only be read"
                ) from error
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
        try:
            self._connect_to(str(self.path))
            self.read_only = not _is_writable(self.path, of_folder=False)
        except BaseException as error:
            if isinstance(error, sqlite3.Error) and self._connect_read_only():
                return
            if not (isinstance(error, sqlite3.Error) and is_damaged(error)):
                self._identity = None  # the next transaction tries again
            if isinstance(error, StoreError):
                raise StoreError(f"{self.path} {error}") from error
            raise

    def _connect_to(self, uri: str) -> None:
        """uri: a path, or a URI in SQLite's sense. Raises sqlite3.Error or StoreError."""
        self._writer = _connection(uri, self._hurry_ms(PATIENCE_MS))
        try:
            _use_wal(self._writer, self._hurry_ms(PATIENCE_MS))
            self._writer.execute("PRAGMA secure_delete = ON")  # zeros for what is deleted
            if uri.startswith("file:"):  # to be read only
                check(self._writer)
            else:
                migrate(self._writer)
            self._reader = _connection(uri, PATIENCE_MS)
            self._reader.execute("PRAGMA query_only = ON")
        except BaseException:
            self._writer.close()
            raise

    def _connect_read_only(self) -> bool:
        """Where SQLite may not make its companions of the file, such as on a DVD. A file that
        nobody can change is read as it is, if not otherwise."""
        if _is_writable(self.path):
            return False
        for how in ("mode=ro", "mode=ro&immutable=1"):
            with suppress(sqlite3.Error, StoreError):
                self._connect_to(f"{self.path.absolute().as_uri()}?{how}")
                self.read_only = True
                return True
        return False

    def _be_writable(self) -> None:
        """Raises ReadOnly, as long as it is."""
        if not self.read_only:
            return
        if not _is_writable(self.path):
            raise ReadOnly(f"{self.path} is read-only: what is said now is not kept")
        with self._read_lock:
            self._writer.close()
            self._reader.close()
            self._open()

    def _begin_anew(self) -> None:
        """Moves a damaged file aside and opens a new one; both locks are held, or nobody knows us.

        A window that comes later to the same damage finds the new file and takes that.
        """
        self._deadline = None  # to bring all over is worth the wait
        for name in ("_writer", "_reader"):
            if hasattr(self, name):
                getattr(self, name).close()
        try:
            with _alone(self.path):
                is_ours = _identity(self.path) == self._identity
                kept = _move_aside(self.path) if is_ours else None
            self._connect()
        except OSError as error:
            self._identity = None
            raise StoreError(f"{self.path} is damaged: {error.strerror or error}") from error
        except sqlite3.Error as error:
            self._identity = None
            raise StoreError(_sentence(self.path, error)) from error
        self.generation += 1
        if kept is None:
            self.notices.append(f"{self.path} was damaged; another window has begun a new one")
            return
        notice = f"{self.path} was damaged; it is kept as {kept.name}, and a new one was begun"
        self.notices.append(f"{notice}; {_brought_over(bring_over(kept, self._writer))}")

    def _be_the_same_file(self) -> None:
        """Without this, all would be written to a file that has no name any more."""
        if self._identity is not None and _identity(self.path) == self._identity:
            return
        with self._read_lock:
            self._writer.close()
            self._reader.close()
            self._open()
        self.generation += 1
        self.notices.append(f"{self.path} was deleted or replaced while it was open")
        raise Gone(self.notices[-1])


def is_damaged(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary code; its extended ones have more in the upper bytes."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _sentence(path: Path, error: sqlite3.Error) -> str:
    return f"{path}: {_SENTENCES.get(_code(error), str(error))}"


def _brought_over(conversations: int) -> str:
    if not conversations:
        return "no conversation could be read"
    number = "1 conversation was" if conversations == 1 else f"{conversations} conversations were"
    return f"{number} brought over, as far as still readable"


def _connection(uri: str, patience_ms: int) -> sqlite3.Connection:
    db = sqlite3.connect(
        uri,
        timeout=patience_ms / 1000,
        isolation_level=None,
        check_same_thread=False,
        uri=uri.startswith("file:"),
    )
    db.text_factory = lambda data: data.decode("utf-8", "replace")
    db.execute("PRAGMA foreign_keys = ON")
    return db


def _use_wal(db: sqlite3.Connection, patience_ms: int) -> None:
    """Readers and a writer side by side; file systems that lack what it needs go on without.

    SQLite does not wait for another window that is doing the same at this moment.
    """
    deadline = time.monotonic() + patience_ms / 1000
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


def _is_writable(path: Path, *, of_folder: bool = True) -> bool:
    """of_folder: whether its folder has to be, too."""
    paths = (path, path.parent) if of_folder else (path,)
    return all(os.access(one, os.W_OK, effective_ids=True) for one in paths)


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
