"""-hf and -hfd: from names on the hub to files on this disk, before anything else is begun.

All questions come first (is it there, may we have it, is there room), then the downloads. Without
a network, or if the hub refuses, what the cache has is used.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .entry import AppError, say
from .hub import Listing, RepoFile, choose_head, choose_model, parse_head, parse_wanted, quant_of

if TYPE_CHECKING:
    from .hub_client import Hub, Pending
    from .options import ModelChoice

DEFAULT_QUANT = "Q4_K_M"
# Left free on the disk: a full one troubles every program.
SPARE_BYTES = 500_000_000

Choose = Callable[[Listing], tuple[RepoFile, ...]]


@dataclass(frozen=True)
class _Found:
    """What is used, and what of it is still to be fetched."""

    listing: Listing
    files: tuple[RepoFile, ...]
    pending: tuple[Pending, ...] = ()


def fetched(choice: ModelChoice) -> ModelChoice:
    """The choice with files in place of -hf and -hfd, downloaded where they are not yet here.

    Raises AppError in one sentence, KeyboardInterrupt on Ctrl-C (what came stays).
    """
    if choice.hf_repo is None and choice.hf_repo_draft is None:
        return choice
    from .hub_client import Hub

    with _own_interrupts():
        model, head = fetch_named(Hub(), choice.hf_repo, choice.hf_repo_draft)
    return replace(
        choice,
        hf_repo=None,
        hf_repo_draft=None,
        model=model or choice.model,
        model_draft=head or choice.model_draft,
    )


def fetch_named(hub: Hub, model: str | None, head: str | None) -> tuple[Path | None, Path | None]:
    """A model's file (of several parts the first) and the folder of a head; None for None.

    model: "owner/repo[:quant]". head: "owner/repo". Raises AppError, KeyboardInterrupt.
    """
    wanted_model = None if model is None else parse_wanted(model)
    wanted_head = None if head is None else parse_head(head)
    found: list[_Found] = []
    if wanted_model is not None:
        quant = wanted_model.quant
        named = wanted_model.repo if quant is None else f"{wanted_model.repo}:{quant}"
        found.append(
            _find(hub, wanted_model.repo, named, lambda listing: choose_model(listing, quant))
        )
        taken = quant_of(found[0].files[0].path) or found[0].files[0].path
        if quant is None and taken.upper() != DEFAULT_QUANT:
            say(f"{wanted_model.repo} has no {DEFAULT_QUANT}; taking {taken}")
    if wanted_head is not None:
        found.append(_find(hub, wanted_head.repo, wanted_head.repo, choose_head))
    _refuse_full_disk(hub, [one for each in found for one in each.pending])
    _download(hub, found)
    places = [hub.place(each.listing, each.files[0]) for each in found]
    return (
        None if model is None else places[0],
        None if head is None else places[-1].parent,
    )


def _find(hub: Hub, repo: str, named: str, choose: Choose) -> _Found:
    """named: what is wanted of it, in the user's words."""
    from .hub_client import HubError, HubOffline

    try:
        listing = hub.listing(repo)
        files = choose(listing)
        waiting = (hub.pending(listing, file) for file in files)
        return _Found(listing, files, tuple(one for one in waiting if one is not None))
    except HubError as error:
        kept = _kept(hub, repo, choose)
        if kept is None:
            raise AppError(f"{error}; and {named} is not in the cache ({hub.cache})") from error
        if not isinstance(error, HubOffline):
            say(f"{error}; using {kept.files[0].name} from the cache")
        return kept


def _kept(hub: Hub, repo: str, choose: Choose) -> _Found | None:
    """The newest of the cache that has all that is wanted."""
    for listing in hub.kept(repo):
        try:
            return _Found(listing, choose(listing))
        except AppError:
            continue
    return None


def _refuse_full_disk(hub: Hub, pending: Sequence[Pending]) -> None:
    from .library import size

    need = sum(one.size - one.have for one in pending)
    free = hub.free_bytes()
    if need and need + SPARE_BYTES > free:
        raise AppError(
            f"not enough room on the disk of {hub.cache}: {size(need)} are to be downloaded and "
            f"{size(free)} are free; make room, or set HF_HUB_CACHE to a folder on another disk"
        )


def _download(hub: Hub, found: Sequence[_Found]) -> None:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from .library import size

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    shown = sys.stderr.isatty()
    bar = Progress(*columns, console=Console(stderr=True), disable=not shown)
    begun = False
    try:
        with bar:
            for listing, pending in [(each.listing, one) for each in found for one in each.pending]:
                if not shown:
                    rest = f", {size(pending.have)} of it here" if pending.have else ""
                    what = f"{pending.file.name} from {listing.repo}"
                    say(f"downloading {what} ({size(pending.size)}{rest})")
                task = bar.add_task(pending.file.name, total=pending.size)
                begun = True
                hub.fetch(listing, pending, partial(bar.advance, task))
    except KeyboardInterrupt:
        if begun:
            say("what was downloaded stays; the same command goes on from there")
        raise
    for each in found:
        if each.pending:
            hub.remember(each.listing)


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Ctrl-C ends a download at once, also where a command has it noted for later."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
