"""What the model thought before it answered: one line, which unfolds."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from ..plain_text import shown
from .markdown import StreamedMarkdown


class ThinkingTitle(Static, can_focus=True):
    """The line that unfolds the thinking, by Enter or a click."""

    ALLOW_SELECT = False
    FOCUS_ON_CLICK = False  # the keyboard stays with the input box
    BINDINGS = [Binding("enter", "unfold", "Unfold or fold", show=False)]  # noqa: RUF012

    class Toggled(Message):
        """The title was clicked, or Enter pressed on it."""

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.action_unfold()

    def action_unfold(self) -> None:
        self.post_message(self.Toggled())


class ThinkingBlock(Vertical):
    """Thinking, folded at first. Feed it with `append`, end it with `finish`."""

    DEFAULT_CSS = """
    ThinkingBlock {
        height: auto;
        margin: 0 0 1 0;
    }
    ThinkingBlock ThinkingTitle {
        width: auto;
        color: $text-muted;
        &:hover, &:focus {
            color: $foreground;
            text-style: underline;
        }
    }
    ThinkingBlock Markdown {
        color: $text-muted;
        border-left: solid $panel;
        padding: 0 0 0 1;
    }
    """

    def __init__(
        self,
        text: str = "",
        *,
        seconds: float | None = None,
        running: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """seconds: how long a stored thinking took, if that is known; running: it goes on."""
        super().__init__()
        self.text = text
        self.seconds = seconds
        self._clock = clock
        self._begun = clock() if running else None
        self._title = ThinkingTitle(markup=False)
        self._titled = ""
        self._markdown: StreamedMarkdown | None = None  # made when it is first unfolded
        self._stream: MarkdownStream | None = None
        self._written = 0  # characters of `text` that the Markdown has

    def compose(self) -> ComposeResult:
        self._entitle()
        yield self._title

    @property
    def unfolded(self) -> bool:
        return self._markdown is not None and self._markdown.display

    async def append(self, text: str) -> None:
        """Adds `text` to the end; cheap while folded."""
        self.text += text
        self._entitle()
        await self._write()

    async def finish(self) -> None:
        """The thinking is over: stops its time."""
        if self._begun is not None:
            self.seconds = self._clock() - self._begun
            self._begun = None
        self._entitle()
        await self._end_stream()

    async def toggle(self) -> None:
        """Unfolds or folds it."""
        if self._markdown is None:
            self._written = len(self.text)
            self._markdown = StreamedMarkdown(shown(self.text))
            await self.mount(self._markdown)
        else:
            self._markdown.display = not self._markdown.display
        self._entitle()
        await self._write()
        if self._begun is None:
            await self._end_stream()

    async def on_thinking_title_toggled(self, event: ThinkingTitle.Toggled) -> None:
        event.stop()
        await self.toggle()

    async def _write(self) -> None:
        """Brings the Markdown up to the text, if it is seen."""
        if self._markdown is None or not self.unfolded or self._written == len(self.text):
            return
        if self._stream is None:
            self._stream = Markdown.get_stream(self._markdown)
        text, self._written = self.text[self._written :], len(self.text)
        await self._stream.write(shown(text))

    async def _end_stream(self) -> None:
        """Puts right what may have been read differently piece by piece."""
        if self._stream is not None and self._markdown is not None:
            stream, self._stream = self._stream, None
            await stream.stop()
            await self._markdown.settle(shown(self.text))

    def _entitle(self) -> None:
        title = f"{'▾' if self.unfolded else '▸'} {self._words()}"
        if title != self._titled:
            self._titled = title
            self._title.update(title)

    def _words(self) -> str:
        if self._begun is not None:
            return f"Thinking … {self._clock() - self._begun:.0f} s"
        return "Thought" if self.seconds is None else f"Thought for {self.seconds:.0f} s"
