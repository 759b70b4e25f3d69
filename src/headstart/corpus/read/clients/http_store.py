"""Files on a web server, read by range with the standard library."""

from __future__ import annotations

import re
from email.message import Message
from http.client import HTTPResponse
from typing import cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from headstart.core.errors import DataError
from headstart.corpus.read import urls
from headstart.corpus.read.attempts import Replaced, Version, difference

_TIMEOUT_SECONDS = 60
_RANGE = re.compile(r"bytes (?:([0-9]+)-([0-9]+)|\*)/([0-9]+)")
_PARTIAL, _NO_SUCH_RANGE = 206, 416
_GONE, _DENIED, _OTHER_VERSION = (404, 410), (401, 403, 407), (412, _NO_SUCH_RANGE)
_TRANSIENT = (408, 425, 429)
_SERVER_ERROR = 500


class HttpStore:
    """One web server. Each response is held against the ETag, or the date of modification, with which a file began."""

    checks_ranges = True

    def __init__(self, store_url: str, options: str) -> None:
        """Set the address; nothing is requested yet."""
        self._url, self._options = store_url, options

    def resolve(self, path: str) -> str:
        """Return the path: a web server has no versions."""
        return path

    def stat(self, path: str) -> Version | None:
        """Return the size and ETag of a file, from a request for its first byte."""
        try:
            with self._get(path, {"Range": "bytes=0-0"}) as response:
                return self._version(path, response.status, response.headers)
        except FileNotFoundError:
            return None
        except HTTPError as error:
            if error.code == _NO_SUCH_RANGE:  # An empty file has no first byte.
                return self._version(path, _PARTIAL, error.headers)
            raise

    def listing(self, folder: str) -> list[tuple[str, Version]]:
        """Raise: a web server does not list its files."""
        raise DataError(
            f"there is no file {self._shown(folder)}, or its URL has a wildcard",
            allowed="A web server does not list its files, so each file is given by its own URL",
            do="Check the URLs",
        )

    def read(self, path: str, version: Version, start: int, stop: int) -> bytes:
        """Return a range of a file; raises `Replaced` if the server has another version."""
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        if version.etag.startswith('"'):
            headers["If-Match"] = version.etag
        try:
            with self._get(path, headers) as response:
                found = self._version(path, response.status, response.headers)
                if found != version:
                    raise Replaced(difference(version, found))
                first = _RANGE.fullmatch(response.headers["Content-Range"])
                if first is None or first[1] is None or int(first[1]) != start:
                    raise EOFError(f"the server sent {response.headers['Content-Range']}")
                return response.read()
        except HTTPError as error:
            if error.code in _OTHER_VERSION:
                raise Replaced(f"the server answers {error.code} {error.reason}") from error
            raise

    def close(self) -> None:
        """Do nothing: each request has its own connection."""

    def _get(self, path: str, headers: dict[str, str]) -> HTTPResponse:
        url = urls.join_url(self._url, path, self._options)
        fixed = {"Accept-Encoding": "identity", "User-Agent": "headstart"}
        try:
            return cast(HTTPResponse, urlopen(Request(url, headers=fixed | headers), timeout=_TIMEOUT_SECONDS))
        except HTTPError as error:
            error.close()
            if error.code in _GONE:
                raise FileNotFoundError(error.reason) from error
            if error.code in _DENIED:
                raise PermissionError(f"{error.code} {error.reason}") from error
            if error.code in (*_OTHER_VERSION, *_TRANSIENT) or error.code >= _SERVER_ERROR:
                raise
            raise DataError(
                f"{self._shown(path)} cannot be read: the server answers {error.code} {error.reason}",
                do="Check the URL",
            ) from error

    def _version(self, path: str, status: int, headers: Message) -> Version:
        stated = _RANGE.fullmatch(headers.get("Content-Range", ""))
        if status != _PARTIAL or stated is None:
            raise DataError(
                f"{self._shown(path)} cannot be read by range: the server answers {status} without a range",
                allowed="Files are read in ranges of bytes, so that a failure repeats one range and not the file",
                do="Use another server, or download the file and give its path",
            )
        return Version(int(stated[3]), headers.get("ETag") or headers.get("Last-Modified") or "")

    def _shown(self, path: str) -> str:
        return urls.join_url(self._url, path, "")
