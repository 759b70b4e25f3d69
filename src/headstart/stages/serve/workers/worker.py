"""A worker process: loads the tasks, accepts connections from the socket of its parent, and drains on SIGTERM."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from headstart.core import config, faults, log
from headstart.core.errors import HeadstartError
from headstart.core.log import logger
from headstart.stages.serve.settings import ServeSettings
from headstart.stages.serve.telemetry import Telemetry
from headstart.stages.serve.workers.protocol import with_header_timeout

if TYPE_CHECKING:
    from headstart.stages.serve.service import Service

_BACKLOG = 512
_KEEP_ALIVE_SECONDS = 15
"""uvicorn closes an idle connection after 5 s by default. A request that is sent at that moment is lost, so a client
that pauses for a few seconds should not meet it."""
_BEAT_SECONDS = 1.0


class Parent:
    """The channel to the process that supervises this one."""

    def __init__(self, channel: socket.socket) -> None:
        """Keep the channel."""
        self.channel = channel

    def read_job(self) -> dict[str, Any]:
        """Return the line that says what to serve."""
        with self.channel.makefile("rb") as lines:
            job: dict[str, Any] = json.loads(lines.readline())
        self.channel.setblocking(False)
        return job

    def tell(self, state: str, **facts: Any) -> None:
        """Send a state. A parent that is gone, or does not read, must not delay the worker."""
        with suppress(OSError):
            self.channel.send(json.dumps({"state": state, **facts}).encode() + b"\n")

    def is_gone(self) -> bool:
        """True if the parent has ended."""
        try:
            return not self.channel.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True


def serve(listener: socket.socket, parent: Parent, job: dict[str, Any]) -> None:
    """Serve the tasks in the folders of a job until SIGTERM, SIGINT or the end of the parent."""
    from headstart.stages.serve.assembly import assemble

    settings = config.fill(ServeSettings, job["settings"], "serve")
    telemetry = Telemetry(job["metrics"], str(job["index"]))
    assembled = assemble(job["folders"], job["indexes"], settings, job["key"], telemetry)
    service = assembled.service
    if job["index"] == 0:
        _describe(service)
    configured = uvicorn.Config(
        assembled.application, log_level="warning", access_log=False, server_header=False, backlog=_BACKLOG, ws="none",
        lifespan="on", timeout_graceful_shutdown=int(settings.drain_seconds),
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )  # fmt: skip

    configured.load()
    configured.http_protocol_class = with_header_timeout(configured.http_protocol_class, settings.header_seconds)

    class Server(uvicorn.Server):
        """A server that stops being ready as soon as it is asked to stop, and reports to its parent."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            service.draining = True
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            parent.tell("listening")
            self.reporting = asyncio.create_task(self.report())

        async def report(self) -> None:
            """Send a line every second, as long as the thread that computes runs."""
            while not parent.is_gone():
                if service.engine.is_alive:
                    parent.tell("alive")
                await asyncio.sleep(_BEAT_SECONDS)
            logger.warning("the process that supervises the workers is gone; worker %d stops", job["index"])
            self.handle_exit(signal.SIGTERM, None)

    stopped = threading.Event()
    assembled.watch_folders(stopped)
    # uvicorn raises the signal again after it has drained; the process must then end without a traceback.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    Server(configured).run(sockets=[listener])
    stopped.set()
    if service.finished:
        logger.info("stopped; all accepted requests were answered")
    else:
        logger.warning("stopped; some accepted requests were not answered within %g s", settings.drain_seconds)


def main() -> None:
    """Serve on the socket and with the channel whose numbers are the arguments of this process."""
    listener, channel = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    parent = Parent(channel)
    job = parent.read_job()
    log.show(quiet=job["level"] > logging.INFO)
    try:
        serve(listener, parent, job)
    except Exception as error:
        refusal = error if isinstance(error, HeadstartError) else faults.explain(error)
        if refusal is None or os.environ.get("HEADSTART_DEBUG"):
            raise
        parent.tell("failed", error=refusal.to_dict())
        sys.exit(refusal.exit_code)


def _describe(service: Service) -> None:
    """Say which tasks share a body, which stand beside, and which indexes there are."""
    catalog = service.catalog
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
    for index in service.indexes.entries.values():
        logger.info("index %s: %d passages", index.name, index.passages)


if __name__ == "__main__":
    main()
