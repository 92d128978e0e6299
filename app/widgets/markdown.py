"""Reading Markdown as all widgets do, and a widget for text that streams in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock


class StreamedMarkdown(Markdown):
    """Markdown that is appended to, and put right at the end by `settle`."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text or None, parser_factory=parser)

    async def settle(self, text: str) -> None:
        """Shows `text` as it is read as a whole.

        Setting all blocks anew keeps the event loop busy, half a second for a long answer. Pieces
        were read from the beginning of a block on, so blocks in the same lines are right already;
        but a link may be defined in another block, and Textual mends tables row by row.
        """
        env: dict[str, Any] = {}
        tokens = await asyncio.to_thread(parser().parse, text, env)
        tables = any(token.type == "table_open" for token in tokens)
        blocks = [
            (child.name, *child.source_range)
            for child in self.children
            if isinstance(child, MarkdownBlock)
        ]
        kept = not tables and not env.get("references") and self.source == text
        if not kept or blocks != _places(tokens):
            await self.update(text)


def parser() -> MarkdownIt:
    """Markdown without HTML: a tag that the model writes is text, and is seen."""
    return MarkdownIt("gfm-like", {"html": False})


def code_blocks(text: str) -> list[str]:
    """The blocks of code in `text`, from top to bottom, in lists and quotes as well."""
    tokens = parser().parse(text)
    return [token.content for token in tokens if token.type in ("fence", "code_block")]


def _places(tokens: Sequence[Token]) -> list[tuple[str | None, int, int]]:
    """The type and the lines [from, to) of each block that is in no other."""
    return [
        (token.type, token.map[0], token.map[1])
        for token in tokens
        if token.level == 0 and token.nesting >= 0 and token.map is not None
    ]
