"""Where conversations are kept: one SQLite file, messages as trees, nothing overwritten."""

from .open_conversation import OpenConversation
from .store import Store, default_path
from .transfer import import_json, to_json, to_markdown
from .tree import Tree
from .values import Conversation, Gone, Hit, Locked, Message, ReadOnly, StoreError, Unsent

__all__ = [
    "Conversation",
    "Gone",
    "Hit",
    "Locked",
    "Message",
    "OpenConversation",
    "ReadOnly",
    "Store",
    "StoreError",
    "Tree",
    "Unsent",
    "default_path",
    "import_json",
    "to_json",
    "to_markdown",
]
