"""System prompts that the user saved by name: one JSON file in the user's data folder.

Every change reads the file anew and replaces it whole, so that two windows keep each other's
prompts and a crash leaves the old file or the new one.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import platformdirs

from .entry import AppError, about
from .plain_text import shown

MAX_NAME = 80


def prompts_path() -> Path:
    """Where the prompts are kept."""
    return platformdirs.user_data_path("specfit") / "system_prompts.json"


def read_prompts(path: Path) -> dict[str, str]:
    """Texts by name, in the order of the names; none if there is no file yet.

    Raises AppError if the file cannot be read or holds something else.
    """
    try:
        with about(path):
            content = json.loads(path.read_text(encoding="utf-8"))
    except AppError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return {}
        raise
    except (ValueError, RecursionError) as error:
        raise AppError(f"{path} is not valid JSON ({error}); put it right, or away") from None
    if not isinstance(content, dict) or not all(isinstance(t, str) for t in content.values()):
        raise AppError(f"{path} holds no texts by name; put it right, or away")
    texts = {name: shown(text) for name, text in content.items()}
    return dict(sorted(texts.items(), key=lambda item: item[0].casefold()))


def save_prompt(path: Path, name: str, text: str) -> dict[str, str]:
    """Saves `text` as `name`, in place of an older one; gives all prompts.

    Raises AppError for a name or text of blanks, a name too long, and where nothing can be saved.
    """
    name = " ".join(shown(name).split())
    if not name or not text.strip():
        raise AppError("a system prompt needs a name and a text")
    if len(name) > MAX_NAME:
        raise AppError(f"the name has {len(name)} characters; {MAX_NAME} are the most")
    _write(path, read_prompts(path) | {name: text})
    return read_prompts(path)


def delete_prompt(path: Path, name: str) -> dict[str, str]:
    """Deletes `name`, if it is still there; gives the prompts that are left. Raises AppError."""
    prompts = read_prompts(path)
    if prompts.pop(name, None) is not None:
        _write(path, prompts)
    return prompts


def _write(path: Path, prompts: dict[str, str]) -> None:
    replace_file(path, json.dumps(prompts, ensure_ascii=False, indent=2) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Writes the file whole or not at all, and through a link to what it points at.

    Raises AppError.
    """
    target = path.resolve()
    scratch = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with about(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            with scratch.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                scratch.chmod(target.stat().st_mode & 0o777)
            scratch.replace(target)
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
