"""Which key does what: the defaults as data, and putting the user's own choice over them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from .entry import AppError

if TYPE_CHECKING:
    from textual.binding import Binding


@dataclass(frozen=True)
class Key:
    """An action and the keys that do it, in Textual's names ("ctrl+r").

    composer: it belongs to the input box, which handles it itself.
    """

    action: str
    keys: tuple[str, ...]
    help: str
    composer: bool = False

    @property
    def shown(self) -> str:
        return ", ".join(map(key_name, self.keys))


KEYS = (
    Key("send", ("enter",), "Send the message", composer=True),
    Key("new_line", ("shift+enter", "alt+enter", "ctrl+j"), "Begin a new line", composer=True),
    Key("stop", ("escape",), "Stop and keep the answer; close what is open"),
    Key("interrupt", ("ctrl+c",), "Copy the selection, close, stop, empty, or leave"),
    Key("regenerate", ("ctrl+r",), "Answer the last message once more"),
    Key("new_chat", ("ctrl+n",), "Begin a new conversation"),
    Key("open_conversation", ("ctrl+o",), "Open an earlier conversation"),
    Key("search", ("ctrl+f",), "Search all conversations"),
    Key("command_palette", ("ctrl+p",), "Find any command"),
    Key("panel", ("ctrl+t",), "Show or hide what speculation does"),
    Key("help", ("f1",), "Show keys and commands"),
    Key("model", ("f2",), "Choose another model"),
    Key("parameters", ("f3",), "Change the sampling parameters"),
    Key("drafted", ("f4",), "Mark the text that came from accepted drafts"),
    Key("system", ("f5",), "Choose the system prompt"),
    Key("select_message(-1)", ("alt+up",), "Select the message above"),
    Key("select_message(1)", ("alt+down",), "Select the message below"),
    Key("switch_branch(-1)", ("alt+left",), "Show the version before"),
    Key("switch_branch(1)", ("alt+right",), "Show the next version"),
    Key("fold", ("alt+t",), "Unfold or fold the thinking"),
    Key("copy", ("alt+c",), "Copy the selected message, or last answer"),
    Key("copy_code", ("alt+k",), "Copy its last block of code"),
    Key("scroll_conversation(-1)", ("pageup",), "Look up"),
    Key("scroll_conversation(1)", ("pagedown",), "Look down"),
)

# The user's names for actions that have a parameter.
NAMES = {
    "select_message(-1)": "select_above",
    "select_message(1)": "select_below",
    "switch_branch(-1)": "version_before",
    "switch_branch(1)": "next_version",
    "scroll_conversation(-1)": "look_up",
    "scroll_conversation(1)": "look_down",
}
_MODIFIERS = ("ctrl", "alt", "shift", "super", "meta", "hyper")
# With these alone one writes; a shortcut on them would take them from the input box.
_WRITING = frozenset(
    ("tab", "space", "backspace", "delete", "enter", "up", "down", "left", "right", "home", "end")
)
_NAMED_KEYS = _WRITING | {
    *("escape", "insert", "pageup", "pagedown", "minus", "plus", "comma", "full_stop", "slash"),
    *("backslash", "semicolon", "apostrophe", "grave_accent"),
    *(f"f{n}" for n in range(1, 25)),
}


def name_of(key: Key) -> str:
    """What the user calls the action in the configuration file."""
    return NAMES.get(key.action, key.action)


def remapped(changes: Mapping[str, str | Sequence[str]]) -> tuple[Key, ...]:
    """KEYS with the user's changes: {"regenerate": "ctrl+g"}, or several keys in a list.

    An empty list takes the action's keys away. Raises AppError, in one sentence, for an action or
    a key that does not exist, and for a key that two actions would have.
    """
    known = {name_of(key): key for key in KEYS}
    chosen = {}
    for name, wanted in changes.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            meant = f'; did you mean "{near[0]}"?' if near else f"; there are {', '.join(known)}"
            raise AppError(f'keys: there is no action "{name}"{meant}')
        given = wanted.split(",") if isinstance(wanted, str) else wanted
        own = known[name]
        chosen[own.action] = tuple(_checked(key, own, name) for key in given)
    keys = tuple(replace(key, keys=chosen.get(key.action, key.keys)) for key in KEYS)
    _check_no_key_twice(keys)
    return keys


def bindings(keys: Iterable[Key] = KEYS) -> list[Binding]:
    """Textual bindings for the app, those of the input box left out.

    All but Escape come before the focused widget, which would take some of them for itself.
    """
    from textual.binding import Binding

    return [
        Binding(",".join(k.keys), k.action, k.help, show=False, priority=k.action != "stop")
        for k in keys
        if k.keys and not k.composer
    ]


def keys_of(action: str, keys: Iterable[Key] = KEYS) -> tuple[str, ...]:
    """The keys of `action`; empty if it has none."""
    return next((key.keys for key in keys if key.action == action), ())


def key_name(key: str) -> str:
    """A key as people write it: "Ctrl+R", "Alt+Up", "F1"."""
    names = {"escape": "Esc", "pageup": "PageUp", "pagedown": "PageDown"}
    return "+".join(names.get(part, part.capitalize()) for part in key.split("+"))


def _checked(written: object, own: Key, name: str) -> str:
    if not isinstance(written, str):
        raise AppError(f'keys: {name}: write keys as text, such as "ctrl+g"')
    *modifiers, key = re.split(r"\s*\+\s*", written.strip().lower())
    key = {"esc": "escape", "return": "enter", "pgup": "pageup", "pgdn": "pagedown"}.get(key, key)
    single = len(key) == 1 and key.isascii() and key.isalnum()
    if not all(m in _MODIFIERS for m in modifiers) or not (single or key in _NAMED_KEYS):
        raise AppError(f'keys: {name}: "{written}" is not a key; write it as "ctrl+g" or "f6"')
    bare = not set(modifiers) - {"shift"}
    if bare and (single or (key in _WRITING and not own.composer)):
        raise AppError(f'keys: {name}: "{written}" is needed for writing; add ctrl or alt')
    return "+".join([*sorted(set(modifiers)), key])  # sorted, as Textual names them


def _check_no_key_twice(keys: Iterable[Key]) -> None:
    owner: dict[str, str] = {}
    for key in keys:
        for one in key.keys:
            other = owner.setdefault(one, name_of(key))
            if other != name_of(key):
                raise AppError(f'keys: "{one}" is for both {other} and {name_of(key)}')
