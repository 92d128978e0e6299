"""Opening, finding and carrying conversations: the chat's actions on its store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .chat_setup import kept_parameters
from .chat_view import ViewActions
from .entry import AppError, about
from .store import Store, StoreError, import_json, to_json, to_markdown

if TYPE_CHECKING:
    from .widgets.search_screen import Hit


EVERY = 100_000


class ConversationActions(ViewActions):
    """What there is to do with conversations as wholes."""

    async def action_new_chat(self) -> None:
        """Begins a new conversation, which has the whole context to itself."""
        if self.busy():
            return
        self.session.new(self.session.system)
        self.parameters = self.setup.parameters
        self.forget_figures()
        await self.show_conversation()

    async def action_import(self, file: str) -> None:
        """Reads a conversation from a file and opens it."""
        if self.busy():
            return
        path = Path(file).expanduser()
        with about(path):
            text = path.read_text(encoding="utf-8", errors="replace")
        try:
            conversation, added = import_json(self._store(), text)
            await self._open(conversation)
        except StoreError as error:
            raise AppError(f"{path}: {error}") from error
        told = "It is kept here now." if added else "Nothing in it was new."
        self.notify(told, timeout=3)

    async def action_export(self, file: str = "") -> None:
        """Writes the conversation: Markdown as it is shown, JSON with all branches."""
        path = Path(file).expanduser() if file else _free(Path(f"{_slug(self.session.title)}.md"))
        if path.suffix not in (".md", ".json"):
            raise AppError("/export: the file's name must end in .md or .json")
        if file and path.exists():
            raise AppError(f"/export: {path} is there already")
        if path.suffix == ".json":
            text = to_json(self.session.current)
        else:
            text = to_markdown(self.session.title or "Conversation", self.session.path)
        with about(path):
            path.write_text(text, encoding="utf-8")
        self.notify(f"Written to {path}", timeout=4, markup=False)

    async def _open(self, conversation: int, message: int | None = None) -> None:
        self.session.open(conversation, message)
        self.parameters = kept_parameters(self.session, self.setup.parameters)
        self.forget_figures()
        await self.show_conversation()

    def action_open_conversation(self, words: str = "") -> None:
        """Lets the user choose an earlier conversation."""
        if self.busy():
            return
        from .widgets.conversations_screen import ConversationsScreen

        store = self._store()

        def delete(conversation: int) -> None:
            if conversation == self.session.conversation:
                self.call_from_thread(self.session.new, self.session.system)
            store.delete(conversation)

        screen = ConversationsScreen(lambda: store.conversations(limit=EVERY), delete, words=words)
        self.push_screen(screen, self._opened)

    def action_search(self, words: str = "") -> None:
        """Searches all conversations, and opens the one that is chosen, at the message."""
        if self.busy():
            return
        from .widgets.search_screen import SearchScreen

        self.push_screen(SearchScreen(self._store().search, words=words), self._found)

    def _opened(self, conversation: int | None) -> None:
        if conversation is not None:
            self.call_later(self._open_safely, conversation, None)
        elif not self.session.path:  # the one that was open has been deleted
            self.call_later(self.show_conversation)

    def _found(self, hit: Hit | None) -> None:
        if hit is not None:
            self.call_later(self._open_safely, hit.conversation, hit.message)

    async def _open_safely(self, conversation: int, message: int | None) -> None:
        try:
            await self._open(conversation, message)
        except StoreError as error:
            self.complain(error)

    def _store(self) -> Store:
        if self.session.store is None:
            raise AppError("conversations of this window are not kept")
        return self.session.store


def _slug(title: str) -> str:
    words = "".join(c if c.isalnum() else " " for c in title).split()
    return "-".join(words)[:60] or "conversation"


def _free(path: Path) -> Path:
    """`path`, or with a number behind its stem where that is taken."""
    taken, number = path, 1
    while taken.exists():
        number += 1
        taken = path.with_stem(f"{path.stem}-{number}")
    return taken
