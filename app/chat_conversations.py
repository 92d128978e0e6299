"""Opening, finding and carrying conversations: the chat's actions on its store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.worker import Worker

from .chat_setup import Setup, kept_parameters, told_of_kept
from .chat_shown import ShownConversation
from .chat_words import with_home
from .entry import AppError, about
from .keys import key_name, keys_of
from .plain_text import shown
from .store import Store, StoreError, Unsent, import_json, to_json, to_markdown
from .unsent import UnsentText
from .widgets.note import Note

if TYPE_CHECKING:
    from .widgets.search_screen import Hit


EVERY = 100_000
BROUGHT_BACK = "What was written last and not sent is in the input again"
PROMPT_KEPT = "A system prompt was being written; {} shows it."
ELSEWHERE = "What was written and not sent in “{}” is kept there; /open brings it back."


class ConversationActions(ShownConversation):
    """What there is to do with conversations as wholes."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.unsent = UnsentText(setup.session.store)
        self._changing_unsent = False  # the input is still that of the conversation before

    async def action_new_chat(self) -> None:
        """Begins a new conversation, which has the whole context to itself."""
        if self.busy():
            return
        self.note_unsent()
        self._changing_unsent = True
        try:
            await self._begin_conversation()
        finally:
            self._changing_unsent = False
        # What is being written is taken along, but not an older message that is written anew.
        if self.composer.editing is not None or not self.composer.text.strip():
            await self._change_unsent()

    async def _begin_conversation(self) -> None:
        """Another one, with the same system prompt, in the place of the one that is shown."""
        self.session.new(self.session.system)
        self.parameters = self.setup.parameters
        self.forget_figures()
        await self.show_conversation()

    async def _leave_deleted(self) -> None:
        """The open conversation goes: nothing of it can be edited any more."""
        self.composer.leave_editing()
        await self._begin_conversation()

    def action_rename(self, title: str) -> None:
        """Gives the conversation another title."""
        if not self.session.turns:
            raise AppError("/rename: there is nothing to give a title to yet")
        self.session.rename(title)
        self.notify(f"It is called “{shown(self.session.title)}” now.", timeout=3, markup=False)

    async def action_import(self, file: str) -> None:
        """Reads a conversation from a file and opens it."""
        if self.busy():
            return
        path = Path(file).expanduser()
        with about(path):
            # A pipe would be waited for.
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise AppError(f"/import: {path} is not an ordinary file")
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
        self.notify(f"Written to {with_home(path)}", timeout=4, markup=False)

    async def _open(self, conversation: int, message: int | None = None) -> None:
        self.note_unsent()
        self.session.open(conversation, message)
        await self._change_unsent()
        self.parameters = kept_parameters(self.session, self.setup.parameters)
        self.forget_figures()
        await self.show_conversation()
        if told := told_of_kept(self.parameters, self.setup.parameters):
            await self.conversation.add(Note(told))

    async def action_open_conversation(self, words: str = "") -> None:
        """Lets the user choose an earlier conversation; the only one with `words` is opened."""
        if self.busy():
            return
        from .widgets.conversations_screen import ConversationsScreen, titled

        store = self._store()
        found = titled(store.conversations(limit=EVERY), words) if words else []
        if len(found) == 1:
            await self._open_safely(found[0].id, None)
            return

        def delete(conversation: int) -> None:
            if conversation == self.session.conversation:
                leave: Callable[[], Any] = self._leave_deleted
                self.call_from_thread(leave)
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

    def _found(self, hit: Hit | None) -> None:
        if hit is not None:
            self.call_later(self._open_safely, hit.conversation, hit.message)

    async def _open_safely(self, conversation: int, message: int | None) -> None:
        try:
            await self._open(conversation, message)
        except StoreError as error:
            self.complain(error)
            return
        found = self.session.current.message_of(message)
        if found is not None:
            go_to = partial(self.conversation.go_to, found)
            _: Worker[None] = self.run_worker(go_to, exclusive=True, group="go_to")

    # What is written and not sent

    def note_unsent(self) -> None:
        """Notes what is in the input, of the conversation that is open."""
        if self._changing_unsent:
            return
        written = self.composer.unsent
        if written.message is not None:
            row = self.session.current.row_of(written.message)
            written = replace(written, message=row)
        written = replace(written, prompts=dict(self.prompt_edits))
        self.unsent.note(self.session.conversation, written)

    def keep_unsent(self) -> None:
        """Saves that in a thread, if it is not as it was."""
        self.note_unsent()
        if not self.unsent.is_saved:
            self.run_worker(self._save_unsent, thread=True, group="unsent")

    def _save_unsent(self) -> None:
        with suppress(StoreError):  # it is tried again soon
            self.unsent.save()

    def rescue_unsent(self) -> bool:
        """Saves it at once, before all ends."""
        self.note_unsent()
        self.unsent.save(wait=True)
        return self.session.store is not None and self.unsent.is_saved

    async def bring_unsent(self) -> None:
        """What was left in the conversation that is open, into the input."""
        try:
            found = await asyncio.to_thread(self.unsent.take, self.session.conversation)
        except StoreError:
            found = Unsent()  # it waits on
        message = self.session.current.message_of(found.message)
        self.composer.bring_back(replace(found, message=message))
        self.prompt_edits = dict(found.prompts)
        if self.prompt_edits:
            by = " or ".join([*map(key_name, keys_of("system", self.keys)), "/system"])
            self.notify(PROMPT_KEPT.format(by), timeout=8)

    async def _change_unsent(self) -> None:
        """Leaves what was noted with the conversation before; the input has what is left in the one
        that is open. What cannot be left stays in the input."""
        self._changing_unsent = True
        try:
            await asyncio.to_thread(self.unsent.leave)
            await self.bring_unsent()
        except StoreError:
            self.composer.leave_editing()
        finally:
            self._changing_unsent = False

    async def begin_with_unsent(self) -> None:
        """When the chat opens."""
        await self.bring_unsent()
        if self.session.conversation is not None or self.session.store is None:
            return
        if self.composer.text:
            keys = keys_of("interrupt", self.keys)
            empties = f"; {key_name(keys[0])} empties it." if keys else "."
            self.notify(BROUGHT_BACK + empties, timeout=8)
        with suppress(StoreError):
            for title in await asyncio.to_thread(self.session.store.unsent_elsewhere):
                self.notify(ELSEWHERE.format(shown(title)), timeout=8, markup=False)

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
