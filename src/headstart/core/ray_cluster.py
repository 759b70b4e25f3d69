"""Ray: connect to a cluster, or start one that only this machine and only this user can reach."""

from __future__ import annotations

import importlib
import os
import secrets
from typing import Any

from headstart.core.errors import ResourceError
from headstart.core.log import logger
from headstart.core.processes import LOOPBACK

_TOKEN, _TOKEN_PATH = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def initialize(address: str | None, cpus: int | None = None) -> Any:
    """Connect to the cluster at an address, or start one on this machine; return the module `ray`.

    A cluster started here listens on the loopback interface only, has no dashboard, and asks every client for a random
    token, which its processes inherit through the environment. A process that has initialized Ray itself keeps it.
    """
    # By default, Ray gives its workers niceness 15, for machines that also do other work.
    os.environ.setdefault("RAY_worker_niceness", "0")
    if address:
        ray = importlib.import_module("ray")
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
            logger.warning(
                f"the Ray cluster at {address} runs the tasks. Its ports are open as it was started; with "
                f"RAY_AUTH_MODE=token on all machines, it asks every client for a token"
            )
        return ray
    _require_token()
    # By default, a new cluster reports its use to a server of its maker.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray has no setting to stay on the loopback interface, except the default of the systems on which it supports no
    # clusters. Its processes read the variable; the constant is for a `ray` that was imported before.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray = importlib.import_module("ray")
    if not ray.is_initialized():
        constants: Any = importlib.import_module("ray._private.ray_constants")
        constants.ENABLE_RAY_CLUSTER = False
        # A `ray` that was imported before has read the mode of authentication, and maybe another token.
        native: Any = importlib.import_module("ray._raylet")
        native.Config.initialize("")
        native.AuthenticationTokenLoader.instance().reset_cache()
        try:
            ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, _node_ip_address=LOOPBACK)
        # Ray raises plain exceptions if one of its processes does not answer within 30 s.
        except Exception as error:
            raise ResourceError(
                f"a Ray cluster could not be started on this machine ({error})",
                do="Try again when the machine is less busy, or leave --on ray out",
            ) from error
    return ray


def _require_token() -> None:
    """Turn token authentication on, unless the user has chosen a mode, with a token that is written nowhere."""
    if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token" and _TOKEN_PATH not in os.environ:
        os.environ.setdefault(_TOKEN, secrets.token_hex(32))
