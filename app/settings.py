"""The user's settings: `config.toml` in the platform's folder for them.

    theme = "textual-light"
    colour_drafts = true

    [chat]                      # also [batch], [bench] …: any option of that command
    model = "~/models/Qwen3-30B-A3B-Q4_K_M.gguf"
    temp = 0.7

    [keys]
    regenerate = "ctrl+g"

    [folders]
    models = ["/data/gguf"]

What is wrong in it is told with its line, before anything runs. The app changes single settings in
place and keeps everything else as the user wrote it.
"""

from __future__ import annotations

import difflib
import json
import re
import stat
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import platformdirs

from .entry import AppError, about
from .keys import Key, remapped
from .option_types import AUTO, Count, GibOrAuto
from .system_prompts import replace_file

COMMANDS = ("chat", "batch", "bench", "report", "scale-model")
_TOP = {"theme": str, "colour_drafts": bool}
_TABLES = (*COMMANDS, "keys", "folders")
_LARGEST, _MOST_DOTS = 1 << 20, 1000
_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""\s*([\w."'-]+)\s*=""")
_POSITION = re.compile(r" \(at line (\d+), column \d+\)")
_WORDS = {str: "a text in quotes", bool: "true or false", int: "a whole number", float: "a number"}

Setting = str | bool | list[str]


@dataclass(frozen=True)
class Settings:
    """What the file says. content: all of it, as TOML gives it. None: not set."""

    path: Path
    text: str
    content: Mapping[str, Any]

    @property
    def theme(self) -> str | None:
        return self.content.get("theme")

    @property
    def colour_drafts(self) -> bool | None:
        return self.content.get("colour_drafts")

    @property
    def model_folders(self) -> tuple[Path, ...]:
        """Where the user keeps models, beside the places that other programs have for them."""
        return tuple(_expanded(text) for text in self.content.get("folders", {}).get("models", []))

    def options(self, name: str, command: click.Command) -> dict[str, Any]:
        """The defaults that table `name` sets for a command: click's `default_map`.

        Options go by their long names, with - or _. Raises AppError for an unknown option or a
        value that the option does not take.
        """
        known = {
            spelling[2:].replace("-", "_"): option
            for option in command.params
            if isinstance(option, click.Option)
            for spelling in option.opts
            if spelling.startswith("--")
        }
        defaults: dict[str, Any] = {}
        for key, value in self.content.get(name, {}).items():
            option = known.get(key.replace("-", "_"))
            if option is None or option.name is None:
                raise self.wrong(f"{name}.{key}", f"no option{_meant(key, known)}")
            defaults[option.name] = self._option_value(f"{name}.{key}", option, value)
        return defaults

    def keys(self) -> tuple[Key, ...]:
        """All keys, with the user's in their place. Raises AppError as `remapped` does."""
        changes: Mapping[str, Any] = self.content.get("keys", {})
        for action, value in changes.items():
            if not isinstance(value, str) and not _is_texts(value):
                raise self.wrong(f"keys.{action}", 'give a key such as "ctrl+g", or a list of keys')
        try:
            return remapped(changes)
        except AppError as error:
            message = str(error)
        raise AppError(f"{self._place(self._to_blame(changes, message))}: {message}")

    def wrong(self, key: str, reason: str) -> AppError:
        """An error about a setting, named by the line that it stands in. key: "table.key"."""
        return AppError(f"{self._place(key)}: {key.rpartition('.')[2]}: {reason}")

    def _place(self, key: str) -> str:
        """File and line of a setting, or of its table."""
        starts = {name: start for name, start, _ in _statements(self.text.splitlines(True))}
        line = starts.get(key, starts.get(key.partition(".")[0]))
        return f"{self.path}" if line is None else f"{self.path}, line {line + 1}"

    def _to_blame(self, changes: Mapping[str, Any], message: str) -> str:
        """Which of the keys `message` is about: the first with which it comes up."""
        tried: dict[str, Any] = {}
        for action, value in changes.items():
            tried[action] = value
            try:
                remapped(tried)
            except AppError as error:
                if str(error) == message:
                    return f"keys.{action}"
        return "keys"

    def _option_value(self, key: str, option: click.Option, value: object) -> object:
        values = [value]
        if option.multiple or option.nargs != 1:
            if not isinstance(value, list):
                raise self.wrong(key, "give a list")
            values = value
        kind = _python_type(option)
        for one in values:
            if one == AUTO and isinstance(option.type, Count | GibOrAuto):
                continue
            if not _is(one, kind):
                raise self.wrong(key, f"give {_WORDS[kind]}")
            if option.is_flag:
                continue
            try:
                option.type.convert(one, option, None)
            except click.BadParameter as error:
                raise self.wrong(key, error.message.rstrip(".")) from None
            except OverflowError:
                raise self.wrong(key, "the number is too large") from None
        if isinstance(option.type, click.Path):
            values = [str(_expanded(str(one))) for one in values]
        return values if isinstance(value, list) else values[0]


def settings_path() -> Path:
    """Where the settings are: ~/.config/specfit/config.toml on Linux."""
    return platformdirs.user_config_path("specfit") / "config.toml"


def read_settings(path: Path) -> Settings:
    """Reads the settings; a file that is not there sets nothing.

    Raises AppError, naming file and line, if it is not TOML, or has a key or type that nothing
    here knows. The commands' own tables are checked by `options`, keys by `keys`.
    """
    settings = Settings(path, *_read(path))
    for key, value in settings.content.items():
        if key in _TOP:
            if not _is(value, _TOP[key]):
                raise settings.wrong(key, f"give {_WORDS[_TOP[key]]}")
        elif key not in _TABLES:
            raise settings.wrong(key, f"no setting{_meant(key, [*_TOP, *_TABLES])}")
        elif not isinstance(value, dict):
            raise settings.wrong(key, f"is a table; write [{key}]")
    for key, value in settings.content.get("folders", {}).items():
        if key != "models":
            raise settings.wrong(f"folders.{key}", f"no setting{_meant(key, ['models'])}")
        if not _is_texts(value):
            raise settings.wrong("folders.models", 'give a list such as ["/data/gguf"]')
    return settings


def change_setting(path: Path, key: str, value: Setting) -> None:
    """Sets "key" or "table.key" in the file, which is begun if need be.

    Comments and all other settings stay as they are. Raises AppError if the file cannot be read or
    written, or is written so that its other settings would not stay.
    """
    text, content = _read(path)
    table, _, name = key.rpartition(".")
    wanted = {**content, name: value}
    if table:
        wanted = {**content, table: {**content.get(table, {}), name: value}}
    changed = _with(text, table, name, f"{name} = {_toml(value)}")
    try:
        kept = tomllib.loads(changed) == wanted
    except tomllib.TOMLDecodeError:
        kept = False
    if not kept:
        raise AppError(f"{path} is written in a way that only you can change; set {key} there")
    replace_file(path, changed)


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        with about(path):
            status = path.stat()
            if stat.S_ISFIFO(status.st_mode) or status.st_size > _LARGEST:
                raise AppError(f"{path} is no file of settings, but something else or too large")
            text = path.read_text(encoding="utf-8-sig")
        # TOML's reader takes the square of a key's parts in time and memory.
        if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
            raise AppError(f"{path} has a line of more than {_MOST_DOTS} dots; make it shorter")
        return text, tomllib.loads(text)
    except AppError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return "", {}
        raise
    except tomllib.TOMLDecodeError as error:
        found = _POSITION.search(str(error))
        place = f"{path}, line {found[1]}" if found else f"{path}"
        raise AppError(f"{place}: not TOML: {_POSITION.sub('', str(error))}") from None
    except UnicodeDecodeError:
        raise AppError(f"{path} is not UTF-8 text") from None
    except RecursionError:
        raise AppError(f"{path}: not TOML that can be read: it is nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise AppError(f"{path}: not TOML that can be read: {error}") from None


def _statements(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """Names ("table", "table.key" or "key") with the lines [start, end) that they stand in."""
    table, at = "", 0
    while at < len(lines):
        end = at + 1
        if header := _HEADER.match(lines[at]):
            table = header[1].replace('"', "").replace("'", "")
            yield table, at, end
        elif key := _KEY.match(lines[at]):
            end = _end(lines, at)
            name = key[1].replace('"', "").replace("'", "")
            yield f"{table}.{name}" if table else name, at, end
        at = end


def _end(lines: list[str], start: int) -> int:
    """Where the statement that begins in line `start` is whole: its value may go over lines."""
    for end in range(start + 1, len(lines) + 1):
        with suppress(tomllib.TOMLDecodeError):
            tomllib.loads("".join(lines[start:end]))
            return end
    return start + 1


def _with(text: str, table: str, name: str, statement: str) -> str:
    """The text with `statement` in place of that name's, or at the end of its table."""
    lines = text.splitlines(True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    full = f"{table}.{name}" if table else name
    last: int | None = None if table else 0
    in_top = True
    for found, start, end in _statements(lines):
        if found == full:
            comment = _comment("".join(lines[start:end]))
            return "".join([*lines[:start], f"{statement}{comment}\n", *lines[end:]])
        in_top = in_top and not _HEADER.match(lines[start])
        inside = found == table or found.startswith(f"{table}.") if table else in_top
        if inside:
            last = end
    if last is None:
        gap = "\n" if lines else ""
        return f"{''.join(lines)}{gap}[{table}]\n{statement}\n"
    return "".join([*lines[:last], f"{statement}\n", *lines[last:]])


def _comment(statement: str) -> str:
    """The comment behind a statement, with its space."""
    value = tomllib.loads(statement)
    for match in re.finditer(r"\s*#", statement):
        with suppress(tomllib.TOMLDecodeError):
            if tomllib.loads(statement[: match.start()]) == value:
                return statement[match.start() :].rstrip("\r\n")
    return ""


def _toml(value: Setting) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _python_type(option: click.Option) -> type[Any]:
    if option.is_flag:
        return bool
    if isinstance(option.type, click.types.IntParamType):
        return int
    if isinstance(option.type, click.types.FloatParamType):
        return float
    return str


def _is(value: object, kind: type[Any]) -> bool:
    """Whether a TOML value is of that kind; true and false are no numbers, 1 is a number."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) or (kind is float and isinstance(value, int))


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _meant(key: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(key.replace("-", "_"), list(known), n=1)
    return f" of that name; did you mean {close[0]}?" if close else " of that name"


def _expanded(text: str) -> Path:
    with suppress(RuntimeError):  # ~somebody without a home
        return Path(text).expanduser()
    return Path(text)
