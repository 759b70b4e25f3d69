"""A seeded generator of requests that a server must refuse."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

POSTS = ("/v1/tasks/lora", "/v1/tasks/tags", "/v1/classify", "/v1/embeddings", "/rerank")
NAMES = ("../../etc/passwd", "/etc/passwd", "..%2f..%2fetc", "lora/../lora", "lora%00", "\\\\share\\x", "%2e%2e",
         "a" * 5000, "${jndi:x}", "{{7*7}}", "<script>", "con", "..", "lora ", "LORA")  # fmt: skip
VALUES: tuple[object, ...] = (
    None, True, -1, 1e308, 10**400, [], {}, [[]], [None], [{}], {"a": 1}, [1, "a"], [["a", ["b"]]], "\ud800",
    ["\udfff"], ["a" * 20_001], ["a"] * 257, [["a"] * 3], {"inputs": ["a"]},
)  # fmt: skip


@dataclass(frozen=True)
class Hostile:
    """One request as the bytes that are sent."""

    what: str
    raw: bytes


def requests(seed: int, count: int) -> Iterator[Hostile]:
    """Yield requests of random kinds, the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.choice(_KINDS)(rng)


def send(port: int, request: Hostile, timeout: float = 30) -> tuple[int, bytes]:
    """Send a request as it is; returns the status and the body of the reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        # The server may refuse before it has read everything; its reply is still there.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request.raw)
        chunks = []
        with suppress(ConnectionResetError):
            while chunk := connection.recv(65_536):
                chunks.append(chunk)
    head, _, body = b"".join(chunks).partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]) if head else 0, body


def _post(path: str, body: bytes, headers: bytes = b"Content-Type: application/json\r\n") -> bytes:
    announced = b"Transfer-Encoding" in headers or b"Content-Length" in headers
    length = b"" if announced else b"Content-Length: %d\r\n" % len(body)
    start = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n".encode()
    return start + headers + length + b"\r\n" + body


def _wrong_type(rng: random.Random) -> Hostile:
    path = rng.choice(POSTS)
    fields = {
        "/v1/classify": {"task": "lora", "inputs": ["a"]}, "/v1/embeddings": {"model": "lora", "input": "a"},
        "/rerank": {"model": "lora-pair", "query": "a", "texts": ["b"]},
    }.get(path, {"inputs": ["a"]})  # fmt: skip
    field = rng.choice([*fields, "unknown", "top_k"])
    value = rng.choice(VALUES)
    if field == "top_k" and value is None:
        value = "many"
    return Hostile(f"{field} is wrong", _post(path, json.dumps({**fields, field: value}).encode()))


def _missing(rng: random.Random) -> Hostile:
    return Hostile("missing keys", _post(rng.choice(POSTS), rng.choice((b"{}", b'{"model": "lora"}', b"null", b'""'))))


def _broken(rng: random.Random) -> Hostile:
    whole = b'{"inputs": ["some text"]}'
    cut = whole[: rng.randrange(len(whole) - 1)]
    garbage = rng.randbytes(rng.randrange(1, 2000))
    body = rng.choice((cut, garbage, b"\xff\xfe" + whole, whole + b"}", b'{"inputs": ["\xc3\x28"]}', b"\0" * 100))
    return Hostile("broken JSON", _post(rng.choice(POSTS), body))


def _deep(rng: random.Random) -> Hostile:
    opening = rng.choice((b"[", b'{"a":', b'{"inputs":['))
    return Hostile("deep JSON", _post(rng.choice(POSTS), opening * rng.choice((2_000, 100_000))))


def _large(rng: random.Random) -> Hostile:
    path = rng.choice(POSTS)
    if rng.random() < 0.5:
        headers = b"Content-Type: application/json\r\nContent-Length: 100000000\r\n"
        return Hostile("100 MB announced", _post(path, b"[" * 1000, headers))
    chunk = b"%x\r\n" % 1_000_000 + b"a" * 1_000_000 + b"\r\n"
    headers = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    return Hostile("an endless stream", _post(path, chunk * 6, headers))


def _name(rng: random.Random) -> Hostile:
    name = rng.choice(NAMES)
    if rng.random() < 0.5:
        return Hostile("a path as a name", _post("/v1/classify", json.dumps({"task": name, "inputs": ["a"]}).encode()))
    quoted = "".join(c if c.isalnum() or c in "%./" else f"%{ord(c):02x}" for c in name)
    return Hostile("a path in the path", _post(f"/v1/tasks/{quoted}", b'{"inputs": ["a"]}'))


def _method(rng: random.Random) -> Hostile:
    method, path = (
        rng.choice(("PUT", "DELETE", "PATCH", "TRACE", "BREW")),
        rng.choice((*POSTS, "/", "/metrics", "/%00")),
    )
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    return Hostile("another method", head.encode())


def _route(rng: random.Random) -> Hostile:
    path = rng.choice(
        ("/docs", "/redoc", "/admin", "/v1", "/v1/tasks/a/b", "//", "/static/../../x", "/%ff%fe", "/.env")
    )
    return Hostile("no route", f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())


def _header(rng: random.Random) -> Hostile:
    bad = rng.choice((b"Content-Length: -1\r\n", b"Content-Length: x\r\n", b"Host: evil.example\r\n", b"No colon\r\n",
                      b"Content-Length: 3\r\nContent-Length: 4\r\n", b"X: " + b"a" * 200_000 + b"\r\n"))  # fmt: skip
    start = b"POST /v1/tasks/lora HTTP/1.1\r\nConnection: close\r\n"
    host = b"" if bad.startswith(b"Host") else b"Host: 127.0.0.1\r\n"
    return Hostile("a bad header", start + host + bad + b"\r\n{}")


_KINDS = (_wrong_type, _wrong_type, _missing, _broken, _deep, _large, _name, _method, _route, _header)
