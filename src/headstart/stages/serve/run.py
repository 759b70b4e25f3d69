"""Start a server: read the key, bind the address, and supervise the workers."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from headstart.checkpoint.names import run_folder_of
from headstart.core.errors import RecipeError, ResourceError
from headstart.core.extras import install_command
from headstart.stages.serve.settings import ServeSettings

KEY = "HEADSTART_KEY"
"""The environment variable with the key that clients must send."""
_SHORTEST_KEY = 16
_EXTRA = ("fastapi", "prometheus_client", "uvicorn")


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


def run(
    folders: Sequence[Path],
    settings: ServeSettings,
    key: str | None = None,
    indexes: Sequence[Path] = (),
    *,
    on_ray: bool = False,
    address: str | None = None,
) -> None:
    """Serve tasks and search indexes until SIGTERM or SIGINT; accepted requests are answered first.

    Args:
        folders: outputs of `headstart finetune`, or folders that contain such outputs, or names of them.
        settings: the settings of the server.
        key: what a client must send; None for a server that only this machine reaches.
        indexes: outputs of `headstart index`.
        on_ray: answer from replicas of a Ray Serve deployment instead of processes of this machine.
        address: the address of the Ray cluster; None to start one on this machine.
    """
    if not folders and not indexes:
        raise RecipeError(
            "there is nothing to serve",
            allowed="`headstart serve` takes outputs of `headstart finetune`, and of `headstart index` as --index",
            do="Name a folder",
        )
    if address is not None and not on_ray:
        raise RecipeError("--address is the address of a Ray cluster", do="Add --on ray, or leave --address out")
    _require_extra()
    # Once, and not in each process that answers: they get local folders.
    folders = [run_folder_of(folder) for folder in folders]
    if on_ray:
        from headstart.stages.serve.workers import on_ray as ray_serve

        ray_serve.run(folders, settings, key, indexes, address)
        return
    from headstart.stages.serve.workers import supervisor

    with _bind(settings) as listener:
        supervisor.run(listener, folders, indexes, settings, key)


def _bind(settings: ServeSettings) -> socket.socket:
    """Return a socket that is bound to the address; the first worker makes it listen."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ResourceError(
            f"the server cannot listen on {settings.host}:{settings.port} ({error})",
            do="Choose another --port or --host",
        ) from error
    return listener


def _require_extra() -> None:
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise ResourceError(
            f"`headstart serve` needs a package that is not installed ({missing[0]})", do=install_command("serve")
        )
