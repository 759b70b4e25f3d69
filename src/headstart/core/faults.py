"""What the operating system refuses, as errors for users: a full disk, a lost mount, too few files, no memory."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator

from headstart.core.errors import HeadstartError, ResourceError

SPACE_ADVICE = "Free some space, or set `output` to another disk; rerun the same command to resume an interrupted run"
_RERUN = "rerun the same command to resume an interrupted run"
_DISK_FULL = {errno.ENOSPC: "the disk filled up", errno.EDQUOT: "the disk quota of this user is used up"}
_MACHINE = {
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "Input/output error": errno.EIO,
    "Stale file handle": errno.ESTALE,
    "Too many open files in system": errno.ENFILE,
    "Too many open files": errno.EMFILE,
    "Cannot allocate memory": errno.ENOMEM,
    "can't allocate memory": errno.ENOMEM,
    "failed to map segment from shared object": errno.ENOMEM,
    "std::bad_alloc": errno.ENOMEM,
    "can't start new thread": errno.EAGAIN,
}
"""Faults of the machine, wherever they occur. Libraries in C++ and Rust report them only in their messages."""
_CODE = re.compile(r"\(os error ([0-9]{1,3})\)|\[[Ee]rrno ([0-9]{1,3})\]")
_MAX_MESSAGE = 10_000
_MIN_ADDRESS_SPACE = 7 << 28
"""Bytes. With less, libraries in Rust and C++ abort without a message while they are loaded."""


def full_disk(error: BaseException) -> str | None:
    """Return in words that the disk or the user's quota is full if an error, or one of its causes, means that."""
    return next((_DISK_FULL[code] for link in _chain(error) if (code := _machine_code(link)) in _DISK_FULL), None)


def explain(error: BaseException) -> ResourceError | None:
    """Return the error for users if the machine caused an error, or None.

    A fault of the machine counts wherever it is in the chain of causes, also behind an error for users that only
    says what could not be read. What the system says about a path counts for the error itself alone.
    """
    if isinstance(error, ResourceError):
        return None
    for link in _chain(error):
        code = _machine_code(link)
        if code is not None:
            return _machine_fault(code, getattr(link, "filename", None))
    if isinstance(error, HeadstartError) or not isinstance(error, OSError):
        return None
    if "No usable temporary directory" in str(error):
        return ResourceError(
            "there is no folder for temporary files that can be written to",
            allowed="Python looks at TMPDIR, TEMP and TMP, /tmp, /var/tmp, /usr/tmp and the working directory",
            do="Set TMPDIR to a folder with write permission",
        )
    return _path_fault(error)


def require_address_space() -> None:
    """Raise if a limit (`ulimit -v`) leaves too little address space for the libraries that train and read models."""
    limit = _address_space()
    if limit is not None and limit < _MIN_ADDRESS_SPACE:
        raise ResourceError(
            f"this process may use {limit / 2**30:.1f} GB of address space",
            allowed=f"The libraries alone map about {_MIN_ADDRESS_SPACE / 2**30:.1f} GB, of which they use a part",
            do="Raise the limit (ulimit -v unlimited), and limit the memory by a control group if you need to",
        )


def require_open_files(number: int) -> None:
    """Raise if this process may not have `number` files open, for libraries that fail without naming the cause."""
    limit = _limit("RLIMIT_NOFILE")
    if limit is not None and limit < number:
        raise ResourceError(
            f"this process may open {limit} files at a time (ulimit -n)",
            allowed=f"This command needs at least {number}",
            do="Raise the limit to 1024 or more",
        )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it. What happened before an error for users counts only if it is its cause."""
    link: BaseException | None = error
    seen = set[int]()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if isinstance(link, HeadstartError) else link.__context__)


def _machine_code(error: BaseException) -> int | None:
    """Return the code of a fault of the machine, from the error's attribute or its message."""
    if isinstance(error, HeadstartError):
        return None
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    code = getattr(error, "errno", None)
    if isinstance(code, int) and code in _MACHINE.values():
        return code
    message = str(error)[:_MAX_MESSAGE]
    match = _CODE.search(message)
    if match is not None and int(match[1] or match[2]) in _MACHINE.values():
        return int(match[1] or match[2])
    return next((code for text, code in _MACHINE.items() if text in message), None)


def _machine_fault(code: int, path: object) -> ResourceError:
    where = f" ({path})" if path is not None else ""
    if code in _DISK_FULL:
        return ResourceError(_DISK_FULL[code] + where, allowed="Writing needs free space", do=SPACE_ADVICE)
    if code == errno.EROFS:
        return ResourceError(
            f"the file system is read-only{where}",
            allowed="A run writes to its output folder",
            do="Choose another output, or mount the file system for writing",
        )
    if code in (errno.EIO, errno.ESTALE):
        return ResourceError(
            f"the disk or the network file system failed{where}: {os.strerror(code)}",
            allowed="What was complete before stays complete",
            do=f"Check the disk and its mount; {_RERUN}",
        )
    if code in (errno.EMFILE, errno.ENFILE):
        files = _limit("RLIMIT_NOFILE") if code == errno.EMFILE else None
        limited = f": this process may open {files} at a time (ulimit -n)" if files is not None else ""
        return ResourceError(f"too many files are open{limited}", do=f"Raise the limit to 1024 or more; {_RERUN}")
    if code == errno.EAGAIN:
        advice = f"Raise the limit (ulimit -u); {_RERUN}"
        return ResourceError("the system starts no more threads or processes", do=advice)
    limit = _address_space()
    limited = f": this process may use {limit / 2**30:.1f} GB of address space (ulimit -v)" if limit is not None else ""
    advice = "Lower `training.micro_batch_size`, choose a smaller model, or use a machine with more memory"
    return ResourceError(f"the memory ran out{limited}", do=advice if limit is None else f"Raise the limit. {advice}")


def _path_fault(error: OSError) -> ResourceError | None:
    if error.errno is None or error.filename is None:
        return None
    if error.errno == errno.ENOENT:
        return ResourceError(
            f"{error.filename} does not exist, or no longer exists",
            allowed="The files of a run must not be moved or deleted while it runs",
            do=f"Check the path; {_RERUN}",
        )
    if error.errno == errno.EXDEV:
        return ResourceError(
            f"{error.filename} and {error.filename2} are on different file systems",
            allowed="An output folder must be on one file system, because files are renamed within it",
            do="Choose an output without other mounts inside it",
        )
    # A single path that exists is a file where a folder should be made.
    collides = error.errno in (errno.ENOTEMPTY, errno.EBUSY, errno.ETXTBSY)
    if collides or (error.errno == errno.EEXIST and error.filename2 is not None):
        return ResourceError(
            f"{error.filename2 or error.filename} is in use by another process ({error.strerror})",
            allowed="Only one process at a time may write to an output",
            do=f"Stop the other process; {_RERUN}",
        )
    return ResourceError(
        f"the operating system refuses access to {error.filename} ({error.strerror})",
        allowed="You need permission for the path, and every part of an output's path must be a folder",
        do="Change the permissions or choose another path",
    )


def _address_space() -> int | None:
    return _limit("RLIMIT_AS")


def _limit(name: str) -> int | None:
    """Return a limit of this process, or None if there is none."""
    if sys.platform == "win32":  # pragma: no cover - Windows has no such limits
        return None
    import resource

    limit = resource.getrlimit(getattr(resource, name))[0]
    return None if limit == resource.RLIM_INFINITY else limit
