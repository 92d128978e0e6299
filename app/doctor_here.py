"""What surrounds SpecFit on this machine: its folders and files, the disk, the terminal."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from .doctor_checks import Surroundings
from .entry import AppError, user_sentence
from .recommended import RECOMMENDED

SUMS = "SHA256SUMS"


def examine() -> Surroundings:
    """Never raises. Reads the bundled files whole, which takes some hundredths of a second."""
    from huggingface_hub import constants

    from specfit.models import bundled_model

    disk = Path(constants.HF_HUB_CACHE)
    folders = (
        disk,
        platformdirs.user_cache_path("specfit"),
        platformdirs.user_data_path("specfit"),
        platformdirs.user_config_path("specfit"),
    )
    reasons = ((folder, why_unwritable(folder)) for folder in folders)
    return Surroundings(
        project=_project(),
        unwritable=tuple((folder, reason) for folder, reason in reasons if reason),
        disk=disk,
        disk_free=_free(disk),
        downloaded=_downloaded(disk),
        bundled=damage(bundled_model().parent),
        search=_search(),
        settings=_settings(),
        terminal=terminal(os.environ, sys.stdout.encoding or "") if sys.stdout.isatty() else "",
    )


def why_unwritable(folder: Path) -> str:
    """Why nothing can be written into a folder, or why it cannot be made; "" if it can."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
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


def _project() -> Path | None:
    """Where SpecFit's Makefile is, if this is a checkout: an editable install links there."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "Makefile").is_file() and (root / "bootstrap.py").is_file() else None


def _free(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def _downloaded(cache: Path) -> frozenset[str]:
    from .hub import choose_model
    from .hub_client import Hub

    hub, found = Hub(cache=cache), set()
    for model in RECOMMENDED:
        for listing in hub.kept(model.repo):
            try:
                choose_model(listing, model.quant)
            except AppError:
                continue
            found.add(model.name)
    return frozenset(found)


def _search() -> str:
    try:
        import specfit.planner.search  # noqa: F401
    except (ImportError, OSError, AttributeError) as error:
        return str(error)
    return ""


def _settings() -> str:
    from .settings import read_settings, settings_path

    try:
        settings = read_settings(settings_path())
        settings.keys()
    except Exception as error:
        sentence = user_sentence(error)
        if sentence is None:
            raise
        return sentence
    return ""
