"""Slash commands: which there are, and reading one from what was typed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from .entry import AppError


@dataclass(frozen=True)
class CommandSpec:
    """One command. arguments: "" for none, "NAME" if it must be given, "[NAME]" if it may be."""

    name: str
    arguments: str
    help: str
    action: str

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.arguments}".rstrip()


@dataclass(frozen=True)
class Command:
    """A command that was typed; `argument` is the text behind its name, "" if there is none."""

    spec: CommandSpec
    argument: str


COMMANDS = (
    CommandSpec("new", "", "Begin a new conversation", "new_chat"),
    CommandSpec("open", "[WORDS]", "Open an earlier conversation", "open_conversation"),
    CommandSpec("search", "[WORDS]", "Search all conversations", "search"),
    CommandSpec("system", "[TEXT]", "Set or choose the system prompt", "system"),
    CommandSpec("model", "[PATH]", "Choose another model", "model"),
    CommandSpec("params", "", "Change the sampling parameters", "parameters"),
    CommandSpec("regen", "", "Answer the last message once more", "regenerate"),
    CommandSpec("edit", "", "Edit your last message and send it anew", "edit"),
    CommandSpec("branch", "[NUMBER]", "Show another version of the selected message", "branch"),
    CommandSpec("rename", "TITLE", "Give this conversation another title", "rename"),
    CommandSpec("export", "[FILE]", "Write this conversation to a .md or .json file", "export"),
    CommandSpec("import", "FILE", "Read conversations from a .json file", "import"),
    CommandSpec("copy", "[code]", "Copy the answer, or its last block of code", "copy"),
    CommandSpec("think", "", "Let the model think before it answers", "think"),
    CommandSpec("no_think", "", "Answer without thinking", "no_think"),
    CommandSpec("stats", "", "Show the numbers of the last answer", "stats"),
    CommandSpec("spec", "[MODE]", "Choose how drafts are made, from now on", "spec"),
    CommandSpec("panel", "", "Show or hide what speculation does", "panel"),
    CommandSpec("theme", "[NAME]", "Choose the colours", "theme"),
    CommandSpec("help", "", "Show keys and commands", "help"),
    CommandSpec("quit", "", "Leave", "quit"),
)
# What may stand behind /spec, as behind --spec.
SPEC_MODES = {
    "specfit": "As many drafts as pay, by measurements",
    "specfit:ratio": "The same with the paper's objective",
    "count": "The same by the number of rows alone",
    "eagle3:31": "Trees of 30 drafts, whatever they cost",
    "chain:3": "Three drafts in a row, whatever they cost",
    "off": "No drafts",
}
_BY_NAME = {spec.name: spec for spec in COMMANDS}
# What other programs call them.
_ALIASES = {"retry": "regen", "regenerate": "regen", "clear": "new", "exit": "quit", "bye": "quit"}
# A name stands alone: "/usr/bin is full" is a message.
_SHAPE = re.compile(r"/([A-Za-z_-]+)(?:\s+(.*))?", re.DOTALL)


def parse(text: str) -> Command | str:
    """The command in `text`, or the message to send if it is none; "//" begins one with a slash.

    Raises AppError if there is no such command, or its argument is missing or too much.
    """
    if text.startswith("//"):
        return text[1:]
    match = _SHAPE.fullmatch(text.rstrip())
    if match is None:
        return text
    name, argument = match.group(1).lower().replace("-", "_"), (match.group(2) or "").strip()
    spec = _BY_NAME.get(_ALIASES.get(name, name))
    if spec is None:
        raise AppError(_unknown(name))
    if argument and not spec.arguments:
        raise AppError(f"/{spec.name} takes nothing behind it")
    if not argument and spec.arguments and not spec.arguments.startswith("["):
        raise AppError(f"/{spec.name} needs something behind it: {spec.usage}")
    return Command(spec, argument)


def matching(typed: str) -> list[CommandSpec]:
    """Commands whose name begins with `typed` (no slash), then those that hold it."""
    typed = typed.lower()
    first = [spec for spec in COMMANDS if spec.name.startswith(typed)]
    return first + [spec for spec in COMMANDS if typed in spec.name and spec not in first]


_LITERAL = "write // to send a message that begins with a slash"


def _unknown(name: str) -> str:
    near = get_close_matches(name, _BY_NAME, n=1) or [spec.name for spec in matching(name)[:1]]
    meant = f"did you mean /{near[0]}?" if near else "/help shows all commands;"
    return f"there is no command /{name}; {meant} {_LITERAL}".replace(";;", ";")
