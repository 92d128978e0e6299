"""Reading Markdown as all widgets do."""

from __future__ import annotations

from markdown_it import MarkdownIt


def parser() -> MarkdownIt:
    """Markdown without HTML: a tag that the model writes is text, and is seen."""
    return MarkdownIt("gfm-like", {"html": False})


def code_blocks(text: str) -> list[str]:
    """The blocks of code in `text`, from top to bottom, in lists and quotes as well."""
    tokens = parser().parse(text)
    return [token.content for token in tokens if token.type in ("fence", "code_block")]
