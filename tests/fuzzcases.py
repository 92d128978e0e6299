"""A model that is made up, and a user who presses anything: for the fuzz of the chat."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from reportcases import cycle
from textual import events
from textual.app import App
from textual.drivers.headless_driver import HeadlessDriver
from textual.geometry import Size

from specfit.app.attachments import split_files
from specfit.app.commands import COMMANDS
from specfit.app.keys import KEYS
from specfit.app.store import Message, Store
from specfit.app.tui import ChatApp
from specfit.backend import CycleMeans, Report, Sampling, SpecfitError
from specfit.backend.view import CycleView
from specfit.planner import Reason

PIECES = (
    *(
        "tea",
        " is",
        " hot",
        "\n\n",
        "\n",
        " ",
        "```py\n",
        "```\n",
        "- a\n",
        "| a | b |\n|---|---|\n",
    ),
    *(
        "# T\n",
        "**bo",
        "ld**",
        "`x",
        "`",
        "[l](http",
        "://x)",
        "> q\n",
        "1. one\n",
        "茶🍵",
        "\t",
        "---\n",
    ),
    *("<b>", "&amp;", "[/red]", "[bold", "$x$", "\x07", "é", "</think>", "<think>"),
)
WORDS = ("tea", "why?", "[red]", "a b  c", "ünï", "//x", "@notes.txt", "@nothing.txt", "*", "1 < 2")
COMMAND_LINES = (
    *(f"/{spec.name}" for spec in COMMANDS if spec.name not in ("quit",)),
    *("/open tea", "/search tea", "/system Be brief.", "/branch 1", "/branch 2", "/branch x"),
    *("/export a.md", "/export a.json", "/export b.json", "/import a.json", "/import none.json"),
    *(
        "/copy code",
        "/theme textual-light",
        "/theme none",
        "/model other.gguf",
        "/nonsense",
        "/quit",
    ),
)
PASTES = (
    *(
        "one\ntwo\nthree",
        "x" * 25_000,
        "line\n" * 3_000,
        "\x1b[31mred\x00\r\n",
        "/new",
        "/new\n",
        "  ",
    ),
    *("@notes.txt", "'notes.txt'", "[bold]", "🍵" * 50, "\t\tcode()", "/help me"),
)
EDITING = (
    *("enter", "enter", "escape", "up", "down", "left", "right", "tab", "shift+tab", "backspace"),
    *("delete", "home", "end", "ctrl+a", "ctrl+k", "ctrl+z", "ctrl+y", "ctrl+w", "ctrl+u", "space"),
    *("ctrl+shift+left", "shift+up", "shift+end", "ctrl+j", "ctrl+x", "ctrl+v", "a", "/", "@", "["),
)
SHORTCUTS = tuple(key for one in KEYS for key in one.keys)
KEPT_EVENTS = 60


class MadeUpGeneration:
    """Pieces of Markdown at random, at random speed; now and then it fails, at once or later.

    running: how many there are at work.
    """

    opens_thinking = False

    running = 0

    def __init__(self, draw: random.Random, limit: int | None) -> None:
        self._draw = draw
        self._n = min(draw.choice((0, 1, 3, 20, 60)), 10_000 if limit is None else limit)
        self._stopped = False
        self._text: list[str] = []
        self._reason = ""
        self.watch: Callable[[CycleView], None] | None = None
        self.drafted_spans: list[tuple[int, int]] = []

    def stop(self) -> None:
        self._stopped = True

    @property
    def report(self) -> Report:
        n = len(self._text)
        means = CycleMeans(1.0, 1.0, measured_cycle_ms=5, verify_ms=4, plan_ms=1)
        return Report("".join(self._text), self._reason, 9, n + 1, 1.0, 0.1, n, 0, 0, means)

    def __iter__(self) -> Iterator[str]:
        MadeUpGeneration.running += 1
        try:
            yield from self._pieces()
        finally:
            MadeUpGeneration.running -= 1

    def _pieces(self) -> Iterator[str]:
        draw = self._draw
        pause = draw.choice((0.0, 0.0, 0.001, 0.005))
        fails_at = draw.choice((*(None,) * 8, 0, 2))
        for number in range(self._n):
            time.sleep(pause)
            if self._stopped:
                break
            if number == fails_at:
                raise SpecfitError("it [failed")
            piece = draw.choice(PIECES)
            begins = sum(map(len, self._text))
            self._text.append(piece)
            if draw.random() < 0.3:
                self.drafted_spans.append((begins, begins + len(piece)))
            if self.watch is not None:
                self.watch(seen(piece))
            yield piece
        self._reason = "stopped" if self._stopped else draw.choice(("stop", "length"))


def seen(piece: str) -> CycleView:
    """A cycle of two drafts, the first of them accepted."""
    flags = np.array([True, True, True])
    return CycleView(
        cycle(5.0, 5.0, 2), Reason("mode"), piece, (".", piece, "x"),
        np.array([-1, 0, 1], np.int32), np.array([0, 1, 2], np.int32),
        np.array([1.0, 0.9, 0.4]), np.array([1.0, 0.8, 0.3]), flags, flags & [True, True, False],
        np.array([8.0, 4.0, np.nan]), np.array([12, 13]),
    )  # fmt: skip


class MadeUpEngine:
    """As much of an engine as the chat uses."""

    ctx, drafts, notices = 400, True, ()
    description = "made up, 1 layer"
    recommended_sampling = Sampling()

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.model = SimpleNamespace(
            knows_thinking=True,
            tokenize=lambda text, **_: text.split(),
            info=SimpleNamespace(context_length=4096),
        )

    def trouble(self) -> None: ...

    def count_tokens(self, messages: Sequence[dict[str, str]]) -> int:
        return sum(len(message["content"]) // 4 + 3 for message in messages)

    def generate(
        self, messages: Sequence[dict[str, str]], *, max_tokens: int | None = None, **_: object
    ) -> MadeUpGeneration:
        if self.count_tokens(messages) >= self.ctx:
            raise SpecfitError("too long")
        return MadeUpGeneration(self._draw, max_tokens)

    def close(self) -> None: ...


def made_up_load(seed: int) -> Callable[[object, Callable[[float], bool]], MadeUpEngine]:
    """Loads that take a moment, or long enough to write meanwhile; some fail."""
    draw = random.Random(seed)

    def load(_model: object, progress: Callable[[float], bool], _planned: object) -> MadeUpEngine:
        pause = draw.choice((0.002, 0.002, 0.1))
        for step in range(3):
            time.sleep(pause)
            if not progress(step / 3):
                raise SpecfitError("loading was cancelled")
        if draw.random() < 0.2:
            raise SpecfitError("it is [broken")
        return MadeUpEngine(draw.randrange(1 << 30))

    return load


class Witness:
    """Keeps what a chat's session was told, which must be in the store at the end.

    What is deleted is gone. What is taken back must come into the input again; whatever becomes of
    it there is the user's own doing.
    """

    def __init__(self) -> None:
        self.due: Counter[tuple[int | None, str, str]] = Counter()
        self.taken_back: Counter[str] = Counter()
        self.sent = self.answered = 0

    def watch(self, app: ChatApp) -> None:
        session, restore = app.session, app.composer.restore
        ask, edit, finish, take_back, withdraw = (
            session.ask, session.edit, session.finish, session.take_back, session.withdraw,
        )  # fmt: skip
        store = session.store
        assert store is not None
        delete = store.delete

        def note(message: Message) -> Message:
            self.due[session.conversation, message.role, message.content] += 1
            return message

        def asked(text: str) -> Message:
            self.sent += 1
            return note(ask(text))

        def edited(row: int, text: str) -> Message:
            self.sent += 1
            return note(edit(row, text))

        def finished(*arguments: object, **named: object) -> Message:
            self.answered += 1
            return note(finish(*arguments, **named))  # type: ignore[arg-type]

        def gone(conversation: int | None, question: str | None) -> str | None:
            if question is not None:
                self.due[conversation, "user", question] -= 1
                self.taken_back[split_files(question)[0]] += 1
            return question

        def taken_back(*, question_too: bool = True) -> str | None:
            conversation = session.conversation
            question = take_back(question_too=question_too)
            return gone(conversation, question) if question_too else question

        def withdrawn() -> str | None:
            conversation = session.conversation
            return gone(conversation, withdraw())

        def restored(text: str) -> None:
            restore(text)
            self.taken_back[text] -= 1

        def deleted(conversation: int, **named: bool) -> None:
            delete(conversation, **named)
            for known in list(self.due):
                if known[0] == conversation:
                    del self.due[known]

        session.ask, session.edit, session.finish = asked, edited, finished  # type: ignore[method-assign, assignment]
        session.take_back, store.delete = taken_back, deleted  # type: ignore[method-assign, assignment]
        session.withdraw = withdrawn  # type: ignore[method-assign]
        app.composer.restore = restored  # type: ignore[method-assign]

    def missing(self, path: Path) -> list[tuple[int | None, str, str]]:
        """What is not in the store, opened anew."""
        store = Store(path)
        known = {
            (conversation.id, message.role, message.content)
            for conversation in store.conversations(limit=100_000)
            for message in store.messages(conversation.id)
        }
        store.close()
        return [one for one, times in self.due.items() if times > 0 and one not in known]


class Monkey:
    """Presses keys at random, pastes, clicks, and changes the terminal's size.

    pressed: how many keys, other events counted as one. last: the newest of them, for a report.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.pressed = 0
        self.last: deque[str] = deque(maxlen=KEPT_EVENTS)

    async def act(self, app: App[None]) -> None:
        """Something of what users do; its keys come in one burst."""
        draw, chance = self.draw, self.draw.random()
        if chance < 0.2:
            self._press(app, *draw.choice(((), ("escape",), ("escape", "escape", "ctrl+u"))))
            self._type(app, draw.choice(WORDS), "enter")
        elif chance < 0.4:
            self._type(app, draw.choice(COMMAND_LINES), "escape", "enter")
        elif chance < 0.65:
            self._press(app, *draw.choices(EDITING, k=draw.randint(1, 6)))
        elif chance < 0.85:
            self._press(app, draw.choice(SHORTCUTS))
        elif chance < 0.9:
            self._paste(app, draw.choice(PASTES))
        elif chance < 0.96:
            self._click(app)
        else:
            self._resize(app)
        await asyncio.sleep(draw.choice((0, 0, 0.001, 0.005, 0.02)))

    def _noted(self, what: str) -> None:
        self.pressed += 1
        self.last.append(what)

    def _press(self, app: App[None], *keys: str) -> None:
        for key in keys:
            self._noted(key)
            app.simulate_key(key)

    def _type(self, app: App[None], text: str, *keys: str) -> None:
        for letter in text:
            self._noted(letter)
            app.post_message(events.Key(letter, letter))
        self._press(app, *keys)

    def _paste(self, app: App[None], text: str) -> None:
        self._noted(f"paste {text[:20]!r}")
        app.post_message(events.Paste(text))

    def _click(self, app: App[None]) -> None:
        """Down, perhaps somewhere else up; or the wheel."""
        width, height = app.size
        x, y = self.draw.randrange(max(1, width)), self.draw.randrange(max(1, height))
        kind = self.draw.choice((events.MouseScrollUp, events.MouseScrollDown, None, None, None))
        if kind is not None:
            self._mouse(app, kind, x, y, button=0)
            return
        self._mouse(app, events.MouseDown, x, y)
        if self.draw.random() < 0.3:
            x, y = self.draw.randrange(max(1, width)), self.draw.randrange(max(1, height))
            self._mouse(app, events.MouseMove, x, y)
        self._mouse(app, events.MouseUp, x, y)

    def _mouse(
        self, app: App[None], kind: type[events.MouseEvent], x: int, y: int, button: int = 1
    ) -> None:
        self._noted(f"{kind.__name__} {x},{y}")
        app.post_message(kind(None, x, y, 0, 0, button, False, False, False, x, y))

    def _resize(self, app: App[None]) -> None:
        sizes = ((80, 24), (120, 40), (200, 60), (40, 12), (20, 5), (10, 3), (1, 1))
        size = Size(*self.draw.choice(sizes))
        self._noted(f"resize {size.width}x{size.height}")
        if isinstance(app._driver, HeadlessDriver):
            app._driver._size = size
        app.post_message(events.Resize(size, size))
