"""Files of text → documents, with every input row accounted for.

    expand ─ read ─ Document | Reject ─ documents (fills a Receipt) ─ Document ─ split_documents ─ train | validation

A format is a function in `headstart.corpus.read.formats`. This module selects it by suffix, gives each document an id
and counts the rows.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow.parquet as pq
from pydantic import Field, PrivateAttr, field_validator

from headstart.core.config import Section
from headstart.core.data import Document, Reject
from headstart.core.errors import DataError
from headstart.core.log import logger
from headstart.core.randomness import fraction
from headstart.core.registry import suggest
from headstart.corpus.read import formats, stores, streams, tables, urls
from headstart.corpus.read.stores import StoredObject

SPLITS = ("train", "validation")
_KEPT_EXAMPLES = 20
_IDENTITY_BYTES = 1 << 20


LANGUAGE: Any = Field(
    None,
    pattern=r"^[A-Za-z][A-Za-z0-9_-]*$",
    description="the language of the text, such as pt: each row begins with the special token <pt>, which also marks "
    "texts in fine-tuning and in generation",
)


class CorpusConfig(Section):
    """Where the raw text is, and how it is split into documents."""

    newer: ClassVar[tuple[str, ...]] = ("language",)

    files: list[str] = Field(
        min_length=1,
        description="paths, globs or URLs (s3, gs, az, hf, https) of .txt, .jsonl, .csv or .parquet files",
    )
    text: str = Field("text", description="the column with the text, in parquet, jsonl and csv")
    documents: Literal["blank_line", "file"] = Field("blank_line", description="what one document is in plain text")
    validation: float = Field(
        0.01, gt=0, le=0.5, description="fraction of the documents held out, selected by a hash of the text"
    )
    min_characters: int = Field(1, ge=1, description="a shorter document counts as empty")
    max_reject_share: float = Field(
        0.01, ge=0, le=1, description="maximum fraction of unreadable rows; above it the run fails"
    )
    prepared: Path | None = Field(None, description="folder for a tokenizer and shards that several runs share")
    language: str | None = LANGUAGE
    _listed: dict[str, stores.Listing] = PrivateAttr(default_factory=dict)
    """The objects that each URL of `files` matches, listed once."""

    @field_validator("files", mode="before")
    @classmethod
    def _one_file_is_a_list(cls, value: Any) -> Any:
        return [str(value)] if isinstance(value, str | Path) else value

    def paths(self) -> list[Path | StoredObject]:
        """Return the files, each once, sorted; objects of a store as they were when they were first listed."""
        return expand(self.files, listed=self._listed)


@dataclass
class Receipt:
    """The row counts of one pass over a corpus: rows in = documents + rejects + empty."""

    rows: int = 0
    """Counted where the bytes are read, so that a row lost in between is noticed."""
    documents: int = 0
    rejects: int = 0
    empty: int = 0
    characters: int = 0
    max_reject_share: float = 0.01
    examples: list[Reject] = field(default_factory=list)
    """The first rejects, for the error message and the manifest."""

    def add(self, item: Document | Reject, min_characters: int = 1) -> bool:
        """Count one item; return True if it is a usable document."""
        if isinstance(item, Reject):
            self.rejects += 1
            if len(self.examples) < _KEPT_EXAMPLES:
                self.examples.append(item)
            return False
        if len(item.text.strip()) < min_characters:
            self.empty += 1
            return False
        self.documents += 1
        self.characters += len(item.text)
        return True

    def check(self) -> None:
        """Raise if rows in ≠ documents + rejects + empty, or if there are too many rejects."""
        counted = self.documents + self.rejects + self.empty
        if self.rows != counted:
            raise DataError(
                f"{self.rows:,} rows were read, but {counted:,} are accounted for",
                allowed="Rows in = documents + rejects + empty",
                do="This is an internal error of the reader. Please report it with the file that causes it",
            )
        if self.rejects and self.rejects > self.max_reject_share * self.rows:
            first = self.examples[0]
            raise DataError(
                f"{self.rejects:,} of {self.rows:,} rows cannot be read ({self.rejects / self.rows:.2%}); "
                f"the first is {first.file}, {first.position}: {first.reason}",
                allowed=f"corpus.max_reject_share allows {self.max_reject_share:.2%}",
                do="Fix the file, or raise corpus.max_reject_share if the loss is acceptable",
            )

    def summary(self) -> dict[str, Any]:
        """Return the counts and the first rejects as plain JSON types."""
        counts = {name: getattr(self, name) for name in ("rows", "documents", "rejects", "empty", "characters")}
        return {**counts, "examples": [f"{r.file}, {r.position}: {r.reason}" for r in self.examples]}

    def warn(self, verb: str) -> None:
        """Log how many rows could not be read, and the first of them."""
        if self.rejects:
            first = self.summary()["examples"][0]
            logger.warning(f"{verb}: {self.rejects:,} rows could not be read; the first: {first}")


def documents(config: CorpusConfig, receipt: Receipt) -> Iterator[Document]:
    """Yield the usable documents of a corpus in a stable order and fill the receipt.

    Raises a DataError at the end if no document is usable or more rows were rejected than the config allows.
    """
    receipt.max_reject_share = config.max_reject_share
    for item in read(config, receipt):
        if receipt.add(item, config.min_characters):
            assert isinstance(item, Document)
            yield item
    receipt.check()
    if not receipt.documents:
        raise DataError(
            f"the corpus is empty: {', '.join(config.files)} gave {receipt.rows:,} rows, {receipt.empty:,} of them "
            f"shorter than {config.min_characters} characters",
            allowed="At least one document is needed",
            do="Check corpus.files, corpus.text and corpus.min_characters",
        )


def split_documents(config: CorpusConfig, seed: int, receipt: Receipt) -> Iterator[tuple[str, Document]]:
    """Yield each usable document with its split, "train" or "validation", in one pass, and fill the receipt.

    Raises a DataError at the end if one of the splits is empty.
    """
    counts = dict.fromkeys(SPLITS, 0)
    for document in documents(config, receipt):
        split = SPLITS[is_validation(document.text, config.validation, seed)]
        counts[split] += 1
        yield split, document
    empty = next((split for split in SPLITS if not counts[split]), None)
    if empty is not None:
        raise DataError(
            f"none of the {receipt.documents:,} documents of the corpus is in the {empty} split",
            allowed=f"Both splits need text; corpus.validation is {config.validation:g}",
            do="Add documents (corpus.documents defines what one is), or change corpus.validation",
        )


def read(config: CorpusConfig, receipt: Receipt | None = None) -> Iterator[Document | Reject]:
    """Yield every row of every file as a Document or a Reject, file by file in sorted order.

    Empty rows are yielded as documents without text. `receipt.rows` is incremented for each row.
    """
    for path in config.paths():
        name, reader = formats.printable(path.name), formats.reader_of(path, config.text, config.documents)
        yield from items(name, reader, receipt)


def items(name: str, rows: Iterable[formats.RawRow], receipt: Receipt | None = None) -> Iterator[Document | Reject]:
    """Yield every row of a file as a Document or a Reject; `name` is that of the file."""
    for row in rows:
        if receipt is not None:
            receipt.rows += 1
        if isinstance(row.value, formats.BadRow):
            if row.value.error is not None:
                raise row.value.error
            yield Reject(name, row.position, row.value.reason)
        else:
            yield Document(f"{name}:{row.position.rpartition(' ')[2]}", row.value)


def expand(
    files: Iterable[str], key: str = "corpus.files", listed: dict[str, stores.Listing] | None = None
) -> list[Path | StoredObject]:
    """Return the files that paths, globs and URLs match, each once, sorted, those of stores last.

    Error messages name the recipe's `key`. `listed` keeps what URLs match, so that a second call lists nothing again.
    """
    matched: set[Path] = set()
    objects: dict[str, StoredObject] = {}
    for pattern in files:
        if urls.is_remote(pattern):
            objects |= {stored.url: stored for stored in _list_objects(pattern, key, {} if listed is None else listed)}
            continue
        path = Path(pattern).expanduser()
        if path.is_file():
            matched.add(path)
            continue
        if path.is_dir():
            raise DataError(
                f"{pattern} is a folder", allowed=f"{key} takes files and globs", do=f"Write {pattern}/*.txt"
            )
        matches = {Path(match) for match in glob.glob(str(path), recursive=True)}
        if not any(match.is_file() for match in matches):
            raise DataError(
                _no_match(pattern, path),
                allowed=f"{key} takes paths and globs; relative ones start at the working directory",
                do=f"Check {key}",
            )
        matched |= {match for match in matches if match.is_file()}
    return [*sorted(matched), *sorted(objects.values(), key=lambda stored: urls.split_url(stored.url)[1].split("/"))]


def _list_objects(pattern: str, key: str, listed: dict[str, stores.Listing]) -> list[StoredObject]:
    if pattern not in listed:
        listed[pattern] = stores.list_objects(pattern)
    shown = urls.without_options(pattern)
    if not listed[pattern].objects:
        raise DataError(f"no object matches {shown}", allowed=f"{key} takes paths, globs and URLs", do=f"Check {key}")
    if listed[pattern].is_folder:
        raise DataError(f"{shown} is a folder", allowed=f"{key} takes files and globs", do=f"Write {shown}/*.txt")
    return listed[pattern].objects


def is_validation(text: str, share: float, seed: int) -> bool:
    """Return True if a document is held out: its text (or id) alone decides, so a growing corpus keeps its split."""
    return fraction(text, seed, "validation") < share


def sources(config: CorpusConfig) -> list[dict[str, Any]]:
    """Describe the files by name, size and a hash of both ends, for fingerprints that survive a copy."""
    return describe(config.paths())


def describe(paths: Iterable[Path | StoredObject]) -> list[dict[str, Any]]:
    """Describe files by name, size and a hash of both ends; objects of a store by their ETag in place of the hash."""
    return [
        {
            "name": formats.printable(path.name),
            **(
                path.identity()
                if isinstance(path, StoredObject)
                else {"bytes": size_of(path), "sha256_ends": _hash_ends(path)}
            ),
        }
        for path in paths
    ]


def text_bytes(config: CorpusConfig) -> int:
    """Return the size of the uncompressed text; JSON and CSV syntax counts as text."""
    return count_text_bytes(config.paths(), config.text)


def count_text_bytes(paths: Iterable[Path | StoredObject], column: str) -> int:
    """Return the size of the uncompressed text of some files.

    Parquet states it in its header. Gzip and zstd files are decompressed, because one file may have several members.
    """
    return sum(_text_bytes(path, column) for path in paths)


def _text_bytes(path: Path | StoredObject, column: str) -> int:
    if formats.suffix_of(path.name) == "parquet":
        try:
            with streams.opened(str(path)) as raw, pq.ParquetFile(raw) as file:
                groups = range(file.metadata.num_row_groups)
                return sum(tables.bytes_of(file, group, column) for group in groups)
        except tables.UNREADABLE as error:
            raise DataError(
                f"{urls.without_options(str(path))} cannot be read as parquet ({error})",
                do="Restore the file or remove it from the recipe",
            ) from error
    if streams.compression_of(path.name):
        return sum(len(chunk) for chunk in streams.chunks(str(path)) if isinstance(chunk, bytes))
    return size_of(path)


def size_of(path: Path | StoredObject) -> int:
    """Return the number of bytes of a file."""
    return path.size if isinstance(path, StoredObject) else path.stat().st_size


def _hash_ends(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(_IDENTITY_BYTES))
        file.seek(max(0, path.stat().st_size - _IDENTITY_BYTES))
        digest.update(file.read(_IDENTITY_BYTES))
    return digest.hexdigest()


def _no_match(pattern: str, path: Path) -> str:
    if glob.has_magic(pattern):
        return f"no file matches {pattern}"
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    return f"there is no file {pattern}{suggest(path.name, siblings)}"
