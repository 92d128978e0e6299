"""A file of JSON lines that holds whole lines only, whatever happens while it is written, and that
can be gone on with."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from .entry import AppError, about

# Every line begins so; it is how a file is known to be ours.
BEGINNING = b'{"key": "'


class LinesOut:
    """Appends JSON lines to a file; within its `with` block.

    Opening is also the check that it can be written, so do it before long work. A file that was not
    written here is refused, and so is one that another process writes. Of a last line that was torn
    by a crash, what is there is taken away. An error before the first line leaves no empty file
    behind. A pipe or a device may be named too.
    """

    def __init__(self, path: Path) -> None:
        """Raises AppError if `path` cannot be written, or has content that is not ours."""
        self.path = path
        existed = path.exists()
        with about(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            status = os.fstat(self._fd)
            self.is_file = stat.S_ISREG(status.st_mode)
            self._is_new = self.is_file and not existed
            self._size = 0
            if self.is_file:
                with about(path):
                    self._lock()
                    self._size = self._whole()
                    if not existed:
                        sync_folder(path)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> LinesOut:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        failed = kind is not None and issubclass(kind, Exception)
        if failed and self._is_new and not self._size:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines that the file has, one after the other.

        Raises AppError for one that was not written here.
        """
        if not self._size:
            return
        with about(self.path), self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    record = None
                if not isinstance(record, dict) or not isinstance(record.get("key"), str):
                    raise AppError(f"{self.path}: line {number} was {_NOT_OURS}")
                yield record

    def write(self, record: dict[str, Any]) -> None:
        """Writes one line and syncs it to the disk; its first key must be "key".

        Non-ASCII characters are escaped: some are line ends to some readers. Raises AppError if
        the line cannot be written whole; the file then ends with the line before it.
        """
        line = json.dumps(record).encode("ascii") + b"\n"
        with about(self.path):
            try:
                self._write_whole(line)
            except OSError:
                if self.is_file:
                    os.ftruncate(self._fd, self._size)
                raise
        self._size += len(line)

    def _write_whole(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        if self.is_file:
            os.fsync(self._fd)

    def _lock(self) -> None:
        """Until the process ends, however it ends."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AppError(f"{self.path} is being written by another specfit-batch") from None
        except OSError:  # some network file systems have no locks
            pass

    def _whole(self) -> int:
        """Bytes of whole lines, after what is behind them was cut off."""
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = _last_line_start(file, size)
            file.seek(0)
            begins = file.read(len(BEGINNING))
        # A torn line may be shorter than that.
        if begins != BEGINNING[: len(begins)] or (start and len(begins) < len(BEGINNING)):
            raise AppError(f"{self.path}: line 1 was {_NOT_OURS}")
        if start < size:
            os.ftruncate(self._fd, start)
            os.fsync(self._fd)
        return start


_NOT_OURS = "not written by specfit-batch; move the file away or name another"


def _last_line_start(file: Any, size: int) -> int:
    """Where what is behind the last line end begins."""
    block, at = 1 << 16, size
    while at:
        at = max(0, at - block)
        file.seek(at)
        if (found := file.read(block).rfind(b"\n")) >= 0:
            return int(at + found + 1)
    return 0


def sync_folder(path: Path) -> None:
    """Has a file's name survive a power cut."""
    fd = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
