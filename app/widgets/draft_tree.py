"""The last draft trees, drawn: what was accepted, what was verified, what the planner pruned."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ..plain_text import shown

if TYPE_CHECKING:
    from specfit.backend.view import CycleView

REMEMBERED = 40
# Of what was pruned, so many of the likeliest nodes are drawn.
PRUNED_DRAWN = 8
ACCEPTED, VERIFIED, PRUNED = "●", "○", "·"
STYLES = {ACCEPTED: "$text-success bold", VERIFIED: "", PRUNED: "$text-muted"}
NUMBERS = "The chance of being committed, and experts a layer that no node above brought."
NUMBERS_WIDTH = 12  # " 100%  +12.3"
LEAST_TEXT = 4


@dataclass(frozen=True)
class Line:
    """A node as drawn. branch: the box characters before it. numbers: after it, on the right."""

    branch: str
    mark: str
    text: str
    numbers: str


class DraftTreeView(VerticalScroll):
    """The newest cycle that drafted; Left and Right go to older and newer ones."""

    DEFAULT_CSS = """
    DraftTreeView {
        height: 1fr;
        min-height: 4;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
        border-top: solid $panel;
        border-title-color: $text-muted;
        &:focus {
            border-top: solid $primary;
        }
        &:focus:nocolor {
            border-title-style: reverse;
        }
    }
    DraftTreeView Static {
        width: 1fr;
        height: auto;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "turn(-1)", "Older draft", show=False),
        Binding("right", "turn(1)", "Newer draft", show=False),
        Binding("end", "turn(999)", "Newest draft", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._views: deque[CycleView] = deque(maxlen=REMEMBERED)
        self._looked_at: CycleView | None = None  # None follows the newest
        self._nothing = "Nothing drafted yet."
        self._drawing = Static(self._nothing, markup=False)
        self.tooltip = NUMBERS
        self._drawn: tuple[CycleView | None, int, str] | None = None
        self._n_lines = 0

    def compose(self) -> ComposeResult:
        yield self._drawing

    def on_mount(self) -> None:
        self.draw()

    def on_resize(self, _event: events.Resize) -> None:
        self.draw()

    @property
    def selected(self) -> CycleView | None:
        """The view that is drawn; None while there is none."""
        if self._looked_at is not None:
            return self._looked_at
        return self._views[-1] if self._views else None

    def add(self, views: Sequence[CycleView]) -> None:
        """Remembers those that drafted; `draw` brings them to the screen."""
        self._views.extend(view for view in views if len(view))

    def clear(self, nothing: str) -> None:
        """Forgets all; nothing: what to say until something is drafted."""
        self._views.clear()
        self._looked_at = self._drawn = None
        self._nothing = nothing
        self.draw()

    def explain(self, nothing: str) -> None:
        """What to say instead until something is drafted."""
        if nothing != self._nothing and not self._views:
            self._nothing, self._drawn = nothing, None

    def draw(self) -> None:
        """Draws the selected tree, if that is not on the screen already."""
        width = self.scrollable_content_region.width
        view = self.selected
        title = self._title(view)
        # Views are compared by what they are: what they hold is arrays, which cannot be.
        seen, seen_width, seen_title = self._drawn or (None, None, None)
        is_drawn = self._drawn is not None and seen is view and seen_width == width
        if not width or (is_drawn and seen_title == title):
            return
        if not is_drawn:
            content = (
                Content(wrapped(self._nothing, width)) if view is None else drawing(view, width)
            )
            n_lines = content.plain.count("\n")
            self._drawing.update(content, layout=n_lines != self._n_lines)
            self._n_lines = n_lines
            if self.scroll_offset.y:
                self.scroll_home(animate=False)
        self._drawn = (view, width, title)
        self.border_title = title

    def action_turn(self, by: int) -> None:
        """Goes to newer (by > 0) or older trees; at the newest it follows again."""
        if not self._views:
            return
        at = self._place(self.selected) + by
        at = max(0, min(at, len(self._views) - 1))
        self._looked_at = None if at == len(self._views) - 1 else self._views[at]
        self.draw()

    def _place(self, view: CycleView | None) -> int:
        """Its place among those remembered; the oldest's if it is remembered no more."""
        return next((i for i, other in enumerate(self._views) if other is view), 0)

    def _title(self, view: CycleView | None) -> str:
        if view is None:
            return "Drafts"
        follows = "newest" if self._looked_at is None else f"{self._place(view) + 1}"
        return f"Draft tree: {follows} of {len(self._views)} ←→"


def drawing(view: CycleView, width: int) -> Content:
    """The whole tree, a node a line, in so many cells."""
    accepted, verified = int(view.accepted.sum()) - 1, int(view.kept.sum()) - 1
    pruned = len(view) - 1 - verified
    legend = (
        f"{ACCEPTED}{accepted} accepted {VERIFIED}{verified - accepted} verified "
        f"{PRUNED}{pruned} pruned"
    )
    parts: list[str | tuple[str, str]] = [(fitted(legend, width), "$text-muted")]
    for line in tree_lines(view):
        room = max(width - NUMBERS_WIDTH, LEAST_TEXT + 2)
        branch = line.branch[: max(0, room - LEAST_TEXT - 2)]
        text = fitted(f"{line.mark} {line.text}", room - len(branch))
        parts += ["\n", (branch, "$text-muted"), (text, STYLES[line.mark])]
        parts.append((fitted(line.numbers, width - room), "$text-muted"))
    parts += ["\n", (fitted(f"→ {visible(view.sampled)}", width), "bold")]
    return Content.assemble(*parts)


def tree_lines(view: CycleView) -> Iterator[Line]:
    """The nodes in the order they are drawn: likelier siblings first, each before its children.

    Of the pruned ones, the likeliest whose parents were verified.
    """
    children: dict[int, list[int]] = {}
    left_out = [n for n in range(1, len(view)) if not view.kept[n] and view.kept[view.parents[n]]]
    left_out.sort(key=lambda node: -view.chances[node])
    drawn = [n for n in range(1, len(view)) if view.kept[n]] + left_out[:PRUNED_DRAWN]
    for node in drawn:
        children.setdefault(int(view.parents[node]), []).append(node)
    for siblings in children.values():
        siblings.sort(key=lambda node: (not view.kept[node], -view.chances[node]))
    stack = [(0, "", "")]
    while stack:
        node, branch, below = stack.pop()
        yield _line(view, node, branch)
        siblings = children.get(node, [])
        for child in reversed(siblings):
            last = child == siblings[-1]
            stack.append((child, below + ("└" if last else "├"), below + (" " if last else "│")))


def _line(view: CycleView, node: int, branch: str) -> Line:
    mark = ACCEPTED if view.accepted[node] else VERIFIED if view.kept[node] else PRUNED
    chance = _percent(float(view.chances[node])) if node else ""
    new = view.new_experts[node]
    experts = f"{new:+.1f}" if new == new else ""  # NaN where it was not seen
    return Line(branch, mark, visible(view.texts[node]), f"{chance:>5}{experts:>7}")


def _percent(share: float) -> str:
    return "<1%" if share < 0.005 else f"{share:.0%}"


def visible(text: str) -> str:
    """A token on one line: what is nothing but blanks is seen, what else it has too."""
    if text and not text.strip(" "):
        return "␣" * len(text)
    return shown(text).strip(" ").replace("\n", "↵").replace("\t", "⇥")


def wrapped(text: str, width: int) -> str:
    """`text` in lines of so many cells; it has only characters of one."""
    return "\n".join("\n".join(wrap(line, max(1, width))) for line in text.split("\n"))


def fitted(text: str, width: int) -> str:
    """`text` in exactly so many cells, with an ellipsis where it is cut."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(set_cell_size(text, max(0, width - 1)) + "…", width)
