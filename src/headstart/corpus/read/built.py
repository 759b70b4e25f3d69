"""A corpus that `headstart corpus build` finished, as the input of pre-training.

It has its cleaned text, already split, in documents/{train,validation}/part-*.parquet. If its recipe has a tokenizer
section, it also has the tokenizer in tokenizer/ and the token shards in shards/{train,validation}/.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from headstart.core import artifact
from headstart.core.config import Section
from headstart.core.data import Document
from headstart.core.errors import ArtifactError, DataError
from headstart.corpus.read.readers import SPLITS, Receipt, count_text_bytes

_TEXT, _TOKENS = ("documents",), ("tokenizer", "shards")
"""The folders of a corpus that pre-training reads."""


class BuiltCorpus(Section):
    """A finished corpus: its token shards and tokenizer if it has them, its cleaned text otherwise."""

    folder: Path = Field(alias="from", description="folder of a corpus that `headstart corpus build` finished")
    prepared: Path | None = Field(None, description="folder for a tokenizer and shards that several runs share")

    @model_serializer(mode="wrap")
    def _by_alias(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write `folder` as `from`, the key of the recipe."""
        return {"from" if key == "folder" else key: value for key, value in handler(self).items()}

    @property
    def tokenizer(self) -> Path | None:
        """Return the folder of the corpus's tokenizer, or None if the corpus is text only."""
        return self.folder / "tokenizer" if self.manifest()["recipe"].get("tokenizer") is not None else None

    def shards(self, split: str) -> Path:
        """Return the folder of the token shards of a split."""
        self._require_split(split, self.manifest()["facts"]["shards"])
        return self.folder / "shards" / split

    def manifest(self) -> dict[str, Any]:
        """Return the manifest; raises if the folder is not a finished corpus."""
        return _read_manifest(self.folder)

    def verify(self) -> None:
        """Check the manifest against its seal, and the files that pre-training reads against the manifest."""
        read = _TEXT if self.tokenizer is None else _TOKENS
        others = [name for name in self.manifest()["files"] if name.split("/")[0] not in read]
        artifact.verify(self.folder, "corpus", trusted=others)

    def parents(self) -> dict[str, str]:
        """Return the hashes of the corpus and of its datasheet."""
        datasheet = self.manifest()["files"]["DATASHEET.md"]["sha256"]
        return {"corpus": artifact.identity(self.folder), "datasheet": datasheet}

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
        return [{"name": self.folder.name, "bytes": size, "sha256": hashlib.sha256(lines.encode()).hexdigest()}]

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
        return [self.folder / name for name in names]

    def _require_split(self, split: str, present: Collection[str]) -> None:
        if split not in present:
            raise DataError(
                f"the corpus {self.folder} has no {split} documents",
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
