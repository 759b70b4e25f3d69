"""What changes when a local file is replaced or written to, without reading it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class FileVersion(NamedTuple):
    """Size, time and inode of a local file, which has no ETag."""

    size: int
    modified_ns: int
    inode: int

    @classmethod
    def of(cls, path: str | Path) -> FileVersion:
        """Return the version of a file as it is now."""
        found = Path(path).stat()
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)
