"""A file of JSON lines that holds whole lines only, whatever happens while it is written."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Any

from .entry import AppError, about


class LinesOut:
    """Appends JSON lines to a new file; within its `with` block.

    Opening is also the check that it can be written, so do it before long work. A file that has
    content is refused: it may be hours of answers. An error before the first line leaves no empty
    file behind. A pipe or a device may be named too.
    """

    def __init__(self, path: Path) -> None:
        """Raises AppError if `path` cannot be written or has content."""
        self._path = path
        existed = path.exists()
        with about(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        status = os.fstat(self._fd)
        self._is_file = stat.S_ISREG(status.st_mode)
        self._is_new = self._is_file and not existed
        self._size = 0
        if self._is_file and status.st_size:
            os.close(self._fd)
            raise AppError(f"{path} exists and has content; move it away or name another file")

    def __enter__(self) -> LinesOut:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)
        failed = kind is not None and issubclass(kind, Exception)
        if failed and self._is_new and not self._size:
            self._path.unlink(missing_ok=True)

    def write(self, record: dict[str, Any]) -> None:
        """Writes one line and syncs it to the disk.

        Non-ASCII characters are escaped: some are line ends to some readers. Raises AppError if
        the line cannot be written whole; the file then ends with the line before it.
        """
        line = json.dumps(record).encode("ascii") + b"\n"
        with about(self._path):
            try:
                self._write_whole(line)
            except OSError:
                if self._is_file:
                    os.ftruncate(self._fd, self._size)
                raise
        self._size += len(line)

    def _write_whole(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        if self._is_file:
            os.fsync(self._fd)
