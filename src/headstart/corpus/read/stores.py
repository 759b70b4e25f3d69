"""Where the bytes of remote files come from: objects are listed once, pinned by size and ETag, and read by range.

    list_objects ─ StoredObject ─ opened ─ blocks, each retried and held against the pin ─ a seekable file

A file is therefore read as it was listed, whole, or an error names it. Files on web servers are read with the standard
library (`http_store`), other stores with the packages of the extra `stores` (`fsspec_store`). Credentials are those of
the store's own client, and never part of a URL.
"""

from __future__ import annotations

import io
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast
from urllib.parse import quote, unquote

from headstart.core.errors import DataError
from headstart.corpus.read import attempts, urls
from headstart.corpus.read.attempts import Version
from headstart.corpus.read.clients.fsspec_store import FsspecStore
from headstart.corpus.read.clients.http_store import HttpStore

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK_BYTES, _KEPT_BLOCKS = 4 << 20, 4
_PIN = re.compile(r"#size=([0-9]+)&etag=([^#&]*)\Z")


class Store(Protocol):
    """One bucket or server.

    Its methods raise FileNotFoundError, PermissionError, `Replaced` or a HeadstartError for what another attempt does
    not change. Any other exception counts as transient.
    """

    checks_ranges: bool
    """The store refuses a range of an object that is not the pinned one."""

    def resolve(self, path: str) -> str:
        """Return a path with the version of its folder, in stores that have versions of whole folders."""

    def stat(self, path: str) -> Version | None:
        """Return the version of an object, or None if there is no such object."""

    def listing(self, folder: str) -> list[tuple[str, Version]]:
        """Return the path and the version of each object in a folder and its subfolders."""

    def read(self, path: str, version: Version, start: int, stop: int) -> bytes:
        """Return a range of the bytes of an object."""

    def close(self) -> None:
        """Close connections."""


@dataclass(frozen=True)
class StoredObject:
    """An object as it was listed. As text, it is a URL with size and ETag, by which other processes can open it."""

    url: str
    version: Version

    @classmethod
    def parse(cls, text: str) -> StoredObject:
        """Return the object that `str` wrote."""
        pin = _PIN.search(text)
        if pin is None:
            raise ValueError(f"{urls.without_options(text)} has no size and ETag")
        return cls(text[: pin.start()], Version(int(pin[1]), unquote(pin[2])))

    def __str__(self) -> str:
        return f"{self.url}#size={self.version.size}&etag={quote(self.version.etag, safe='')}"

    @property
    def name(self) -> str:
        """The last component of its path."""
        return PurePosixPath(urls.split_url(self.url)[1]).name

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.version.size

    def identity(self) -> dict[str, Any]:
        """Return size and ETag as plain JSON types."""
        return {"bytes": self.version.size, "etag": self.version.etag}


@dataclass(frozen=True)
class Listing:
    """The objects that a pattern matches."""

    root: str
    """The fixed prefix of the pattern."""
    objects: list[StoredObject]
    is_folder: bool
    """The pattern names a folder, and the objects are all that are in it."""


def list_objects(pattern: str) -> Listing:
    """List the objects that a URL, or a glob pattern of a URL, matches."""
    shown = urls.without_options(pattern)
    store_url, path, options = urls.split_url(pattern)
    if _PIN.search(pattern) is not None:
        return Listing(urls.join_url(store_url, path.rpartition("/")[0], ""), [StoredObject.parse(pattern)], False)
    urls.require_no_secret(pattern)
    if "#" in pattern:
        raise DataError(f"the URL {shown} contains a #", allowed="In a URL, # is written %23", do="Write %23")
    prefix, tail = urls.split_at_wildcard(path)
    store = _store_of(store_url, options, shown)

    def stored(key: str, version: Version) -> StoredObject:
        return StoredObject(urls.join_url(store_url, key, options), version)

    try:
        prefix = attempts.retried(shown, lambda: store.resolve(prefix))
        found = None if tail else attempts.retried(shown, lambda: store.stat(prefix))
        if found is not None:
            parent = urls.join_url(store_url, prefix.rpartition("/")[0], "")
            return Listing(parent, [stored(prefix, found)], False)
        entries = attempts.retried(shown, lambda: store.listing(prefix))
    finally:
        store.close()
    objects = [
        stored(key, version)
        for key, version in sorted(entries)
        if not tail or urls.matches(key.removeprefix(prefix).strip("/"), tail)
    ]
    return Listing(urls.join_url(store_url, prefix, ""), objects, not tail)


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open an object as a seekable file; when the block ends, the object must still be the pinned one.

    A block that ends with an exception, or in a generator that is abandoned, does not check.
    """
    with _ObjectFile(StoredObject.parse(path)) as file:
        yield cast(BinaryIO, file)
        file.reader.verify()


def _store_of(store_url: str, options: str, shown: str) -> Store:
    scheme = store_url.partition("://")[0]
    if scheme in ("http", "https"):
        return HttpStore(store_url, options)
    return FsspecStore(store_url, options, shown)


class ObjectReader:
    """Reads ranges of one object: each is repeated while it fails, and held against the pin."""

    def __init__(self, stored: StoredObject) -> None:
        """Make the client of the store; nothing is requested yet."""
        store_url, self._path, options = urls.split_url(stored.url)
        self._shown, self._version = urls.without_options(stored.url), stored.version
        self._store = _store_of(store_url, options, self._shown)

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes in [start, stop), all of them."""

        def fetch() -> bytes:
            fetched = self._store.read(self._path, self._version, start, stop)
            if len(fetched) != stop - start:
                raise EOFError(f"{len(fetched):,} of {stop - start:,} bytes arrived")
            return fetched

        return attempts.retried(f"the range {start}-{stop - 1} of {self._shown}", fetch)

    def verify(self) -> None:
        """Raise if the object was replaced, unless every range was held against the pin already."""
        if not self._store.checks_ranges:
            found = attempts.retried(self._shown, lambda: self._store.stat(self._path))
            if found != self._version:
                raise attempts.replaced(self._shown, attempts.difference(self._version, found))

    def close(self) -> None:
        """Close connections."""
        self._store.close()


class _ObjectFile(io.RawIOBase):
    """The bytes of an object, fetched in blocks of which the last few are kept."""

    def __init__(self, stored: StoredObject) -> None:
        self.reader, self._size = ObjectReader(stored), stored.size
        self._position = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view) and self._position < self._size:
            number, start = divmod(self._position, BLOCK_BYTES)
            piece = self._block(number)[start : start + len(view) - done]
            view[done : done + len(piece)] = piece
            done, self._position = done + len(piece), self._position + len(piece)
        return done

    def close(self) -> None:
        if not self.closed:
            self._blocks.clear()
            self.reader.close()
        super().close()

    def _block(self, number: int) -> bytes:
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        start = number * BLOCK_BYTES
        self._blocks[number] = self.reader.read(start, min(start + BLOCK_BYTES, self._size))
        if len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return self._blocks[number]
