"""Large pastes as short labels: an input box that holds a megabyte takes a second for each key."""

from __future__ import annotations

import re

from .attachments import size_in_words

# A line of this many characters costs some 30 ms a key.
LARGEST = 20_000
# Of a text whose pastes are not known any more, so much stays to be seen and written on at either
# end: that is where one writes around a paste.
ENDS = 160


class Pastes:
    """Texts by the labels that stand for them, such as "[pasted 1.0 MB]"."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def pasted(self, text: str) -> str:
        """`text`, or a label for it if it is large; the same text has the same label."""
        if len(text) <= LARGEST:
            return text
        known = next((label for label, other in self._texts.items() if other == text), None)
        return known or self._labelled(text)

    def collapsed(self, text: str) -> str:
        """A message with labels for the pastes that are known in it; if it is large all the same,
        with one for all between its ends."""
        short = text
        for label, pasted in self._texts.items():
            short = short.replace(pasted, label)
        if len(short) <= LARGEST:
            return short
        begin, end = _first_words(text), len(text) - _first_words(text[::-1])
        return text[:begin] + self._labelled(text[begin:end]) + text[end:]

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


def _first_words(text: str) -> int:
    """Where the first line of `text` ends, or as many words of it as are to be seen."""
    head = text[:ENDS]
    line, blank = head.find("\n"), head.rfind(" ")
    return next((at + 1 for at in (line, blank) if at >= 0), len(head))
