"""The server as a deployment of Ray Serve: replicas of one application on the machines of a cluster."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from headstart.core import config, ray_cluster
from headstart.core.errors import RecipeError, ResourceError
from headstart.core.extras import install_command
from headstart.core.log import logger
from headstart.core.processes import cores
from headstart.stages.serve.settings import ServeSettings

_NAME = "headstart"
_STATE_ROUTES = 64
"""Requests beyond those that compute, for `/ready`, `/metrics` and the refusals."""


def run(
    folders: Sequence[Path], settings: ServeSettings, key: str | None, indexes: Sequence[Path], address: str | None
) -> None:
    """Serve from `settings.workers` replicas until SIGTERM or SIGINT.

    The folders must be readable under the same paths on every machine of the cluster.

    Args:
        folders: outputs of `headstart finetune`, or folders that contain such outputs.
        settings: the settings of the server.
        key: what a client must send; None for a server that only this machine reaches.
        indexes: outputs of `headstart index`.
        address: the address of the cluster; None to start one on this machine.
    """
    if settings.port == 0:
        raise RecipeError("--on ray needs a port, and --port is 0", do="Set --port to a port that is free")
    if any(importlib.util.find_spec(name) is None for name in ("ray", "aiohttp", "grpc_reflection")):
        raise ResourceError("--on ray needs Ray Serve, which is not installed", do=install_command("ray-serve"))
    ray = ray_cluster.initialize(address)
    serve = importlib.import_module("ray.serve")
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        serve.start(http_options={"host": settings.host, "port": settings.port}, logging_config={"log_level": "ERROR"})
        deployment = serve.deployment(
            serve.ingress(_builder(folders, settings, key, indexes))(), name=_NAME, num_replicas=settings.workers,
            # The queue of a replica refuses what it cannot answer in time; Ray's own would let requests wait.
            max_ongoing_requests=settings.queue_rows + _STATE_ROUTES,
            ray_actor_options=_resources(ray, settings.workers, is_local=address is None),
            graceful_shutdown_timeout_s=settings.drain_seconds,
        )  # fmt: skip
        serve.run(deployment.bind(), name=_NAME, route_prefix="/")
        logger.info("listening on http://%s:%d, %d replicas", settings.host, settings.port, settings.workers)
        stopped.wait()
    finally:
        serve.shutdown()
        ray.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)


def _builder(
    folders: Sequence[Path], settings: ServeSettings, key: str | None, indexes: Sequence[Path]
) -> Callable[[], Any]:
    """Return a function that builds the application in a replica; it holds nothing but texts and numbers."""
    paths = [str(folder.resolve()) for folder in folders], [str(folder.resolve()) for folder in indexes]
    filled = settings.model_dump()

    def build() -> Any:
        from headstart.stages.serve.assembly import assemble
        from headstart.stages.serve.telemetry import Telemetry

        assembled = assemble(*paths, config.fill(ServeSettings, filled, "serve"), key, Telemetry())
        # A replica ends with its process.
        assembled.watch_folders(threading.Event())
        return assembled.application

    return build


def _resources(ray: Any, replicas: int, is_local: bool) -> dict[str, float]:
    """Return what one replica reserves: a GPU if there is one for each, and its share of the cores of this machine."""
    if ray.cluster_resources().get("GPU", 0) >= replicas:
        return {"num_gpus": 1}
    return {"num_cpus": max(1, cores() // replicas) if is_local else 1}
