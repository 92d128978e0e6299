"""The Hugging Face hub and its cache on this machine, behind the few calls that we need.

The cache is the one that every program of Hugging Face's uses, so nothing is downloaded twice. Its
own downloader begins anew after an interruption (each run writes a file of another name), which is
no way to get 18 GB; so the bytes are fetched here, into `blobs/<etag>.incomplete`, and the library
then finds the whole blob and links it into its place. A blob is given its name only after its
checksum was found right: the etag is the SHA-256 of a large file (its LFS oid), git's SHA-1 of a
small one.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import huggingface_hub as library
from huggingface_hub import constants, errors
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers, disable_progress_bars

from .entry import AppError, about
from .hub import Listing, RepoFile

API_TIMEOUT_S = 15.0
_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
_CHUNK = 1 << 20
# So much is in hand, and lost, when a download is interrupted; the library's own is ten times that.
constants.DOWNLOAD_CHUNK_SIZE = _CHUNK
_NO_SPACE = 28

OnBytes = Callable[[int], None]
"""Told how many bytes came; a negative number takes back what has to be fetched again."""


class HubError(AppError):
    """The hub does not give what was asked; what is in the cache may do."""


class HubOffline(HubError):
    """The user wants no network (HF_HUB_OFFLINE)."""


@dataclass(frozen=True)
class Pending:
    """A file that is to be fetched. etag: its checksum. have: bytes that are there already."""

    file: RepoFile
    etag: str
    size: int
    have: int


class Hub:
    """Where files come from, and where they are kept; by default what the environment says
    (HF_ENDPOINT; HF_HUB_CACHE, HF_HOME)."""

    def __init__(self, endpoint: str | None = None, cache: Path | None = None) -> None:
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self.cache = cache or Path(constants.HF_HUB_CACHE)
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        disable_progress_bars()

    def listing(self, repo: str) -> Listing:
        """What the repository holds now. Raises HubError."""
        with self._asking(repo):
            api = library.HfApi(endpoint=self.endpoint)
            info = api.model_info(repo, files_metadata=True, timeout=API_TIMEOUT_S)
        files = (RepoFile(one.rfilename, one.size or 0) for one in info.siblings or [])
        return Listing(repo, info.sha or "", tuple(files))

    def kept(self, repo: str) -> Iterator[Listing]:
        """What the cache has of the repository: the newest known commit first, then the others."""
        folder = self._folder(repo)
        known = ""
        with suppress(OSError, UnicodeDecodeError):
            known = (folder / "refs" / "main").read_text().strip()
        snapshots: list[Path] = []
        with suppress(OSError):
            snapshots = [path for path in (folder / "snapshots").iterdir() if path.is_dir()]
            snapshots.sort(key=lambda path: (path.name != known, -path.stat().st_mtime))
        for snapshot in snapshots:
            # A link whose blob was cleaned away is no file.
            paths = (path for path in sorted(snapshot.rglob("*")) if path.is_file())
            files = [
                RepoFile(path.relative_to(snapshot).as_posix(), path.stat().st_size)
                for path in paths
            ]
            yield Listing(repo, snapshot.name, tuple(files))

    def place(self, listing: Listing, file: RepoFile) -> Path:
        """Where the cache has the file, or will have it."""
        return self._folder(listing.repo) / "snapshots" / listing.commit / file.path

    def pending(self, listing: Listing, file: RepoFile) -> Pending | None:
        """What is to be fetched of a file; None if it is there. Asks the hub whether it gives it.

        Raises HubError.
        """
        place = self.place(listing, file)
        if place.is_file() and place.stat().st_size == (file.size or place.stat().st_size):
            return None
        with self._asking(listing.repo, file.path):
            url = library.hf_hub_url(
                listing.repo, file.path, revision=listing.commit, endpoint=self.endpoint
            )
            seen = library.get_hf_file_metadata(url, timeout=API_TIMEOUT_S, endpoint=self.endpoint)
        etag = seen.etag or ""
        if seen.size is None or not (_SHA256.fullmatch(etag) or _SHA1.fullmatch(etag)):
            raise HubError(f"{self.endpoint} does not tell size and checksum of {file.path}")
        blob, part = self._blob(listing.repo, etag), self._part(listing.repo, etag)
        have = 0
        for path in (blob, part):
            if path.is_file() and path.stat().st_size <= seen.size:
                have = path.stat().st_size
                break
        return Pending(file, etag, seen.size, have)

    def free_bytes(self) -> int:
        """Free bytes of the disk that the cache is on."""
        folder = self.cache.absolute()
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def fetch(self, listing: Listing, pending: Pending, on_bytes: OnBytes) -> Path:
        """Fetches the rest of a file, checks it, and gives it its place in the cache.

        An interruption of any kind leaves what has come, and the next call goes on from there.
        Raises HubError, or AppError if the disk is full or what came is damaged.
        """
        place, blob = self.place(listing, pending.file), self._blob(listing.repo, pending.etag)
        if place.is_symlink() or place.exists():  # of a wrong length, or a link to nothing
            with about(place):
                place.unlink()
            if blob.is_file() and blob.stat().st_size != pending.size:
                blob.unlink()
        if not blob.is_file():
            self._complete(listing, pending, on_bytes)
        else:
            on_bytes(pending.size)
        with self._asking(listing.repo, pending.file.path):
            linked = library.hf_hub_download(
                listing.repo,
                pending.file.path,
                revision=listing.commit,
                endpoint=self.endpoint,
                cache_dir=self.cache,
            )
        return Path(linked)

    def remember(self, listing: Listing) -> None:
        """Notes the commit as the newest that is known, now that what is wanted of it is there."""
        ref = self._folder(listing.repo) / "refs" / "main"
        with suppress(OSError):  # a cache that cannot be written still can be read
            if not ref.is_file() or ref.read_text() != listing.commit:
                ref.parent.mkdir(parents=True, exist_ok=True)
                ref.write_text(listing.commit)

    def _complete(self, listing: Listing, pending: Pending, on_bytes: OnBytes) -> None:
        blob, part = self._blob(listing.repo, pending.etag), self._part(listing.repo, pending.etag)
        if pending.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
            raise HubError(
                f"{pending.file.path} is over 50 GB in one file, which is not given over HTTP; get "
                f"it with `hf download {listing.repo} {pending.file.path}`, and run this again"
            )
        with about(part):
            part.parent.mkdir(parents=True, exist_ok=True)
            file = part.open("a+b")
        with file, about(part):
            _lock(file, pending.file.path)
            sink = _Sink(file, pending, on_bytes)
            have = sink.take_up()
            url = library.hf_hub_url(
                listing.repo,
                pending.file.path,
                revision=listing.commit,
                endpoint=self.endpoint,
            )
            # The address at the hub and not where it leads: that one is signed, and runs out.
            with self._asking(listing.repo, pending.file.path):
                http_get(
                    url,
                    cast(BinaryIO, sink),
                    resume_size=have,
                    headers=build_hf_headers() | {"Accept-Encoding": "identity"},
                    expected_size=pending.size,
                    displayed_filename=pending.file.name,
                )
            file.flush()
            if sink.hexdigest() != pending.etag:
                part.unlink()
                raise AppError(
                    f"what came of {pending.file.path} is damaged (its checksum is not the one "
                    f"that {listing.repo} names) and was removed; run the same command again"
                )
            part.replace(blob)

    def _folder(self, repo: str) -> Path:
        return self.cache / repo_folder_name(repo_id=repo, repo_type="model")

    def _blob(self, repo: str, etag: str) -> Path:
        return self._folder(repo) / "blobs" / etag

    def _part(self, repo: str, etag: str) -> Path:
        return self._folder(repo) / "blobs" / f"{etag}.incomplete"

    @contextmanager
    def _asking(self, repo: str, path: str = "") -> Iterator[None]:
        """Puts what goes wrong with a call of the library into one sentence."""
        try:
            yield
        except AppError:
            raise
        except errors.OfflineModeIsEnabled as error:
            raise HubOffline("HF_HUB_OFFLINE is set") from error
        except errors.GatedRepoError as error:
            how = (
                "your account has no access to it yet"
                if library.get_token()
                else "log in with `hf auth login` or set HF_TOKEN"
            )
            raise HubError(
                f"{repo} is gated: accept its terms at {self.endpoint}/{repo}; {how}"
            ) from error
        except errors.RepositoryNotFoundError as error:
            login = "" if library.get_token() else " (if it is private, set HF_TOKEN)"
            raise HubError(f"{self.endpoint} has no repository {repo}{login}") from error
        except errors.HfHubHTTPError as error:
            raise HubError(self._refused(error, path or repo)) from error
        except OSError as error:
            if error.errno == _NO_SPACE:
                raise AppError(
                    f"the disk of {self.cache} is full; what came of {path} stays, and the same "
                    "command goes on from there"
                ) from error
            if error.errno is not None:  # of a file of ours: `about` names it
                raise
            raise HubError(self._unreachable(error)) from error
        except Exception as error:  # the errors of the library's HTTP client, which changes
            raise HubError(self._unreachable(error)) from error

    def _refused(self, error: errors.HfHubHTTPError, what: str) -> str:
        code = error.response.status_code
        if code == 401:
            return f"{self.endpoint} does not accept your token (HF_TOKEN, or `hf auth login`)"
        if code == 429:
            return f"{self.endpoint} has had too many requests from here; wait some minutes"
        return f"{self.endpoint} answers {what} with HTTP error {code}"

    def _unreachable(self, error: Exception) -> str:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return f"{self.endpoint} cannot be reached ({reason})"


class _Sink:
    """The end of a partial file, hashed as it grows. The library's http_get writes into it."""

    def __init__(self, file: BinaryIO, pending: Pending, on_bytes: OnBytes) -> None:
        self._file = file
        self._pending = pending
        self._on_bytes = on_bytes
        self._digest = self._new_digest()
        self._at = 0

    def take_up(self) -> int:
        """Hashes what is there, and says how much that is."""
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            self._count(chunk)
        if self._at > self._pending.size:
            self.seek(0)
            self.truncate()
        return self._at

    def write(self, chunk: bytes) -> int:
        self._file.write(chunk)
        self._count(chunk)
        return len(chunk)

    def tell(self) -> int:
        return self._at

    def seek(self, position: int) -> int:
        return self._file.seek(position)

    def truncate(self) -> int:
        """Begins anew: the server gives the whole file again."""
        self._file.truncate(0)
        self._on_bytes(-self._at)
        self._digest, self._at = self._new_digest(), 0
        return 0

    def hexdigest(self) -> str:
        return str(self._digest.hexdigest())

    def _count(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        self._at += len(chunk)
        self._on_bytes(len(chunk))

    def _new_digest(self) -> Any:
        if _SHA256.fullmatch(self._pending.etag):
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self._pending.size, usedforsecurity=False)


def _lock(file: BinaryIO, name: str) -> None:
    """One program at a time; the lock ends with the process, however that ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AppError(f"another program is downloading {name}; wait until it is done") from None
    except OSError:
        pass  # a file system without locks
