"""What every request passes before a route sees it: the access log, the key, the host, the size of the body."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any

from starlette.routing import Match

from headstart.stages.serve.refusals import Refusal
from headstart.stages.serve.telemetry import Telemetry

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/health",)
"""The routes that need no key."""
NOTES = "headstart"
"""The entry of a request's scope in which a route notes what the access log says: task, model, rows, tokens."""
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """An ASGI application around another one."""

    def __init__(
        self,
        app: App,
        key: str | None,
        telemetry: Telemetry,
        max_body: int,
        body_seconds: float,
        access_log: bool = True,
        require_room: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the application and the limits.

        Args:
            app: the application that has the routes.
            key: what a client must send; None for a server that only this machine reaches.
            telemetry: the metrics to update.
            max_body: the largest body in bytes.
            body_seconds: the time in which a body must arrive.
            access_log: write one JSON line per request to stdout.
            require_room: raises a refusal if no request can be computed now. It is asked before a request is parsed,
                which takes several times as long as the refusal.
        """
        self.app, self.telemetry = app, telemetry
        self.max_body, self.body_seconds, self.access_log = max_body, body_seconds, access_log
        self._require_room = require_room
        self._digest = None if key is None else hashlib.sha256(key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass the start and the end of the server on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        start, status = time.perf_counter(), 500
        notes: dict[str, Any] = scope.setdefault(NOTES, {})

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-content-type-options", b"nosniff")]
            await send(message)

        try:
            self._require_allowed(scope)
            body = await asyncio.wait_for(self._body(scope, receive), self.body_seconds)
            if body is None:
                status = 499
                return
            if scope["method"] == "POST":
                self._require_room()
            await self.app(scope, _replayed(body, receive), noted)
        except Refusal as refusal:
            await send_refusal(refusal, noted)
        except TimeoutError:
            await send_refusal(Refusal(408, f"The body did not arrive within {self.body_seconds:g} s."), noted)
        finally:
            self._record(scope, notes.get("status", status), time.perf_counter() - start, notes)

    def _require_allowed(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if scope["path"] in OPEN:
            return
        if self._digest is None:
            # A web page may point its own name at this machine (DNS rebinding); the host then has that name.
            host = headers.get(b"host", b"").decode("latin-1").lower()
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
            if name not in _LOOPBACK:
                raise Refusal(421, "Without a key, this server answers only for the host localhost or 127.0.0.1.")
            return
        sent = hashlib.sha256(_key_in(headers.get(b"authorization", b""))).digest()
        if not hmac.compare_digest(sent, self._digest):
            raise Refusal(401, "The key is missing or wrong. Send it as `Authorization: Bearer KEY`.")

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Read the body; None if the client left. Raises a refusal as soon as it is known to be too large."""
        limit = f"The body is larger than {self.max_body / 1e6:g} MB. Send fewer inputs at a time."
        announced = dict(scope["headers"]).get(b"content-length", b"")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > self.max_body):
            raise Refusal(413, limit)
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self.max_body:
                raise Refusal(413, limit)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _route(self, scope: Scope) -> str:
        """Return the template of a route and not the path, which a client may fill with anything."""
        # A request that was refused before it was parsed has not reached the router.
        route = scope.get("route") or next(
            (known for known in getattr(self.app, "routes", ()) if known.matches(scope)[0] is Match.FULL), None
        )
        return str(getattr(route, "path", "unmatched"))

    def _record(self, scope: Scope, status: int, seconds: float, notes: dict[str, Any]) -> None:
        route = self._route(scope)
        self.telemetry.latency.labels(route).observe(seconds)
        self.telemetry.replies.labels(route, str(status)).inc()
        if self.access_log:
            line: dict[str, Any] = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "method": scope["method"], "route": route,
                "status": status, "ms": round(1000 * seconds, 1),
                **{name: notes[name] for name in ("task", "model", "rows", "tokens") if name in notes},
            }  # fmt: skip
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


async def send_refusal(refusal: Refusal, send: Send) -> None:
    """Send a refusal as JSON."""
    body = json.dumps(refusal.body()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers()}
    if refusal.status == 401:
        headers["www-authenticate"] = 'Basic realm="headstart", charset="UTF-8"'
    if refusal.status in (408, 413):
        # The rest of the body is not read.
        headers["connection"] = "close"
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body once, and then waits for the client to leave."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> MutableMapping[str, Any]:
        return pending.pop() if pending else await receive()

    return replay


def _key_in(header: bytes) -> bytes:
    """Return the key of a header: a bearer token, or the password that a browser sends."""
    scheme, _, value = header.partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except ValueError:
            return b""
    return b""
