"""Text files named in a message as `@path`: what the model sees of them, and finding them by name.

A path with blanks is written `@"my notes.txt"`. The text of each file goes behind the message in a
fence of its own; `split_files` takes a stored message apart again.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .entry import AppError, about
from .plain_text import shown

MAX_BYTES = 2_000_000
MAX_LISTED = 20_000
SNIFFED_BYTES = 4096

_MENTION = re.compile(r'(?<![^\s(])@(?:"([^"\n]+)"|([^\s"@][^\s"]*))')
_CODE = re.compile(r"(`{3,}).*?(?:\1|\Z)|`[^`\n]*`", re.DOTALL)
_BLOCK = re.compile(r"\n\nFile ([^\n]+):\n(`{3,})\n.*?\n\2(?=\n\nFile |\Z)", re.DOTALL)
_TEXT_SUFFIXES = re.compile(
    r".+\.(c|cc|cfg|conf|cpp|css|csv|go|h|hpp|html|ini|java|js|json|jsonl|kt|log|lua|md|py|r|rb|rs|rst"
    r"|sh|sql|swift|tex|toml|ts|tsv|tsx|txt|xml|yaml|yml)",
    re.IGNORECASE,
)
_BINARY_SUFFIXES = re.compile(
    r".+\.(7z|a|avi|bin|bmp|bz2|class|db|dll|docx?|dylib|exe|flac|gguf|gif|gz|ico|jar|jpe?g|mkv|mov"
    r"|mp[34]|np[yz]|o|odt|ogg|onnx|otf|pdf|png|pptx?|pth?|pyc|safetensors|so|tar|tgz|tiff?|ttf|wav"
    r"|web[mp]|woff2?|xlsx?|xz|zip|zst)",
    re.IGNORECASE,
)
_SKIPPED_FOLDERS = frozenset(("__pycache__", "node_modules", "venv"))


@dataclass(frozen=True)
class Attachment:
    """A text file. name: as the user wrote it; size: bytes of the file; text: safe to show."""

    name: str
    size: int
    text: str


def attached(message: str, folder: Path) -> list[Attachment]:
    """The files that `message` names, each once, in order; relative paths start at `folder`.

    What is no file is left alone (`missing`), and so is code. Raises AppError for a file that is
    too large, not text, or cannot be read.
    """
    files: dict[Path, Attachment] = {}
    for written, _ in _mentions(message):
        name, path = _found(written, folder)
        if path is not None and path not in files:
            try:
                files[path] = _read(name, path)
            except AppError as error:
                raise AppError(f"{error} (`@{name}` is sent as it is written)") from error
    return list(files.values())


def missing(message: str, folder: Path) -> list[str]:
    """What `message` names, each once, that looks like a file and is none: a package's name, or a
    slip. A decorator, say, does not look like one."""
    named = ((*_found(written, folder), quoted) for written, quoted in _mentions(message))
    found = (
        name
        for name, path, quoted in named
        if path is None and (quoted or "/" in name or _TEXT_SUFFIXES.fullmatch(name))
    )
    return list(dict.fromkeys(found))


def sent_as_text(names: Sequence[str]) -> str:
    """What is said of those that are missing."""
    *rest, last = (f"@{name}" for name in names)
    both = f"{', '.join(rest)} and {last} are no files" if rest else f"{last} is no file"
    return f"{both} here: sent as text"


def with_files(message: str, attachments: Sequence[Attachment]) -> str:
    """What the model sees: the message, and behind it each file with its name."""
    return message + "".join(_block(attachment) for attachment in attachments)


def split_files(content: str) -> tuple[str, tuple[str, ...]]:
    """The message as it was written, and the names of the files behind it."""
    for start in _BLOCK.finditer(content):
        names, at = [], start.start()
        while block := _BLOCK.match(content, at):
            names.append(block.group(1))
            at = block.end()
        if at == len(content):
            return content[: start.start()], tuple(names)
    return content, ()


def text_files(folder: Path) -> list[str]:
    """Paths of the files in `folder` and below, as written behind an @, sorted by depth and name.

    Hidden and binary ones (by their names) are left out; at most MAX_LISTED.
    """
    found: list[str] = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f[0] != "." and f not in _SKIPPED_FOLDERS)
        inside = Path(place).relative_to(folder).as_posix().removeprefix(".")
        prefix = f"{inside}/" if inside else ""
        for name in sorted(names):
            if name[0] != "." and not _BINARY_SUFFIXES.fullmatch(name):
                found.append(prefix + name)
        if len(found) >= MAX_LISTED:
            break
    return sorted(found[:MAX_LISTED], key=lambda path: (path.count("/"), path.lower()))


def matching(typed: str, paths: Sequence[str], limit: int) -> list[str]:
    """The paths that hold the characters of `typed` in this order, best first.

    Better is: as one piece, at the beginning of a name, in a short path.
    """
    typed = typed.lower()
    if not typed:
        return list(paths[:limit])
    order = re.compile(".*?".join(map(re.escape, typed)))
    scored = []
    for path in paths:
        lower = path.lower()
        loose = order.search(lower)
        if loose is not None:
            name = lower.rpartition("/")[2]
            rank = (
                0 if name.startswith(typed) else 1 if typed in name else 2 if typed in lower else 3,
                loose.end() - loose.start(),
                len(path),
            )
            scored.append((rank, path))
    return [path for _, path in sorted(scored)[:limit]]


def looks_binary(path: Path) -> bool:
    """Whether the beginning of the file is not text, or cannot be read.

    Only what is surely there is read: a pipe, or a file of the kernel, might let us wait for ever.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return True
        if status.st_size == 0:
            return False
        with path.open("rb") as file:
            return b"\0" in file.read(SNIFFED_BYTES)
    except OSError:
        return True


def size_in_words(size: int) -> str:
    """Bytes as "12 B", "3.4 kB" or "1.2 MB"."""
    if size < 1000:
        return f"{size} B"
    return f"{size / 1e3:.1f} kB" if size < 999_950 else f"{size / 1e6:.1f} MB"


def _mentions(message: str) -> Iterator[tuple[str, bool]]:
    """What stands behind each @ outside code, and whether it is quoted."""
    for match in _MENTION.finditer(_CODE.sub(" ", message)):
        quoted, plain = match.groups()
        yield (quoted, True) if quoted is not None else (plain, False)


def _found(written: str, folder: Path) -> tuple[str, Path | None]:
    """The file that is meant, without the punctuation of the sentence if there is none with it."""
    bare = written.rstrip(".,;:!?)]}'")
    for name in (written, bare):
        path = _path(name, folder)
        if name and path is not None:
            return name, path
    return bare, None


def _path(name: str, folder: Path) -> Path | None:
    try:
        path = folder / Path(name).expanduser()
        return path.resolve() if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, nobody's home
        return None


def _read(name: str, path: Path) -> Attachment:
    if path.is_dir():
        raise AppError(f"@{name} is a folder; name a file in it")
    if not path.is_file():
        raise AppError(f"@{name} is not an ordinary file")
    with about(f"@{name}"), path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
        size = max(len(data), path.stat().st_size)
    if size > MAX_BYTES:
        most = size_in_words(MAX_BYTES)
        raise AppError(
            f"@{name} is too large: {size_in_words(size)}, at most {most} go in a message"
        )
    if b"\0" in data:
        raise AppError(f"@{name} is not a text file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AppError(f"@{name} is not UTF-8 text (byte {error.start})") from error
    return Attachment(name, size, shown(text))


def _block(attachment: Attachment) -> str:
    runs = re.findall(r"`{3,}", attachment.text)
    fence = "`" * (1 + max(map(len, runs), default=2))
    text = attachment.text.removesuffix("\n")
    return f"\n\nFile {attachment.name}:\n{fence}\n{text}\n{fence}"
