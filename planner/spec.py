"""The speculation mode as typed:
off, chain:K, eagle3[:TOTAL[:DEPTH[:K]]], count, specfit[:ratio].
"""

from __future__ import annotations

from dataclasses import dataclass

MODES = "off, chain:K, eagle3[:TOTAL[:DEPTH[:K]]], count, specfit or specfit:ratio"
# EAGLE-3's published tree: 60 nodes, 7 expansions after the first level, 10 children.
EAGLE3_DEFAULTS = (60, 7, 10)
# A tree's nodes, its root among them: more rows are not verified at once.
MOST_NODES = 64


@dataclass(frozen=True)
class Spec:
    """A parsed mode; `str` gives back what was typed."""

    text: str
    mode: str
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.text

    @property
    def drafts(self) -> bool:
        return self.mode != "off"

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Raises ValueError, in one sentence, for what is no mode."""
        mode, *rest = text.strip().split(":")
        refusal = ValueError(f"{text!r} is no speculation mode; the modes are {MODES}")
        if mode in ("off", "count") and not rest:
            return cls(text, mode)
        if mode == "specfit" and rest in ([], ["ratio"]):
            return cls(text, "specfit:ratio" if rest else mode)
        if mode not in ("chain", "eagle3") or not all(n.isascii() and n.isdigit() for n in rest):
            raise refusal
        numbers = tuple(int(n) for n in rest)
        if any(n < 1 for n in numbers):
            raise refusal
        if mode == "chain" and numbers[1:] == () and numbers[:1] >= (MOST_NODES,):
            raise ValueError(
                f"{text!r} drafts too much; a chain has {MOST_NODES - 1} tokens at most"
            )
        if mode == "eagle3" and numbers[:1] > (MOST_NODES,):
            raise ValueError(f"{text!r} drafts too much; a tree has {MOST_NODES} tokens at most")
        if mode == "chain" and len(numbers) == 1:
            return cls(text, mode, numbers)
        if mode == "eagle3" and len(numbers) <= 3:
            return cls(text, mode, (*numbers, *EAGLE3_DEFAULTS[len(numbers) :]))
        raise refusal
