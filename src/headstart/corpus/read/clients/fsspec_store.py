"""Object stores and hubs through fsspec: S3 (s3fs), Google Cloud (gcsfs), Azure (adlfs), Hugging Face, HDFS."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from headstart.core.errors import DataError, ResourceError, first_line
from headstart.core.extras import install_command
from headstart.corpus.read.attempts import Replaced, Version, difference

SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "hf", "hdfs")
WRITABLE = ("s3", "gs", "gcs", "az", "abfs", "abfss")
"""Stores to which checkpoints can be uploaded."""
_ETAGS = ("ETag", "etag", "blob_id", "xet_hash", "generation", "LastModified", "last_modified", "mtime")
"""Where the stores' clients describe the version of an object, the best first."""
_environment_of: dict[Any, dict[str, str]] = {}
"""The environment that the clients of a class were made in."""
_S3_OPTIONS = ("anonymous", "endpoint_override", "region")


class FsspecStore:
    """One bucket, container or repository, behind the fsspec client of its kind."""

    def __init__(self, store_url: str, options: str, shown: str) -> None:
        """Make the client; `shown` is the URL in messages."""
        scheme = store_url.partition("://")[0]
        kind = _client_class(scheme, shown)
        self._is_hub, self._store_url = scheme == "hf", store_url
        self._kind, settings = kind, _settings(scheme, options, shown)
        try:
            _forget_clients_of_another_environment(kind)
            self._system = kind(**kind._get_kwargs_from_urls(store_url), **settings)
        except Exception as error:
            raise DataError(
                f"{shown} cannot be opened ({first_line(error)})", do="Check the URL and the settings of its store"
            ) from error
        self._root = str(kind._strip_protocol(f"{store_url}/"))
        self._file: Any = None
        # s3fs sends the ETag with each range; a commit of the Hub never changes.
        self.checks_ranges = scheme in ("s3", "hf")

    def resolve(self, path: str) -> str:
        """Return a path of the Hugging Face Hub with the commit of its revision; other stores have none."""
        if not self._is_hub:
            return path
        from huggingface_hub import HfApi, constants

        resolved = self._system.resolve_path(self._full(path))
        if not hasattr(resolved, "repo_id"):
            return path
        info = HfApi().repo_info(resolved.repo_id, repo_type=resolved.repo_type, revision=resolved.revision)
        root = f"{constants.REPO_TYPES_URL_PREFIXES.get(resolved.repo_type, '')}{resolved.repo_id}@{info.sha}"
        return f"{root}/{resolved.path_in_repo}".removeprefix(f"{self._root}/").rstrip("/")

    def stat(self, path: str) -> Version | None:
        """Return size and ETag of an object, as the store has them now."""
        try:
            info = self._system.info(self._full(path))
        except FileNotFoundError:
            return None
        return _version(info) if info["type"] == "file" else None

    def listing(self, folder: str) -> list[tuple[str, Version]]:
        """List a folder and its subfolders; objects that only mark a folder are left out."""
        found: Mapping[str, Mapping[str, Any]] = self._system.find(self._full(folder), detail=True)
        return [
            (name.removeprefix(self._root).strip("/"), _version(info))
            for name, info in found.items()
            if info["type"] == "file" and not name.endswith("/")
        ]

    def read(self, path: str, version: Version, start: int, stop: int) -> bytes:
        """Return a range of an object; raises `Replaced` if the store has another version."""
        try:
            if self._file is None:
                self._file = self._system.open(self._full(path), "rb", cache_type="none")
                found = _version(self._file.details)
                if found != version:
                    raise Replaced(difference(version, found))
            self._file.seek(start)
            fetched: bytes = self._file.read(stop - start)
        except BaseException:
            # The next attempt looks at the object again.
            self.close()
            raise
        return fetched

    def write(self, path: str, source: Path) -> None:
        """Upload a local file; other clients see the whole object or none."""
        self._system.put_file(str(source), self._full(path))

    def remove(self, path: str) -> None:
        """Remove an object, if there is one."""
        with suppress(FileNotFoundError):
            self._system.rm_file(self._full(path))

    def close(self) -> None:
        """Close the file of the last range."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _full(self, path: str) -> str:
        return str(self._kind._strip_protocol(f"{self._store_url}/{path}"))


def _client_class(scheme: str, shown: str) -> Any:
    if scheme not in SCHEMES:
        raise DataError(
            f"{shown} is not the URL of a store that can be read",
            allowed=f"Supported: paths, and URLs of http, https, {', '.join(SCHEMES)} and file",
            do="Check the URL, or download the files and give their folder",
        )
    try:
        from fsspec import get_filesystem_class

        return get_filesystem_class(scheme)
    except ImportError as error:
        raise ResourceError(
            f"reading {shown} needs a package that is not installed ({first_line(error)})", do=install_command("stores")
        ) from error


def _forget_clients_of_another_environment(kind: Any) -> None:
    """Make fsspec build a new client where a variable changed: it keeps clients with the address and keys they read."""
    if _environment_of.get(kind) != dict(os.environ):
        kind.clear_instance_cache()
        _environment_of[kind] = dict(os.environ)


def _settings(scheme: str, options: str, shown: str) -> dict[str, Any]:
    """Return the settings of a client from the options of a URL."""
    given = dict(parse_qsl(options.removeprefix("?"), keep_blank_values=True))
    allowed = _S3_OPTIONS if scheme == "s3" else ()
    unknown = next((name for name in given if name not in allowed), None)
    if unknown is not None:
        raise DataError(
            f"the URL {shown} has the option {unknown!r}",
            allowed=f"Options of {scheme} URLs: {', '.join(allowed) or 'none'}",
            do="Remove it, or configure the store's client by its environment variables",
        )
    # A listing that a client kept would hide that an object was replaced; a commit of the Hub never changes.
    settings: dict[str, Any] = {} if scheme == "hf" else {"use_listings_cache": False}
    if scheme == "s3":
        # Failures are repeated in one place, `stores.retried`.
        settings["config_kwargs"] = {"retries": {"total_max_attempts": 1}}
        settings["anon"] = given.get("anonymous", "").lower() == "true"
        settings["client_kwargs"] = {"region_name": given["region"]} if "region" in given else {}
        if "endpoint_override" in given:
            endpoint = given["endpoint_override"]
            settings["endpoint_url"] = endpoint if "://" in endpoint else f"https://{endpoint}"
    return settings


def _version(info: Mapping[str, Any]) -> Version:
    etag = next((str(info[key]) for key in _ETAGS if info.get(key) is not None), "")
    return Version(int(info["size"]), etag.strip('"'))
