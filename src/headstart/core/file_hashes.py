"""What identifies the content of a file: a hash of all bytes, or of a few blocks of a large file, or a version.

Reading a large file whole would take minutes. A version is known without reading anything.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

FileFacts = dict[str, Any]
"""Size and hash of a file, as the manifest of an artifact records them; of a large file also a hash of samples."""
LARGE_BYTES = 64 << 20
"""Size from which a manifest records samples of a file as well: hashing 64 MB takes about 50 ms."""
_SAMPLES, _SAMPLE_BYTES = 4, 1 << 16


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


def describe(path: Path) -> FileFacts:
    """Return what a manifest records about a file: its size, its hash and, if it is large, the hash of its samples."""
    facts: FileFacts = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    return facts | ({"samples": sampled_sha256(path)} if facts["bytes"] >= LARGE_BYTES else {})


def matches(path: Path, recorded: FileFacts, sampled: bool = False) -> bool:
    """Return True if a file has the recorded size and hash; with `sampled`, the recorded samples if there are any."""
    if path.stat().st_size != recorded["bytes"]:
        return False
    if sampled and "samples" in recorded:
        return bool(sampled_sha256(path) == recorded["samples"])
    return bool(sha256(path) == recorded["sha256"])


def sha256(path: Path) -> str:
    """Return the SHA-256 hash of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sampled_sha256(path: Path) -> str:
    """Return the SHA-256 hash of four blocks of 64 KB: the first, the last and two between them.

    It differs if a file was truncated, filled with zeros or exchanged for another, but hardly if a single byte did.
    """
    size = path.stat().st_size
    last = max(0, size - _SAMPLE_BYTES)
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        for i in range(_SAMPLES):
            digest.update(_read(file, i * last // (_SAMPLES - 1)))
    return digest.hexdigest()


def _read(file: BinaryIO | Any, start: int) -> bytes:
    file.seek(start)
    data = b""
    while len(data) < _SAMPLE_BYTES and (block := file.read(_SAMPLE_BYTES - len(data))):
        data += block
    return data
