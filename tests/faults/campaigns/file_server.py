"""Servers on 127.0.0.1 that fail as planned: files by HTTP with ranges and ETags, or another server behind them."""

from __future__ import annotations

import hashlib
import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

FAULTS = ("reset", "500", "503", "truncated", "etag", "403", "replaced")
TRANSIENT = ("reset", "500", "503", "truncated")
_EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Files:
    """Files by path, served with ranges and ETags."""

    contents: dict[str, bytes]
    has_ranges: bool = True
    has_etags: bool = True
    _etags: dict[int, tuple[bytes, str]] = field(default_factory=dict)
    """By identity of the content, because to hash a large file for each of its ranges would slow down the answers."""

    def _etag(self, content: bytes) -> str:
        if self._etags.get(id(content), (None,))[0] is not content:
            self._etags[id(content)] = content, f'"{hashlib.md5(content).hexdigest()}"'
        return self._etags[id(content)][1]

    def __call__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        """Answer a request for a file or a range of it."""
        content = self.contents.get(unquote(urlsplit(target).path).strip("/"))
        if content is None:
            return Answer(404, {}, b"no such file")
        etag = self._etag(content)
        fields = {"ETag": etag} if self.has_etags else {}
        if headers.get("if-match", etag) != etag:
            return Answer(412, {}, b"another version")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
        if wanted is None or not self.has_ranges:
            return Answer(200, fields, content)
        first, last = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
        if first >= len(content):
            return Answer(416, {**fields, "Content-Range": f"bytes */{len(content)}"}, b"")
        fields["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return Answer(206, fields, content[first : last + 1])


def behind(port: int) -> Callable[[str, str, dict[str, str], bytes], Answer]:
    """Return a function that asks the server at another port."""

    def ask(method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(method, target, body or None, headers)
            response = connection.getresponse()
            kept = {name: value for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP}
            return Answer(response.status, kept, response.read())
        finally:
            connection.close()

    return ask


_HOP_BY_HOP = ("connection", "transfer-encoding", "date", "server")


@dataclass
class FaultyServer:
    """Answers requests, some of them with a fault."""

    answer: Callable[[str, str, dict[str, str], bytes], Answer]
    plan: Callable[[str, str], str | None] = lambda method, path: None
    """Returns the fault for a request, given its method and path, or None."""
    replace: Callable[[str], None] = lambda path: None
    """Replaces the object at a path, for the fault `replaced`."""
    requests: list[str] = field(default_factory=list)
    latency: float = 0.0
    """Seconds before each answer, as on the way to a distant store."""

    @contextmanager
    def served(self) -> Iterator[str]:
        """Answer in threads until the block ends; yields the address."""
        outer = self

        class Handler(_Handler):
            server_of_faults = outer

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of_faults: FaultyServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        outer = self.server_of_faults
        path = unquote(urlsplit(self.path).path).strip("/")
        outer.requests.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = outer.plan(self.command, path)
        time.sleep(outer.latency)
        if fault == "reset":
            # Closed with data that was not sent, which the other side sees as a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        if fault == "replaced":
            outer.replace(path)
        refused = {
            "500": Answer(500, {}, b"broken"), "503": Answer(503, {"Retry-After": "0"}, b"busy"),
            "403": Answer(403, {"Content-Type": "application/xml"}, _EXPIRED),
        }  # fmt: skip
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = refused[fault] if fault in refused else outer.answer(self.command, self.path, headers, body)
        if fault == "etag":
            reply = reply._replace(headers={**_without_etag(reply.headers), "ETag": '"0123456789abcdef"'})
        self._send(reply, is_cut=fault == "truncated")

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _send(self, reply: Answer, is_cut: bool) -> None:
        self.send_response(reply.status)
        fields = {name.lower(): value for name, value in reply.headers.items()}
        # The answer to HEAD states the length of what GET would send.
        fields = {"content-length": str(len(reply.body)), **fields}
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body[: len(reply.body) // 2] if is_cut else reply.body)
        self.close_connection = self.close_connection or is_cut


def _without_etag(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() != "etag"}
