"""A folder in an object store that is written to: files are uploaded whole, and read as they were listed."""

from __future__ import annotations

from pathlib import Path

from headstart.corpus.read import attempts, stores, urls
from headstart.corpus.read.clients.fsspec_store import FsspecStore
from headstart.corpus.read.stores import StoredObject


class StoreFolder:
    """A folder in a store, with the names of files relative to it. Every request is repeated while it fails."""

    def __init__(self, url: str) -> None:
        """Make the client; nothing is requested yet."""
        urls.require_no_secret(url)
        self._store_url, path, self._options = urls.split_url(url)
        self._path, self.shown = path.strip("/"), urls.without_options(url).rstrip("/")
        self._store = FsspecStore(self._store_url, self._options, self.shown)

    def subfolder(self, name: str) -> StoreFolder:
        """Return a folder in this one."""
        return StoreFolder(self.url_of(name))

    def url_of(self, name: str) -> str:
        """Return the URL of a file or folder in this one."""
        return urls.join_url(self._store_url, self._key(name), self._options)

    def files(self) -> dict[str, StoredObject]:
        """Return the files of the folder and its subfolders by name, as they are now."""
        listed = attempts.retried(self.shown, lambda: self._store.listing(self._path))
        return {
            key.removeprefix(f"{self._path}/"): StoredObject(
                urls.join_url(self._store_url, key, self._options), version
            )
            for key, version in listed
        }

    def upload(self, source: Path, name: str) -> None:
        """Upload a local file and check that it has arrived whole."""
        key, shown = self._key(name), f"{self.shown}/{name}"

        def put() -> None:
            self._store.write(key, source)
            found, size = self._store.stat(key), source.stat().st_size
            if found is None or found.size != size:
                raise EOFError(f"{found.size if found else 0:,} of {size:,} bytes arrived")

        attempts.retried(shown, put, "write")

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        key = self._key(name)
        attempts.retried(f"{self.shown}/{name}", lambda: self._store.remove(key), "write")

    def _key(self, name: str) -> str:
        return f"{self._path}/{name}".lstrip("/")


def download(stored: StoredObject, path: Path) -> None:
    """Copy an object to a local file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with stores.opened(str(stored)) as source, path.open("wb") as file:
        while piece := source.read(stores.BLOCK_BYTES):
            file.write(piece)
