"""A hub of our own on a local port: the few endpoints that huggingface_hub asks for models.

Large files are told by their SHA-256 and lie behind a redirect to another host name, as on the
real hub; small ones by git's SHA-1, and are given directly.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = 1000  # bytes


@dataclass
class Repo:
    """A repository, and how the server misbehaves with it.

    token: without it, the repository is not there. gated: its files are refused. cut: the first
    GET of a large file ends after so many bytes. corrupt: files have other bytes than their
    checksums say. piece_s: seconds of rest between pieces of `piece` bytes.
    """

    files: dict[str, bytes]
    commit: str = "c" * 40
    token: str | None = None
    gated: bool = False
    cut: int | None = None
    corrupt: bool = False
    ignore_range: bool = False
    piece: int = 1 << 20
    piece_s: float = 0.0


@dataclass
class FakeHub:
    """repos: by "owner/name". asked: every request as (method, path, headers)."""

    repos: dict[str, Repo] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    endpoint: str = ""
    broken: int | None = None

    def gets(self, ending: str) -> list[dict[str, str]]:
        """The headers of GETs of the bytes of a file."""
        return [
            headers
            for method, path, headers in self.asked
            if method == "GET" and path.startswith("/cdn/") and path.endswith(ending)
        ]


@contextmanager
def running() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(_Handler):
        fake = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def checksum(content: bytes) -> str:
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.fake.asked.append((self.command, path, dict(self.headers)))
        if self.fake.broken is not None:
            self._end(self.fake.broken)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/\w+)?", path):
            self._info(found[1])
        elif found := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            repo = self.fake.repos[found[1]]
            self._bytes(repo, repo.files[found[2]])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/(\w+)/(.+)", path):
            self._resolve(found[1], found[3])
        else:
            self._end(404)

    def _repo(self, name: str) -> Repo | None:
        repo = self.fake.repos.get(name)
        given = self.headers.get("authorization")
        if repo is None or (repo.token and given != f"Bearer {repo.token}"):
            self._end(401, {"X-Error-Code": "RepoNotFound"})
            return None
        return repo

    def _info(self, name: str) -> None:
        if (repo := self._repo(name)) is None:
            return
        siblings = [
            {
                "rfilename": path,
                "size": len(content),
                "blobId": "0" * 40,
                **(
                    {"lfs": {"sha256": checksum(content), "size": len(content), "pointerSize": 1}}
                    if len(content) >= LARGE
                    else {}
                ),
            }
            for path, content in repo.files.items()
        ]
        told = {"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings}
        body = json.dumps(told).encode()
        self._end(200, {"Content-Type": "application/json"}, body)

    def _resolve(self, name: str, path: str) -> None:
        if (repo := self._repo(name)) is None:
            return
        if repo.gated:
            self._end(403, {"X-Error-Code": "GatedRepo"})
            return
        content = repo.files.get(path)
        if content is None:
            self._end(404, {"X-Error-Code": "EntryNotFound"})
            return
        etag = f'"{checksum(content)}"'
        headers = {"X-Repo-Commit": repo.commit, "X-Linked-Etag": etag}
        headers["X-Linked-Size"] = str(len(content))
        if len(content) >= LARGE:
            # Another name of the same server: a token must not be sent there.
            port = self.fake.endpoint.rpartition(":")[2]
            self._end(302, {**headers, "Location": f"http://localhost:{port}/cdn/{name}/{path}"})
        else:
            self._bytes(repo, content, {**headers, "ETag": etag})

    def _bytes(self, repo: Repo, content: bytes, headers: dict[str, str] | None = None) -> None:
        start, code, told = 0, 200, dict(headers or {})
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted and not repo.ignore_range:
            start, code = int(wanted[1]), 206
            told["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if repo.corrupt:
            content = bytes(len(content))
        body = content[start:]
        self.send_response(code)
        for name, value in told.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if repo.cut is not None and len(content) >= LARGE:
            body, repo.cut, self.close_connection = body[: repo.cut], None, True
        try:
            for at in range(0, len(body), repo.piece):
                self.wfile.write(body[at : at + repo.piece])
                time.sleep(repo.piece_s)
        except OSError:  # whoever asked has gone
            self.close_connection = True

    def _end(self, code: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
