"""Large pastes as short labels: an input box that holds a megabyte takes a second for each key."""

from __future__ import annotations

import re

from .attachments import size_in_words

# A line of this many characters costs some 30 ms a key.
LARGEST = 20_000


class Pastes:
    """Texts by the labels that stand for them, such as "[pasted 1.0 MB]"."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def collapsed(self, text: str) -> str:
        """`text`, or a label for it if it is large; the same text has the same label."""
        if len(text) <= LARGEST:
            return text
        known = next((label for label, other in self._texts.items() if other == text), None)
        return known or self._labelled(text)

    def expanded(self, text: str) -> str:
        """`text` with the pastes in their labels' places."""
        if not self._texts:
            return text
        labels = "|".join(map(re.escape, self._texts))
        return re.sub(labels, lambda match: self._texts[match.group()], text)

    def label_before(self, text: str) -> str | None:
        """The label that `text` ends with."""
        return next((label for label in self._texts if text.endswith(label)), None)

    def _labelled(self, text: str) -> str:
        size = size_in_words(len(text.encode()))
        number = 2
        label = f"[pasted {size}]"
        while label in self._texts:
            label = f"[pasted {size}, no. {number}]"
            number += 1
        self._texts[label] = text
        return label
