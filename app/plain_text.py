"""Text from a model or a file, made safe to print: control characters are shown, not obeyed.

A terminal acts on escape sequences: they move the cursor, set the title, write to the clipboard.
Each control character is therefore replaced by a visible sign of it; the rest of a sequence is
then ordinary text. So are the characters that turn the direction of what follows them: with them
text reads otherwise than it is.
"""

from __future__ import annotations

import unicodedata

_KEPT = "\n\t"
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in _KEPT}
_DELETE = {0x7F: "\u2421"}
# Bytes 80-9F are control characters too; 9B alone starts a sequence. They have no pictures.
_C1 = {code: f"<{code:02X}>" for code in range(0x80, 0xA0)}
_TURNS = {code: f"<{code:04X}>" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_TABLE = {**_PICTURES, **_DELETE, **_C1, **_TURNS}
_NOT_TYPED = ("Cc", "Cs", "Zl", "Zp")  # controls, halves of characters, separators of lines


def shown(text: str) -> str:
    """`text` with line ends as newlines and every other control character made visible."""
    return text.replace("\r\n", "\n").translate(_TABLE)


def can_be_typed(character: str) -> bool:
    """Whether it stands for itself in a line of text, be it visible or, as a joiner, not."""
    return ord(character) not in _TABLE and unicodedata.category(character) not in _NOT_TYPED
