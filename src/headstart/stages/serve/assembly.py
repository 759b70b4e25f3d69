"""Put a server together: the tasks, the queue, the routes, and the checks before them."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.core.log import logger
from headstart.stages.serve import app
from headstart.stages.serve.catalog import Catalog
from headstart.stages.serve.guard import Guard
from headstart.stages.serve.indexes import Indexes
from headstart.stages.serve.service import Service
from headstart.stages.serve.settings import ServeSettings
from headstart.stages.serve.telemetry import Telemetry


@dataclass(frozen=True)
class Assembled:
    """A service that computes, and the ASGI application that answers for it."""

    service: Service
    application: Guard

    def watch_folders(self, stopped: threading.Event) -> None:
        """Look for new and replaced folders in a thread of its own, until the event is set."""
        threading.Thread(target=_watch, args=(self.service, stopped), daemon=True).start()


def assemble(
    folders: Sequence[str], indexes: Sequence[str], settings: ServeSettings, key: str | None, telemetry: Telemetry
) -> Assembled:
    """Load the tasks and start to compute; returns before the warm-up has ended.

    Args:
        folders: outputs of `headstart finetune`, or folders that contain such outputs.
        indexes: outputs of `headstart index`.
        settings: the settings of the server.
        key: what a client must send; None for a server that only this machine reaches.
        telemetry: the metrics to update.
    """
    # oneDNN keeps what it has compiled for the last 1,024 shapes of matrices. The shapes of batches vary, so that the
    # memory of a busy server would grow by a third in ten minutes. The limit is read before the first product.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    catalog = Catalog([Path(folder) for folder in folders], int(settings.cache_mb * 1e6), telemetry)
    service = Service(catalog, settings, telemetry, Indexes([Path(folder) for folder in indexes]))
    service.start()
    # The networks and libraries stay as they are; a full collection would look at all of them, and stop every thread of
    # the process for a quarter of a second.
    gc.collect()
    gc.freeze()
    guarded = Guard(
        app.build(service), key, telemetry, int(settings.max_body_mb * 1e6), settings.body_seconds,
        require_room=service.queue.require_room,
    )  # fmt: skip
    return Assembled(service, guarded)


def _watch(service: Service, stopped: threading.Event) -> None:
    while not stopped.wait(service.settings.reload_seconds):
        try:
            service.catalog.refresh()
            service.indexes.refresh()
        # A folder that cannot be listed at the moment must not end the thread.
        except Exception as error:
            logger.warning("the folders cannot be read: %s", error)
