"""URLs of files: local ones, and those of object stores, such as s3://bucket/key?region=….

As in any URL, characters may be percent-encoded and `?` starts the options; `*` and `[` make it a glob pattern. After
`#`, a URL carries the size and the ETag with which an object was listed (`stores.StoredObject`).
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import PurePath
from urllib.parse import parse_qsl, quote, unquote

from headstart.core.errors import DataError
from headstart.core.recipes.variables import hide

_LOCAL = "file://"
_SECRET = re.compile(r"sig|signature|token|secret|password|credential|access_?key|api_?key", re.IGNORECASE)
"""Names of options whose values are secret: parts of signed URLs, and keys."""


def is_remote(path: str) -> bool:
    """Return True if a path is the URL of an object store, such as s3://bucket/key."""
    return "://" in path and not path.startswith(_LOCAL)


def restored(path: PurePath) -> str:
    """Return the URL that was made into a `Path`, which has one slash after the scheme; any other path as it is."""
    return re.sub(r"^([a-z][a-z0-9+.-]+):/(?!/)", r"\1://", str(path))


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
    """Return a URL as messages show it, without its options; a path is returned unchanged."""
    return path.partition("#")[0].partition("?")[0] if "://" in path else path


def split_url(url: str) -> tuple[str, str, str]:
    """Return the store with its bucket, the decoded path inside it, and the options including `?`."""
    scheme, _, rest = url.partition("#")[0].partition("://")
    rest, mark, options = rest.partition("?")
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}", unquote(path), mark + options


def join_url(store: str, path: str, options: str) -> str:
    """Return the URL of a decoded path inside a store."""
    return f"{store}/{quote(path, safe='/@')}".rstrip("/") + options


def split_at_wildcard(path: str) -> tuple[str, str]:
    """Split a path before its first component that contains a wildcard."""
    wildcard = re.search(r"[*\[]", path)
    if wildcard is None:
        return path.strip("/"), ""
    prefix, _, start = path[: wildcard.start()].rpartition("/")
    return prefix, start + path[wildcard.start() :]


def matches(name: str, pattern: str) -> bool:
    """Return True if a path matches a glob pattern, as in the file system: only `**` crosses a slash."""
    return _match(name.split("/"), pattern.split("/"))


def require_no_secret(url: str) -> None:
    """Raise if a URL contains credentials, which would be written beside the output; values of variables are not."""
    rest = hide(url).partition("://")[2].partition("#")[0]
    host = rest.partition("?")[0].partition("/")[0]
    secret = next((name for name, value in parse_qsl(rest.partition("?")[2]) if _is_secret(name, value)), None)
    if url.startswith(("abfs://", "abfss://")) and ":" not in host:
        host = ""  # The container is written before the account: abfs://container@account…
    if secret is not None or "@" in host:
        where = f"its option {secret!r}" if secret is not None else "front of its host"
        scheme, file = url.partition("://")[0], without_options(url).rpartition("/")[2]
        raise DataError(
            f"the URL {scheme}://…/{file} has credentials in {where}",
            allowed="A recipe is saved beside its output, so it must not contain secrets",
            do="Set them where the store's own client reads them (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3), "
            "or write a signed URL as a variable: ${NAME}",
        )


def _is_secret(name: str, value: str) -> bool:
    return _SECRET.search(name) is not None and not value.startswith("${")


def _match(names: list[str], patterns: list[str]) -> bool:
    if not patterns or not names:
        return names == patterns or (not names and patterns == ["**"])
    if patterns[0] == "**":
        return _match(names, patterns[1:]) or (not _is_hidden(names[0]) and _match(names[1:], patterns))
    if _is_hidden(names[0]) and not _is_hidden(patterns[0]):
        return False
    return fnmatchcase(names[0], patterns[0]) and _match(names[1:], patterns[1:])


def _is_hidden(name: str) -> bool:
    return name.startswith(".")
