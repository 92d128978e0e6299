"""Rows read from a file's pages one by one, for where the pages that lead to them are lost.

The format: https://www.sqlite.org/fileformat2.html, "B-tree Pages" and "Record Format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

TABLE_LEAF = 0x0D
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)


def rows_of(file: bytes, page_size: int, columns: int) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Rowid and values of all rows with so many columns, whatever table they are of or were of."""
    for start in range(0, len(file) - page_size + 1, page_size):
        if file[start] != TABLE_LEAF:
            continue
        (cells,) = struct.unpack_from(">H", file, start + 3)
        for number in range(min(cells, page_size // 4)):
            try:
                (at,) = struct.unpack_from(">H", file, start + 8 + 2 * number)
                length, at = _varint(file, start + at)
                rowid, at = _varint(file, at)
                values = _values(_payload(file, page_size, at, length), columns)
            except (IndexError, struct.error, ValueError):
                continue
            if values is not None:
                yield rowid, values


def _payload(file: bytes, page_size: int, at: int, length: int) -> bytes:
    """What a cell holds, with its overflow pages. Raises ValueError if they are lost."""
    local = most = page_size - 35
    if length <= most:
        return file[at : at + length]
    least = (page_size - 12) * 32 // 255 - 23
    local = least + (length - least) % (page_size - 4)
    local = local if local <= most else least
    found = [file[at : at + local]]
    left, at = length - local, at + local
    while left > 0:
        (page,) = struct.unpack_from(">I", file, at)
        at = (page - 1) * page_size
        if not 0 < at < len(file) or len(found) * page_size > len(file):
            raise ValueError("no such page")
        found.append(file[at + 4 : at + 4 + min(left, page_size - 4)])
        left -= page_size - 4
    return b"".join(found)


def _values(payload: bytes, columns: int) -> tuple[Any, ...] | None:
    """None if the record has another number of columns."""
    end, at = _varint(payload, 0)
    types: list[int] = []
    while at < end and len(types) <= columns:
        kind, at = _varint(payload, at)
        types.append(kind)
    if len(types) != columns or at != end:
        return None
    values = []
    for kind in types:
        value, at = _value(payload, at, kind)
        values.append(value)
    return tuple(values) if at == len(payload) else None


def _value(payload: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == 0:
        return None, at
    if kind < len(_INTEGER_BYTES):
        end = at + _INTEGER_BYTES[kind]
        return int.from_bytes(payload[at:end], "big", signed=True), end
    if kind == 7:
        return struct.unpack_from(">d", payload, at)[0], at + 8
    if kind in (8, 9):
        return kind - 8, at
    end = at + (kind - 12) // 2
    if kind < 12 or end > len(payload):
        raise ValueError("no such value")
    data = payload[at:end]
    return (data.decode("utf-8", "replace") if kind % 2 else data), end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number in range(8):
        value = value << 7 | data[at + number] & 0x7F
        if data[at + number] < 0x80:
            return value, at + number + 1
    return value << 8 | data[at + 8], at + 9
