"""Addresses such as s3://bucket/key?region=…: opened and listed by pyarrow's file systems.

As in every URL, what is not a letter may be percent-encoded and `?` begins options; `*` and `[` make it a pattern.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from headstart.core.errors import DataError, first_line

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_LOCAL = "file://"


def is_remote(path: str) -> bool:
    """Say whether a path names an object store, such as s3://bucket/key."""
    return "://" in path and not path.startswith(_LOCAL)


def local(path: str) -> str:
    """Return what a file:// address means on this machine, and any other path as it is."""
    if not path.startswith(_LOCAL):
        return path
    host, _, rest = path.removeprefix(_LOCAL).partition("?")[0].partition("/")
    if host not in ("", "localhost"):
        raise DataError(f"{path} names a file of {host!r}", allowed="file:///folder/file", do="Add the third slash")
    return "/" + unquote(rest, errors="surrogateescape")


def bare(path: str) -> str:
    """Return an address without its options, and a path as it is."""
    return path.partition("?")[0] if "://" in path else path


def split(address: str) -> tuple[str, str, str]:
    """Return store and bucket, the decoded path in it, and the options with their mark."""
    scheme, _, rest = address.partition("://")
    rest, mark, options = rest.partition("?")
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}", unquote(path), mark + options


def system_of(address: str) -> tuple[FileSystem, str]:
    """Return the file system of an address, and its key in it."""
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        return FileSystem.from_uri(_joined(*split(address)))
    except (pa.ArrowException, ValueError, ImportError, OSError) as error:
        raise DataError(
            f"{bare(address)} cannot be opened ({first_line(error)})",
            allowed="Paths, and addresses of s3, gs, abfs, hdfs, hf and file",
            do="Check the address, or fetch the files and give their folder",
        ) from error


def listed(pattern: str) -> tuple[str, list[str], bool]:
    """Return the part of a pattern that is the same for all its files, these, and whether it names a folder."""
    import pyarrow as pa
    from pyarrow.fs import FileSelector, FileType

    store, path, options = split(pattern)
    fixed, tail = _fixed(path)
    system, key = system_of(_joined(store, fixed, options))
    try:
        if not tail and system.get_file_info(key).type == FileType.File:
            return _joined(store, fixed.rpartition("/")[0], ""), [_joined(store, fixed, options)], False
        entries = system.get_file_info(FileSelector(key, recursive=True, allow_not_found=True))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{bare(pattern)} cannot be listed ({first_line(error)})", do="Check the address") from error
    inside = sorted(entry.path.removeprefix(key).strip("/") for entry in entries if entry.type == FileType.File)
    chosen = [name for name in inside if not tail or fnmatch.fnmatchcase(name, tail)]
    files = [_joined(store, f"{fixed}/{name}".strip("/"), options) for name in chosen]
    return _joined(store, fixed, ""), files, not tail


def _fixed(path: str) -> tuple[str, str]:
    """Cut a path before the first part of it that is a pattern."""
    magic = re.search(r"[*\[]", path)
    if magic is None:
        return path.strip("/"), ""
    fixed, _, begun = path[: magic.start()].rpartition("/")
    return fixed, begun + path[magic.start() :]


def _joined(store: str, path: str, options: str) -> str:
    return f"{store}/{quote(path)}".rstrip("/") + options
