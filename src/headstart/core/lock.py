"""A lock on a folder that is released when its process ends, however it ends."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from headstart.core.errors import ArtifactError
from headstart.core.log import logger

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no record locks; folders are not locked there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
_OPEN_ATTEMPTS = 100
_held: dict[Path, os.stat_result] = {}
"""The folders that this process has locked, as they were then."""


class FolderLock:
    """Exclusive lock on a folder: `with FolderLock(folder): …`.

    It is a POSIX record lock on a file. The kernel releases it when the process ends, even by SIGKILL. It belongs to
    the process and not to its children, so a worker that outlives a killed run does not keep the folder locked. A
    process must not lock a folder twice: the lock is gone when the first of the two is released.
    """

    def __init__(self, folder: Path, *, path: Path | None = None, wait: bool = False) -> None:
        """Set up the lock; `acquire` or the `with` statement takes it.

        Args:
            folder: the folder to lock. It is created if it does not exist.
            path: the lock file, if it is not `folder/.lock`.
            wait: wait until the folder is free, instead of raising an ArtifactError that names the holder.
        """
        self.folder, self.path, self.wait = folder, path or folder / LOCK, wait
        self._descriptor: int | None = None

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the lock and write this process's id into the lock file."""
        while True:
            descriptor = _open(self.path)
            try:
                self._lock(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            # The previous holder removes the file on release: a descriptor opened just before locks nothing.
            if _is_same(descriptor, self.path):
                break
            os.close(descriptor)
        self._descriptor = descriptor
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        if self.path.parent == self.folder:
            _held[self.folder.absolute()] = self.folder.stat()

    def release(self) -> None:
        """Remove the lock file and release the lock; does nothing if the lock is not held."""
        if self._descriptor is not None:
            _held.pop(self.folder.absolute(), None)
            # The folder may have been removed by now, and locked again by another process.
            if _is_same(self._descriptor, self.path):
                self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _lock(self, descriptor: int) -> None:
        if fcntl is None:  # pragma: no cover - Windows
            return
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                # Some network file systems have no locks.
                logger.warning(
                    f"{self.folder} cannot be locked ({error.strerror}); make sure that no other process writes to it"
                )
                return
            holder = os.read(descriptor, 200).decode("utf-8", "replace").strip() or "another process"
            if not self.wait:
                raise ArtifactError(
                    f"{self.folder} is being written by {holder}",
                    allowed="Only one process at a time may write to an output",
                    do="Wait for it, stop it, or choose another output",
                ) from error
            logger.warning(f"waiting for {holder}, which is writing {self.folder}")
            fcntl.lockf(descriptor, fcntl.LOCK_EX)


def lock_beside(folder: Path) -> FolderLock:
    """Return a waiting lock for a folder that may not exist yet; its lock file is beside the folder."""
    return FolderLock(folder, path=folder.parent / f".{folder.name}{LOCK}", wait=True)


def require_in_place(path: Path) -> None:
    """Raise if a folder that this process has locked, and that contains `path`, was moved or deleted since then.

    Otherwise a run would create the folder again and finish it without the files that it wrote before.
    """
    for folder in path.absolute().parents:
        if folder in _held and not _is_in_place(folder):
            raise ArtifactError(
                f"{folder} no longer exists where it was when the run started, or is another folder now",
                allowed="The folder of a run must not be moved or deleted while it runs",
                do="Move it back, or choose another output, and run the same command again",
            )


def _is_in_place(folder: Path) -> bool:
    try:
        return os.path.samestat(folder.stat(), _held[folder])
    except OSError:
        return False


def _open(path: Path) -> int:
    """Open the lock file, and create its folder again if the previous holder has just removed it."""
    for _ in range(_OPEN_ATTEMPTS):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    raise ArtifactError(f"the lock file {path} cannot be created", do="Choose another output")


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
