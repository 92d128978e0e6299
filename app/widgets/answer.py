"""The model's answer: its thinking, folded; Markdown that grows; and a mark of how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from ..plain_text import shown
from ..thinking import OPENED, Split, ThinkingSplitter, split, stripped
from .markdown import StreamedMarkdown, code_blocks
from .thinking_block import ThinkingBlock

CRASHED = "cut off: the program ended in the middle of it"
# Why an answer is not complete, by its status.
MARKS = {
    "stopped": "stopped",
    "length": "cut off: the limit of tokens or of the context is reached",
    "cut": CRASHED,
    "growing": CRASHED,
}
DRAFTED_STYLE = "$text-success underline"


class Answer(Vertical):
    """One answer. Feed it with `append`, end it with `finish`; or give a stored one whole.

    text: as the model wrote it, thinking included. message_id: its row in the store, if it has one.
    """

    DEFAULT_CSS = """
    Answer {
        height: auto;
        padding: 0 1 0 0;
        border-left: blank;
        &.-selected {
            border-left: outer $primary;
        }
        &.-selected:nocolor {
            border-left: double $primary;
        }
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
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    Answer .drafted {
        margin: 0 0 1 0;
    }
    """

    def __init__(
        self,
        text: str = "",
        status: str | None = None,
        *,
        thought_s: float | None = None,
        message_id: int | None = None,
    ) -> None:
        """status, thought_s: of a stored answer, and how long its thinking took, if known."""
        super().__init__()
        parts = split(text)
        self._markdown = StreamedMarkdown(shown(parts.answer))
        self._mark = Static("", classes="mark", markup=False)
        self._stream: MarkdownStream | None = None
        self._splitter = ThinkingSplitter()
        self._prefix = ""
        self._spans: tuple[tuple[int, int], ...] = ()
        self._drafted: Static | None = None  # the text with its drafted parts marked
        self._version = ""
        self._note = "reading …"
        self.thinking = ThinkingBlock(parts.thinking, seconds=thought_s) if parts.thinking else None
        self.text = text
        self.status = status
        self.message_id = message_id
        if status is not None:
            self._note = MARKS.get(status, "")

    def compose(self) -> ComposeResult:
        if self.thinking is not None:
            yield self.thinking
        yield self._markdown
        yield self._mark
        self._show_mark()

    @property
    def thought_s(self) -> float | None:
        """How long the model thought, if it did and that is known."""
        return self.thinking.seconds if self.thinking is not None else None

    @property
    def written(self) -> str:
        """The answer without its thinking."""
        return stripped(self.text)

    @property
    def code_blocks(self) -> list[str]:
        return code_blocks(self.written)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Where `text` came from accepted drafts; a stored answer takes these in `set_spans`."""
        return self._spans

    def open_thinking(self) -> None:
        """The template has written "<think>": what is appended begins behind it."""
        self._splitter = ThinkingSplitter(opened=True)
        self._prefix = OPENED

    async def append(self, text: str) -> None:
        """Adds `text` to the end; cheap however often it is called."""
        if not text:
            return
        if not self.text:
            self.text = self._prefix
            self._remark("")
        self.text += text
        await self._add(self._splitter.feed(text))
        if self._drafted is not None and self._drafted.display:
            self._drafted.update(self._marked())

    async def finish(self, status: str, note: str = "") -> None:
        """Ends the answer and says so where it did not end by itself, in `note` or in our words.

        What streamed in may have been read differently piece by piece; the whole is put right.
        """
        self.status = status
        if self.text:
            await self._add(self._splitter.finish())
        if self.thinking is not None:
            await self.thinking.finish()
        if self._stream is not None:
            await self._stream.stop()
            self._stream = None
            await self._markdown.settle(shown(self.written))
        if self._drafted is not None:
            self._drafted.update(self._marked())
        self._remark(note or MARKS.get(status, ""))

    def set_version(self, position: int, count: int, hint: str = "") -> None:
        """Shows that this is one of several answers; hint: the keys that show the others."""
        self._version = version(position, count, hint)
        self._show_mark()

    def set_spans(self, spans: Iterable[tuple[int, int]]) -> None:
        """Which text came from accepted drafts: [from, to) in characters of what was appended
        (of the whole text, for a stored answer)."""
        shift = len(self._prefix)
        self._spans = tuple((start + shift, end + shift) for start, end in spans)
        if self._drafted is not None:
            self._drafted.update(self._marked())

    async def show_drafted(self, on: bool) -> None:
        """Shows the plain text with what came from accepted drafts underlined, or the Markdown."""
        if on and self._drafted is None:
            self._drafted = Static(self._marked(), classes="drafted", markup=False)
            await self.mount(self._drafted, before=self._markdown)
        if self._drafted is not None:
            self._drafted.display = on
            self._drafted.update(self._marked())
        self._markdown.display = not on
        if self.thinking is not None:
            self.thinking.display = not on

    async def _add(self, parts: Split) -> None:
        if parts.thinking:
            await self._think(parts.thinking)
        if self.thinking is not None and not self._splitter.thinking and self._stream is None:
            await self.thinking.finish()
        if parts.answer:
            if self._stream is None:
                self._stream = Markdown.get_stream(self._markdown)
            await self._stream.write(shown(parts.answer))

    async def _think(self, text: str) -> None:
        if self.thinking is None:
            self.thinking = ThinkingBlock(running=True)
            self.thinking.display = self._markdown.display
            await self.mount(self.thinking, before=0)
        await self.thinking.append(text)

    def _remark(self, note: str) -> None:
        self._note = note
        self._show_mark()

    def _show_mark(self) -> None:
        mark = " · ".join(part for part in (self._note, self._version) if part)
        self._mark.update(mark)
        self._mark.display = bool(mark)

    def _marked(self) -> Content:
        return marked(self.text, self._spans)


def version(position: int, count: int, hint: str) -> str:
    """ "version 2/3 (Alt+Left, Alt+Right)"; empty if there is one only."""
    keys = f" ({hint})" if hint else ""
    return f"version {position}/{count}{keys}" if count > 1 else ""


def marked(text: str, spans: Sequence[tuple[int, int]]) -> Content:
    """`text`, safe to show, with its `spans` (ascending) in DRAFTED_STYLE."""
    parts: list[tuple[str, str]] = []
    at = 0
    for start, end in spans:
        parts += [(shown(text[at:start]), ""), (shown(text[start:end]), DRAFTED_STYLE)]
        at = max(at, end)
    return Content.assemble(*parts, (shown(text[at:]), ""))
