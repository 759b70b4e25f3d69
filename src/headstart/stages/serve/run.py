"""Start a server: read the tasks, listen, and drain on SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from headstart.core.errors import RecipeError, ResourceError
from headstart.core.extras import install_command
from headstart.core.log import logger
from headstart.stages.serve.settings import ServeSettings

KEY = "HEADSTART_KEY"
"""The environment variable with the key that clients must send."""
_SHORTEST_KEY = 16
_BACKLOG = 512


def read_key(settings: ServeSettings, key_file: Path | None) -> str | None:
    """Return the key from a file or from `HEADSTART_KEY`; raises if an address other than loopback has none."""
    key = os.environ.get(KEY)
    if key_file is not None:
        try:
            key = key_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"the key cannot be read from {key_file} ({error})", do="Correct --key-file") from error
    if key is None and settings.is_loopback:
        return None
    if key is None:
        raise RecipeError(
            f"--host is {settings.host}, which other machines can reach, and there is no key",
            allowed="Without a key, only 127.0.0.1, ::1 and localhost are allowed",
            do=f"Set the environment variable {KEY}, or --key-file",
        )
    if len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable():
        raise RecipeError(
            f"the key has {len(key)} characters, or characters that a header cannot hold",
            allowed=f"At least {_SHORTEST_KEY} printable ASCII characters",
            do="Create one with `openssl rand -hex 32`",
        )
    return key


def run(folders: Sequence[Path], settings: ServeSettings, key: str | None) -> None:
    """Serve the tasks in the folders until SIGTERM or SIGINT; accepted requests are answered first."""
    uvicorn = _require_extra()
    from headstart.stages.serve import app, guard
    from headstart.stages.serve.catalog import Catalog
    from headstart.stages.serve.service import Service
    from headstart.stages.serve.telemetry import Telemetry

    telemetry = Telemetry()
    catalog = Catalog(folders, int(settings.cache_mb * 1e6), telemetry)
    service = Service(catalog, settings, telemetry)
    service.start()
    _describe(catalog)
    guarded = guard.Guard(app.build(service), key, telemetry, int(settings.max_body_mb * 1e6), settings.body_seconds)
    configured = uvicorn.Config(
        guarded, settings.host, settings.port, log_level="warning", access_log=False, server_header=False,
        timeout_graceful_shutdown=int(settings.drain_seconds), backlog=_BACKLOG, ws="none", lifespan="on",
    )  # fmt: skip

    class Server(uvicorn.Server):  # type: ignore[name-defined, misc]
        """A server that stops being ready as soon as it is asked to stop, and says where it listens."""

        def handle_exit(self, number: int, frame: FrameType | None) -> None:
            service.draining = True
            super().handle_exit(number, frame)

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            for listener in self.servers:
                for socket in listener.sockets:
                    logger.info("listening on http://%s:%d", *socket.getsockname()[:2])

    stopped = threading.Event()
    watcher = threading.Thread(target=_watch, args=(catalog, settings.reload_seconds, stopped), daemon=True)
    watcher.start()
    server = Server(configured)
    # uvicorn raises the signal again after it has drained; the command must then end without a traceback.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run()
    finally:
        stopped.set()
        for number, handler in before.items():
            signal.signal(number, handler)
    if not server.started:
        raise ResourceError(
            f"the server cannot listen on {settings.host}:{settings.port}", do="Choose another --port or --host"
        )
    if service.finished:
        logger.info("stopped; all accepted requests were answered")
    else:
        logger.warning("stopped; some accepted requests were not answered within %g s", settings.drain_seconds)


def _require_extra() -> Any:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise ResourceError(
            f"`headstart serve` needs a package that is not installed ({error.name})", do=install_command("serve")
        ) from error
    return uvicorn


def _describe(catalog: Any) -> None:
    """Say which tasks share a body, and which stand beside."""
    slots = catalog.slots()
    for body in catalog.opener.bodies.values():
        sharing = [slot for slot in slots if slot.body is body]
        logger.info("body %s (%.1f MB, %s): %d tasks in memory", body.key[:12], body.size / 1e6, body.number_format,
                    len(sharing))  # fmt: skip
    for slot in slots:
        if slot.head is None:
            logger.info("%s: %s, %.1f MB", slot.name, slot.sharing, slot.size / 1e6)
    if len(slots) < len(catalog.entries):
        logger.info("%d of %d tasks are in memory; the others are loaded when they are asked for", len(slots),
                    len(catalog.entries))  # fmt: skip


def _watch(catalog: Any, seconds: float, stopped: threading.Event) -> None:
    """Look for new and replaced folders until the server stops."""
    while not stopped.wait(seconds):
        try:
            catalog.refresh()
        # A folder that cannot be listed at the moment must not end the thread.
        except Exception as error:
            logger.warning("the folders cannot be read: %s", error)
