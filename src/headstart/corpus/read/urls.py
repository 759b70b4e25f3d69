"""URLs of object stores, such as s3://bucket/key?region=…, opened and listed with pyarrow's file systems.

As in any URL, characters may be percent-encoded and `?` starts the options; `*` and `[` make it a glob pattern.
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
    """Return True if a path is the URL of an object store, such as s3://bucket/key."""
    return "://" in path and not path.startswith(_LOCAL)


def local_path(path: str) -> str:
    """Return the path that a file:// URL points to; any other path is returned unchanged."""
    if not path.startswith(_LOCAL):
        return path
    host, _, rest = path.removeprefix(_LOCAL).partition("?")[0].partition("/")
    if host not in ("", "localhost"):
        raise DataError(
            f"{path} points to a file on the host {host!r}",
            allowed="A local file is written file:///folder/file",
            do="Add the third slash",
        )
    return "/" + unquote(rest, errors="surrogateescape")


def without_options(path: str) -> str:
    """Return a URL without its options; a path is returned unchanged."""
    return path.partition("?")[0] if "://" in path else path


def split_url(url: str) -> tuple[str, str, str]:
    """Return the store with its bucket, the decoded path inside it, and the options including `?`."""
    scheme, _, rest = url.partition("://")
    rest, mark, options = rest.partition("?")
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}", unquote(path), mark + options


def file_system(url: str) -> tuple[FileSystem, str]:
    """Return the file system of a URL, and the path inside it."""
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        return FileSystem.from_uri(_join_url(*split_url(url)))
    except (pa.ArrowException, ValueError, ImportError, OSError) as error:
        raise DataError(
            f"{without_options(url)} cannot be opened ({first_line(error)})",
            allowed="Supported: paths, and URLs of s3, gs, abfs, hdfs, hf and file",
            do="Check the URL, or download the files and give their folder",
        ) from error


def list_files(pattern: str) -> tuple[str, list[str], bool]:
    """Return the fixed prefix of a URL pattern, the files that match it, and True if it names a folder."""
    import pyarrow as pa
    from pyarrow.fs import FileSelector, FileType

    store, path, options = split_url(pattern)
    prefix, tail = _split_at_wildcard(path)
    system, key = file_system(_join_url(store, prefix, options))
    try:
        if not tail and system.get_file_info(key).type == FileType.File:
            return _join_url(store, prefix.rpartition("/")[0], ""), [_join_url(store, prefix, options)], False
        entries = system.get_file_info(FileSelector(key, recursive=True, allow_not_found=True))
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{without_options(pattern)} cannot be listed ({first_line(error)})", do="Check the URL"
        ) from error
    names = sorted(entry.path.removeprefix(key).strip("/") for entry in entries if entry.type == FileType.File)
    matching = [name for name in names if not tail or fnmatch.fnmatchcase(name, tail)]
    files = [_join_url(store, f"{prefix}/{name}".strip("/"), options) for name in matching]
    return _join_url(store, prefix, ""), files, not tail


def _split_at_wildcard(path: str) -> tuple[str, str]:
    """Split a path before its first component that contains a wildcard."""
    wildcard = re.search(r"[*\[]", path)
    if wildcard is None:
        return path.strip("/"), ""
    prefix, _, start = path[: wildcard.start()].rpartition("/")
    return prefix, start + path[wildcard.start() :]


def _join_url(store: str, path: str, options: str) -> str:
    return f"{store}/{quote(path)}".rstrip("/") + options
