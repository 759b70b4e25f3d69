"""One process at a time in a folder: a lock that dies with its holder."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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

    def __init__(self, folder: Path, path: Path | None = None, wait: bool = False) -> None:
        """Take the folder; if another process has it, raise and name the holder, or `wait` until it is free.

        The lock is a file in the folder, or another `path` where the folder is still to be made.
        """
        self.path, self._held = path or folder / LOCK, False
        while not self._held:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            self._take(folder, wait)
            # A holder that ends removes its file: what was opened just before is then no longer the folder's lock.
            self._held = _is_same(self._descriptor, self.path)
            if not self._held:
                os.close(self._descriptor)
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def _take(self, folder: Path, wait: bool) -> None:
        try:
            if fcntl is not None:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._descriptor, 200).decode("utf-8", "replace").strip() or "another process"
            if wait:
                print(f"waiting for {holder}, which writes {folder}", file=sys.stderr, flush=True)
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
                return
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


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder that may still have to be made, once no other process does."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder, folder.parent / f".{folder.name}{LOCK}", wait=True)
    try:
        yield
    finally:
        del lock


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
