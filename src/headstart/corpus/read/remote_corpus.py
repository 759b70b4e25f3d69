"""A finished corpus in a store: its tokens are read in blocks, and the files beside them are copied once.

The manifest (headstart.json) names the files of a corpus, so that a web server, which lists nothing, can have one too.
Copied are the tokenizer and the small files of the shards, each held against its hash in the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from headstart.core import artifact, file_hashes
from headstart.core.errors import ArtifactError, DataError
from headstart.core.lock import lock_beside
from headstart.corpus.read import blocks, stores, urls
from headstart.corpus.read.blocks import BlockCache, RemoteArray
from headstart.corpus.read.store_folder import download
from headstart.corpus.read.stores import StoredObject

_TOKENS = re.compile(r"shards/[^/]+/tokens-[0-9]+\.bin")
_COPIED = ("tokenizer", "shards")


@dataclass
class RemoteCorpus:
    """A corpus of a store, as its manifest was when it was opened."""

    url: str
    """With the commit, on the Hub."""
    folder: Path
    """The local copy of everything that pre-training reads but the tokens."""
    manifest: dict[str, Any]
    _cache: BlockCache | None = None

    @cached_property
    def objects(self) -> dict[str, StoredObject]:
        """The token files by name, listed once and pinned."""
        names = sorted(name for name in self.manifest["files"] if _TOKENS.fullmatch(name))
        objects = {name: _stat(_inside(self.url, name)) for name in names}
        for name, stored in objects.items():
            expected = self.manifest["files"][name]["bytes"]
            if stored.size != expected:
                raise DataError(
                    f"{urls.without_options(stored.url)} has {stored.size:,} bytes; the manifest of its corpus records "
                    f"{expected:,}",
                    allowed="A corpus is read as it was built",
                    do="Upload the corpus again, whole",
                )
        return objects

    @property
    def absent(self) -> list[str]:
        """Return the files of the corpus that are not copied."""
        return [name for name in self.manifest["files"] if not _is_copied(name)]

    def identity(self) -> str:
        """Return a hash of the versions of the token files."""
        lines = [f"{name}:{stored.version.etag}" for name, stored in self.objects.items()]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def opener(
        self, split: str, limit_bytes: int, stretch_bytes: int = 0
    ) -> Callable[[str, np.dtype[Any], int], RemoteArray]:
        """Return a function that opens a tokens file of a split; all of them share one cache of `limit_bytes`.

        `stretch_bytes` is the length of the stretches in which tokens are read, 0 if in any order.
        """
        names = list(self.objects)
        cache = self._cache or BlockCache(list(self.objects.values()), limit_bytes, self.folder.parent, stretch_bytes)
        self._cache = cache

        def open_tokens(name: str, dtype: np.dtype[Any], length: int) -> RemoteArray:
            stored = self.objects[f"shards/{split}/{name}"]
            if stored.size != length * dtype.itemsize:
                raise ValueError(f"{name} has {stored.size} bytes, expected {length * dtype.itemsize}")
            return RemoteArray(cache, names.index(f"shards/{split}/{name}"), dtype)

        return open_tokens


def open_corpus(url: str) -> RemoteCorpus:
    """Read the manifest of a corpus and copy its small files to the cache folder, unless they are there."""
    shown = urls.without_options(url)
    stored = _stat(_inside(url, artifact.MANIFEST))
    with stores.opened(str(stored)) as file:
        content = file.read()
    try:
        manifest = json.loads(content)
        names = list(manifest["files"])
        has_tokens = manifest["kind"] == "corpus" and manifest["recipe"].get("tokenizer") is not None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"{shown}/{artifact.MANIFEST} is not the manifest of a corpus", do="Check corpus.from"
        ) from error
    if not has_tokens:
        raise ArtifactError(
            f"{shown} is a {manifest['kind']} without token shards",
            allowed="In a store, corpus.from is a corpus that `headstart corpus build` finished with a tokenizer",
            do=f"Build it with one, or read its text: `corpus.files: {shown}/documents/*/*.parquet`",
        )
    outside = next((name for name in names if not _is_inside(name)), None)
    if outside is not None:
        raise ArtifactError(f"the manifest of {shown} names {outside!r}, which is outside of the corpus")
    # On the Hub, the URL of the object has the commit; all files are read at that one.
    pinned = stored.url.replace(f"/{artifact.MANIFEST}", "")
    name = hashlib.sha256(pinned.encode() + b"\n" + content).hexdigest()[:16]
    target = blocks.cache_folder() / "corpora" / name
    if not artifact.is_complete(target):
        with lock_beside(target):
            if not artifact.is_complete(target):
                _copy(pinned, manifest, content, target)
    return RemoteCorpus(pinned, target, manifest)


def _copy(url: str, manifest: dict[str, Any], content: bytes, target: Path) -> None:
    """Copy the small files of a corpus, and its manifest last."""
    staging = target.with_name(f".{target.name}.staging")
    shutil.rmtree(staging, ignore_errors=True)
    for name, facts in manifest["files"].items():
        if not _is_copied(name):
            continue
        path = staging / name
        download(_stat(_inside(url, name)), path)
        if not file_hashes.matches(path, facts):
            raise ArtifactError(
                f"{urls.without_options(_inside(url, name))} is not the file that the manifest of its corpus records "
                "(its hash differs)",
                do="Upload the corpus again, whole",
            )
    (staging / artifact.MANIFEST).write_bytes(content)
    os.rename(staging, target)


def _stat(url: str) -> StoredObject:
    """Return an object as it is now."""
    listing = stores.list_objects(url)
    if len(listing.objects) != 1 or listing.is_folder:
        raise DataError(
            f"{urls.without_options(url)} does not exist", do="Check the URL, and whether the upload is complete"
        )
    return listing.objects[0]


def _inside(url: str, name: str) -> str:
    store, path, options = urls.split_url(url)
    return urls.join_url(store, f"{path.rstrip('/')}/{name}", options)


def _is_copied(name: str) -> bool:
    return name.split("/", maxsplit=1)[0] in _COPIED and _TOKENS.fullmatch(name) is None


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts
