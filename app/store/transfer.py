"""Conversations as files: Markdown to read, JSON with all branches to bring elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from specfit.app.plain_text import shown
from specfit.app.thinking import split

from .open_conversation import OpenConversation
from .store import Store
from .values import COMPLETE, CUT, GROWING, ROLES, STATUSES, Message, StoreError, key_of, storable

_FAR_FUTURE_S = 1e12
FORMAT, VERSION = "specfit-conversation", 1
_HEADINGS = {"system": "System prompt", "user": "You", "assistant": "Assistant"}


def to_markdown(title: str, path: Iterable[Message]) -> str:
    """A branch to read. Control characters are made visible: a terminal may show the file."""
    parts = [f"# {' '.join(title.split())}"]
    for message in path:
        model = message.meta.get("model")
        heading = model if message.role == "assistant" and model else _HEADINGS[message.role]
        parts.append(f"## {' '.join(str(heading).split())}")
        parts += _parts(message)
        if message.status != COMPLETE:
            parts.append(f"*({CUT if message.status == GROWING else message.status})*")
    return shown("\n\n".join(part for part in parts if part) + "\n")


def _parts(message: Message) -> list[str]:
    """What was said; thinking folded, as readers of Markdown show it."""
    if message.role != "assistant":
        return [message.content.strip()]
    said = split(message.content)
    if not said.thinking:
        return [said.answer.strip()]
    took = message.meta.get("thought_s")
    summary = f"Thought for {took:.0f} s" if isinstance(took, int | float) else "Thought"
    thinking = said.thinking.replace("</details", "&lt;/details")
    head = f"<details><summary>{summary}</summary>"
    return [head, thinking, "</details>", said.answer.strip()]


def to_json(conversation: OpenConversation) -> str:
    """A conversation with all its branches."""
    tree = conversation.tree
    keys: dict[int | None, str | None] = {None: None}
    for one in tree.messages.values():
        keys[one.id] = key_of(keys[one.parent], one.role, storable(one.content))
    record = {
        "format": FORMAT,
        "version": VERSION,
        "origin": conversation.origin,
        "title": conversation.title,
        "leaf": keys[tree.leaf],
        "meta": conversation.meta,
        "messages": [
            {
                "key": keys[one.id],
                "parent": keys[one.parent],
                "role": one.role,
                "status": CUT if one.status == GROWING else one.status,
                "created": one.created,
                "meta": one.meta,
                "content": one.content,
            }
            for one in tree.messages.values()
        ],
    }
    return json.dumps(record, indent=1) + "\n"


def import_json(store: Store, text: str) -> tuple[int, int]:
    """Brings in what `to_json` wrote; the conversation, and how many of its messages were new.

    What the store has of it already, from here or from an earlier import, is not added again.
    Raises StoreError.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not JSON: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise StoreError("not a conversation of SpecFit")
    if record.get("version") != VERSION:
        raise StoreError("written by another version of SpecFit")
    ids, messages = _messages(_field(record, "messages", list, "the file"))
    title, meta = _field(record, "title", str, "the file"), _field(record, "meta", dict, "the file")
    origin = storable(_field(record, "origin", str, "the file"))
    if not messages or not origin:
        raise StoreError("the conversation is empty")
    known = store.find(origin)
    before = 0 if known is None else store.conversation(known).count
    conversation = store.new_conversation(title, meta, origin)
    leaf = ids.get(str(record.get("leaf")), messages[-1].id)
    store.add_all(conversation, messages, leaf=leaf if known is None else None)
    return conversation, store.conversation(conversation).count - before


def _messages(records: list[Any]) -> tuple[dict[str, int], list[Message]]:
    """Messages with the ids 1, 2, … and these by the file's keys, which are names and no more: the
    store's own are computed from the contents."""
    ids: dict[str, int] = {}
    messages = []
    for number, record in enumerate(records, 1):
        where = f"message {number}"
        if not isinstance(record, dict):
            raise StoreError(f"{where} is not an object")
        parent = record.get("parent")
        if parent is not None and (not isinstance(parent, str) or parent not in ids):
            raise StoreError(f"{where} follows one that does not come before it")
        role, status = _field(record, "role", str, where), _field(record, "status", str, where)
        if role not in ROLES or status not in STATUSES or status == GROWING:
            raise StoreError(f"{where} has an unknown role or status")
        created = record.get("created")
        if not isinstance(created, (int, float)) or not 0 <= created < _FAR_FUTURE_S:
            raise StoreError(f'"created" of {where} is not a time')
        messages.append(
            Message(
                number,
                None if parent is None else ids[parent],
                role,
                storable(_field(record, "content", str, where)),
                status,
                float(created),
                meta=_field(record, "meta", dict, where),
            )
        )
        ids[_field(record, "key", str, where)] = number
    return ids, messages


def _field(record: dict[str, Any], name: str, kind: type[Any], where: str) -> Any:
    value = record.get(name)
    if not isinstance(value, kind):
        raise StoreError(f'"{name}" of {where} is missing or of another kind')
    return value
