"""A small hub on this machine: the part of Hugging Face's HTTP that fetching models needs, and its misbehaviour."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

REPO = "user/Some-GGUF"


@dataclass
class Hub:
    """What the hub has, how it answers, and what it was asked. Two addresses of one server stand for two hosts: the
    hub's (127.0.0.1), and that of its store (localhost), to which it sends those who want bytes.

    only_store_knows: the hub's own answers have neither ETag nor size.
    cuts: after how many bytes each of the next answers with bytes ends; refusal: (status, X-Error-Code) of all else.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    commit: str = "a" * 40
    moved: dict[str, str] = field(default_factory=dict)
    secret: str | None = None
    refusal: tuple[int, str] | None = None
    cuts: list[int] = field(default_factory=list)
    takes_ranges: bool = True
    false_bytes: bool = False
    listing: bytes | None = None
    only_store_knows: bool = False
    asked: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)  # method, path, token, range
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fetched(self) -> list[str]:
        """Paths of which bytes were asked for, at the store."""
        return [path for method, path, _, _ in self.asked if method == "GET" and path.startswith("/store/")]

    def ranges(self) -> list[str | None]:
        return [found for method, path, _, found in self.asked if path.startswith("/store/")]


def etag_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.hub, unquote(self.path)
        hub.asked.append((self.command, path, self.headers.get("Authorization"), self.headers.get("Range")))
        if path.startswith("/store/"):
            return self._bytes(path.removeprefix("/store/"))
        for old, new in hub.moved.items():
            if f"/{old}/" in f"{path}/":
                return self._send(307, {"Location": path.replace(old, new)})
        if hub.refusal and (hub.secret is None or self.headers.get("Authorization") != f"Bearer {hub.secret}"):
            status, code = hub.refusal
            return self._send(status, {"X-Error-Code": code} if code else {})
        if path == f"/api/models/{REPO}":
            listing = {"sha": hub.commit, "siblings": [{"rfilename": name} for name in hub.files]}
            return self._send(200, {}, hub.listing or json.dumps(listing).encode())
        start = f"/{REPO}/resolve/{hub.commit}/"
        name = path.removeprefix(start)
        if not path.startswith(start) or name not in hub.files:
            return self._send(404, {"X-Error-Code": "EntryNotFound" if path.startswith(start) else "RepoNotFound"})
        content = hub.files[name]
        known = {"X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{etag_of(content)}"'}
        there = {"Location": f"http://localhost:{hub.port}/store/{name}", "X-Repo-Commit": hub.commit}
        self._send(302, there if hub.only_store_knows else there | known)

    def _bytes(self, name: str) -> None:
        hub, content, wanted = self.hub, self.hub.files[name], self.headers.get("Range")
        if hub.false_bytes:
            content = bytes(len(content))
        headers, status = {"ETag": f'W/"{etag_of(content)}"'}, 200
        if wanted and hub.takes_ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            headers, status = {**headers, "Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}, 206
            content = content[start:]
        if not hub.cuts:
            return self._send(status, headers, content)
        self._send(status, {**headers, "Content-Length": str(len(content))}, content[: hub.cuts.pop(0)])
        self.close_connection = True

    def _send(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
