"""The model's answer: Markdown that grows as it streams, and a mark of how it ended."""

from __future__ import annotations

from markdown_it import MarkdownIt
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from ..plain_text import shown

# Why an answer is not complete, by the engine's finish reasons.
MARKS = {
    "stopped": "stopped",
    "length": "cut off: the limit of tokens or of the context is reached",
}


class Answer(Vertical):
    """One answer. Feed it with `append`, end it with `finish`."""

    DEFAULT_CSS = """
    Answer {
        height: auto;
        padding: 0 1;
    }
    Answer Markdown {
        margin: 0;
        padding: 0;
        background: transparent;
    }
    Answer .mark {
        margin: 0 0 1 0;
        color: $text-muted;
        text-style: italic;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._markdown = Markdown(parser_factory=_parser)
        self._mark = Static("reading …", classes="mark", markup=False)
        self._stream: MarkdownStream | None = None
        self.text = ""

    def compose(self) -> ComposeResult:
        yield self._markdown
        yield self._mark

    async def append(self, text: str) -> None:
        """Adds `text` to the end; cheap however often it is called."""
        if not text:
            return
        if self._stream is None:
            self._mark.display = False
            self._stream = Markdown.get_stream(self._markdown)
        self.text += text
        await self._stream.write(shown(text))

    async def finish(self, finish_reason: str) -> None:
        """Ends the answer and says so where it did not end by itself.

        The whole text is set anew: what streamed in may have been read differently piece by piece.
        """
        if self._stream is not None:
            await self._stream.stop()
            self._stream = None
            await self._markdown.update(shown(self.text))
        mark = MARKS.get(finish_reason, "")
        self._mark.update(mark)
        self._mark.display = bool(mark)


def _parser() -> MarkdownIt:
    """Markdown without HTML: a tag that the model writes is text, and is seen."""
    return MarkdownIt("gfm-like", {"html": False})
