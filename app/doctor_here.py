"""What surrounds SpecFit on this machine: its folders and files, the disk, the terminal."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from .doctor_checks import Surroundings
from .entry import AppError, user_sentence

if TYPE_CHECKING:
    from .settings import Settings

SUMS = "SHA256SUMS"
# Written to see whether a folder takes anything.
_SAMPLE = bytes(1 << 16)


def examine() -> Surroundings:
    """Never raises. Reads the bundled files whole, which takes some hundredths of a second."""
    import platformdirs
    from huggingface_hub import constants

    from specfit.models import bundled_model

    disk = Path(constants.HF_HUB_CACHE)
    xdg = sys.platform == "linux"
    folders = (
        (disk, "HF_HUB_CACHE"),
        (platformdirs.user_cache_path("specfit"), "XDG_CACHE_HOME" if xdg else ""),
        (platformdirs.user_data_path("specfit"), "XDG_DATA_HOME" if xdg else ""),
        (platformdirs.user_config_path("specfit"), "XDG_CONFIG_HOME" if xdg else ""),
    )
    reasons = ((folder, why_unwritable(folder), variable) for folder, variable in folders)
    return Surroundings(
        project=project(),
        unwritable=tuple(found for found in reasons if found[1]),
        disk=disk,
        disk_free=_free(disk),
        downloaded=_downloaded(disk),
        bundled=damage(bundled_model().parent),
        settings=wrong_settings(),
        terminal=terminal(os.environ, sys.stdout.encoding or "") if sys.stdout.isatty() else "",
    )


def why_unwritable(folder: Path) -> str:
    """Why nothing can be written into a folder, or why it cannot be made; "" if it can."""
    existing = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(_SAMPLE)
            return ""
    except OSError as error:
        where = "" if existing == folder else f"{existing}: "
        return f"{where}{error.strerror or error}"


def damage(folder: Path) -> str:
    """Which of the files that SHA256SUMS lists is not as it says; "" if all are."""
    try:
        for line in (folder / SUMS).read_text().splitlines():
            wanted, _, name = line.partition("  ")
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != wanted:
                return f"{name} is not what it was when it was shipped"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


def terminal(environment: Mapping[str, str], encoding: str) -> str:
    """What a terminal lacks for the chat; "" for nothing."""
    kind = environment.get("TERM", "")
    if kind in ("", "dumb", "unknown"):
        return f"TERM is {kind or 'not set'}"
    if kind.startswith(("vt1", "vt2", "ansi", "cons")):
        return f"TERM is {kind}, which has few colours or none"
    if encoding.lower().replace("-", "") != "utf8":
        return f"its text is {encoding or 'of no known encoding'}, not UTF-8"
    return ""


def costs() -> Path:
    """Where the measured costs of models are kept."""
    import platformdirs

    return platformdirs.user_cache_path("specfit") / "costs"


def project() -> Path | None:
    """Where SpecFit's Makefile is, if this is a checkout: an editable install links there."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "Makefile").is_file() and (root / "bootstrap.py").is_file() else None


def _free(folder: Path) -> int:
    try:
        return shutil.disk_usage(_existing(folder)).free
    except OSError:
        return 0


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one around it that is there."""
    while not os.path.exists(folder) and folder != folder.parent:  # noqa: PTH110 -- never raises
        folder = folder.parent
    return folder


def _downloaded(cache: Path) -> dict[str, Path]:
    from .hub import choose_model
    from .hub_client import Hub
    from .recommended import RECOMMENDED

    hub = Hub(cache=cache)
    found: dict[str, Path] = {}
    for model in RECOMMENDED:
        for listing in hub.kept(model.repo):
            try:
                first = choose_model(listing, model.quant)[0]
            except AppError:
                continue
            found.setdefault(model.name, hub.place(listing, first))
    return found


def _look_for_files(settings: Settings, command: str) -> None:
    """Raises AppError for a model or head of the settings that is not there."""
    for key, value in settings.content[command].items():
        if key.replace("_", "-") in ("model", "model-draft"):
            path = os.path.expanduser(value)  # noqa: PTH111 -- never raises
            if not os.path.exists(path):  # noqa: PTH110 -- never raises
                raise settings.wrong(f"{command}.{key}", f"{value} is not there")


def wrong_settings() -> str:
    """What is wrong with the user's settings, those of every command included; "" for nothing."""
    from .settings import COMMANDS, read_settings, settings_path

    try:
        settings = read_settings(settings_path())
        settings.keys()
        for name in COMMANDS:
            if name in settings.content:
                module = name.replace("-", "_")
                command = getattr(import_module(f"specfit.app.{module}"), module)
                settings.options(name, command)
                _look_for_files(settings, name)
    except Exception as error:
        sentence = user_sentence(error)
        if sentence is None:
            raise
        return sentence
    return ""
