"""A corpus that `headstart corpus build` finished, as the input of pre-training.

It has its cleaned text, already split, in documents/{train,validation}/part-*.parquet. If its recipe has a tokenizer
section, it also has the tokenizer in tokenizer/ and the token shards in shards/{train,validation}/. Such a corpus may
be in a store, where its tokens are read in blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
from pydantic import Field, PrivateAttr, SerializerFunctionWrapHandler, field_validator, model_serializer

from headstart.core import artifact
from headstart.core.config import Section
from headstart.core.data import Document
from headstart.core.errors import ArtifactError, DataError
from headstart.corpus.read import blocks, urls
from headstart.corpus.read.readers import LANGUAGE, SPLITS, Receipt, count_text_bytes
from headstart.corpus.read.remote_corpus import RemoteCorpus, open_corpus

_TEXT, _TOKENS = ("documents",), ("tokenizer", "shards")
"""The folders of a corpus that pre-training reads."""
WHOLE_BYTES = 4 << 30
"""Bytes that are hashed whole when a run starts, in a few seconds; above, samples of the large files are."""


class BuiltCorpus(Section):
    """A finished corpus: its token shards and tokenizer if it has them, its cleaned text otherwise."""

    newer: ClassVar[tuple[str, ...]] = ("language",)

    location: str = Field(alias="from", description="folder or URL of a corpus that `headstart corpus build` finished")
    prepared: Path | None = Field(None, description="folder for a tokenizer and shards that several runs share")
    language: str | None = LANGUAGE
    _remote: RemoteCorpus | None = PrivateAttr(default=None)
    """The corpus of a store, opened once."""

    @field_validator("location", mode="before")
    @classmethod
    def _one_spelling(cls, value: Any) -> Any:
        """Write a path as `Path` does; of a URL, whose options may be URLs too, only a slash at the end is removed."""
        if isinstance(value, PurePath):
            value = urls.restored(value)
        if not isinstance(value, str):
            return value
        if not urls.is_remote(value):
            return str(Path(value))
        return value if "?" in value else value.rstrip("/")

    @model_serializer(mode="wrap")
    def _by_alias(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write `location` as `from`, the key of the recipe."""
        return {"from" if key == "location" else key: value for key, value in handler(self).items()}

    @property
    def folder(self) -> Path:
        """Return the folder of a corpus that is not in a store."""
        return Path(self.location)

    @property
    def is_remote(self) -> bool:
        """True if the corpus is in a store."""
        return urls.is_remote(self.location)

    @property
    def local(self) -> Path:
        """Return the folder of the corpus; of one in a store, that of the local copy of all files but the tokens."""
        return self._opened().folder if self.is_remote else self.folder

    @property
    def tokenizer(self) -> Path | None:
        """Return the folder of the corpus's tokenizer, or None if the corpus is text only."""
        return self.local / "tokenizer" if self.manifest()["recipe"].get("tokenizer") is not None else None

    def shards(self, split: str) -> Path:
        """Return the folder of the token shards of a split."""
        self._require_split(split, self.manifest()["facts"]["shards"])
        return self.local / "shards" / split

    def open_tokens(self, split: str, corpora: int = 1, stretch: int = 0) -> Callable[..., Any] | None:
        """Return a function that opens the token files of a split, or None if they are in its folder.

        `corpora` is the number of corpora that share the local cache, and `stretch` the number of consecutive tokens
        that are read together, 0 if in any order.
        """
        if not self.is_remote:
            return None
        item = np.dtype(self.manifest()["facts"]["shards"][split]["dtype"]).itemsize if stretch else 0
        return self._opened().opener(split, blocks.cache_bytes() // corpora, stretch * item)

    def shards_identity(self, split: str) -> str:
        """Return the content hash of the token shards of a split."""
        prefix = f"shards/{split}/"
        files = {name: facts for name, facts in self.manifest()["files"].items() if name.startswith(prefix)}
        return artifact.content_hash({"files": {name.removeprefix(prefix): facts for name, facts in files.items()}})

    def manifest(self) -> dict[str, Any]:
        """Return the manifest; raises if the folder is not a finished corpus."""
        return _read_manifest(self.local)

    def verify(self) -> None:
        """Check the manifest against its seal, and the files that pre-training reads against the manifest.

        Of a corpus above `WHOLE_BYTES`, samples of the large files are hashed; `headstart corpus verify` hashes all.
        The tokens of a corpus in a store are held against their size and ETag when they are read.
        """
        read = _TEXT if self.tokenizer is None else _TOKENS
        others = [name for name in self.manifest()["files"] if name.split("/")[0] not in read]
        absent = self._opened().absent if self.is_remote else ()
        artifact.verify(self.local, "corpus", trusted=others, absent=absent, whole_bytes=WHOLE_BYTES)

    def parents(self) -> dict[str, str]:
        """Return the hashes of the corpus and of its datasheet."""
        datasheet = self.manifest()["files"]["DATASHEET.md"]["sha256"]
        return {"corpus": artifact.identity(self.local), "datasheet": datasheet}

    def split_documents(self, receipt: Receipt) -> Iterator[tuple[str, Document]]:
        """Yield the documents with the split that the corpus assigned, in the order of its parts."""
        for split in SPLITS:
            paths = self._documents(split)
            self._require_split(split, [split] if paths else [])
            for path in paths:
                with pq.ParquetFile(path) as file:
                    for group in range(file.num_row_groups):
                        table = file.read_row_group(group, columns=["id", "text"])
                        for document_id, text in zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True):
                            receipt.rows += 1
                            document = Document(document_id, text)
                            if receipt.add(document):
                                yield split, document
        receipt.check()

    def sources(self) -> list[dict[str, Any]]:
        """Describe the text and tokens of the corpus by name, size and hash; answers in its datasheet do not count."""
        files = self.manifest()["files"]
        content = {name: files[name] for name in sorted(files) if name.split("/")[0] in (*_TEXT, *_TOKENS)}
        lines = "\n".join(f"{name}:{facts['sha256']}" for name, facts in content.items())
        size = sum(facts["bytes"] for facts in content.values())
        # Options of a URL, which may have slashes, are a part of the name.
        address, mark, options = self.location.partition("?") if self.is_remote else (self.location, "", "")
        name = f"{PurePath(address).name}{mark}{options}"
        described = {"name": name, "bytes": size, "sha256": hashlib.sha256(lines.encode()).hexdigest()}
        return [described | ({"etag": self._opened().identity()} if self.is_remote else {})]

    def text_bytes(self) -> int:
        """Return the size of the uncompressed text."""
        return count_text_bytes([path for split in SPLITS for path in self._documents(split)], "text")

    def token_count(self) -> int | None:
        """Return the number of training tokens, or None if the corpus is text only."""
        shards = self.manifest()["facts"]["shards"]
        return int(shards["train"]["tokens"]) if "train" in shards else None

    def _documents(self, split: str) -> list[Path]:
        """Return the files of a split that the manifest lists, by the number of their part."""
        prefix = f"documents/{split}/part-"
        names = [name for name in self.manifest()["files"] if name.startswith(prefix)]
        # By number: by name, part-100000 would come before part-99999.
        names.sort(key=lambda name: int(name.removeprefix(prefix).removesuffix(".parquet")))
        return [self.local / name for name in names]

    def _opened(self) -> RemoteCorpus:
        if self._remote is None:
            self._remote = open_corpus(self.location)
        return self._remote

    def _require_split(self, split: str, present: Collection[str]) -> None:
        if split not in present:
            raise DataError(
                f"the corpus {self.location} has no {split} documents",
                allowed="Pre-training needs text to train on and text to validate on",
                do="Build the corpus with a larger `validation`, or with more documents",
            )


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / artifact.MANIFEST
    manifest = _read_version(folder, path.stat().st_mtime_ns) if path.is_file() else artifact.read_manifest(folder)
    if manifest.get("kind") != "corpus":
        raise ArtifactError(
            f"{folder} is a {manifest.get('kind')}, not a corpus",
            allowed="corpus.from is the output of `headstart corpus build`",
            do="Check corpus.from",
        )
    return manifest


@lru_cache(maxsize=8)
def _read_version(folder: Path, _modified: int) -> dict[str, Any]:
    """Read a manifest once per version: that of a large corpus lists many thousands of files."""
    return artifact.read_manifest(folder)
