"""One process at a time in a folder: a lock that dies with its holder."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from headstart.core.errors import ArtifactError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no such locks, and is trusted not to need them
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


class FolderLock:
    """Holds a folder for this process until the object goes, or the process dies, by whatever death.

    It is a POSIX record lock: it belongs to the process and not to its children, so a worker that outlives a killed
    run does not keep the folder, and a process may take a folder twice.
    """

    def __init__(self, folder: Path) -> None:
        """Take the folder; raises and names the holder if another process has it."""
        self.path, self._held = folder / LOCK, False
        while not self._held:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            self._take(folder)
            # A holder that ends removes its file: what was opened just before is then no longer the folder's lock.
            self._held = _is_same(self._descriptor, self.path)
            if not self._held:
                os.close(self._descriptor)
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def _take(self, folder: Path) -> None:
        try:
            if fcntl is not None:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._descriptor, 200).decode("utf-8", "replace").strip() or "another process"
            os.close(self._descriptor)
            raise ArtifactError(
                f"{folder} is being written by {holder}",
                allowed="One process at a time works on an output",
                do="Wait for it, stop it, or choose another output",
            ) from error

    def __del__(self) -> None:
        """Let the folder go, and leave nothing behind."""
        if getattr(self, "_held", False):
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
