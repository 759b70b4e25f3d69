"""Files of text → documents, with every input row accounted for.

    expand ─ read ─ Document | Reject ─ documents (fills a Receipt) ─ Document

A format is a function in `headstart.corpus.read.formats`; this module chooses it by suffix, names the documents
and keeps the books.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, field_validator

from headstart.core.config import Section
from headstart.core.data import Document, Reject
from headstart.core.errors import DataError
from headstart.core.randomness import fraction
from headstart.core.registry import suggest
from headstart.corpus.read import formats, streams, tables

_KEPT_EXAMPLES = 20
_IDENTITY_BYTES = 1 << 20


class CorpusConfig(Section):
    """Where the raw text lies and how documents are cut out of it."""

    files: list[str] = Field(min_length=1, description="paths or globs of .txt, .jsonl, .csv or .parquet files")
    text: str = Field("text", description="the column with the text, in parquet, jsonl and csv")
    documents: Literal["blank_line", "file"] = Field("blank_line", description="what one document is in plain text")
    validation: float = Field(
        0.01, gt=0, le=0.5, description="share of the documents held out, chosen by hash of the id"
    )
    min_characters: int = Field(1, ge=1, description="a shorter document counts as empty")
    max_reject_share: float = Field(0.01, ge=0, le=1, description="share of unreadable rows past which the run fails")
    prepared: Path | None = Field(None, description="folder for tokenizer and shards that several runs share")

    @field_validator("files", mode="before")
    @classmethod
    def _one_file_is_a_list(cls, value: Any) -> Any:
        return [str(value)] if isinstance(value, str | Path) else value


@dataclass
class Receipt:
    """The books of one pass over a corpus: what came in and what became of it."""

    rows: int = 0
    """Counted where the bytes are read, so that a row lost on the way shows."""
    documents: int = 0
    rejects: int = 0
    empty: int = 0
    characters: int = 0
    max_reject_share: float = 0.01
    examples: list[Reject] = field(default_factory=list)
    """The first rejects, for the message and the datasheet."""

    def add(self, item: Document | Reject, min_characters: int = 1) -> bool:
        """Book one item; say whether it is a document to use."""
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
        """Raise unless rows in = documents + rejects + empty and the rejects are few."""
        booked = self.documents + self.rejects + self.empty
        if self.rows != booked:
            raise DataError(
                f"{self.rows:,} rows were read and {booked:,} are accounted for",
                allowed="Rows in = documents + rejects + empty",
                do="This is a fault of the reader: please report it with the file that shows it",
            )
        if self.rejects and self.rejects > self.max_reject_share * self.rows:
            first = self.examples[0]
            raise DataError(
                f"{self.rejects:,} of {self.rows:,} rows cannot be read ({self.rejects / self.rows:.2%}); "
                f"the first is {first.file}, {first.place}: {first.reason}",
                allowed=f"corpus.max_reject_share allows {self.max_reject_share:.2%}",
                do="Mend the file, or raise corpus.max_reject_share if the loss is known",
            )

    def summary(self) -> dict[str, Any]:
        """Return the counts as plain JSON types, the first rejects with them."""
        counts = {name: getattr(self, name) for name in ("rows", "documents", "rejects", "empty", "characters")}
        return {**counts, "examples": [f"{r.file}, {r.place}: {r.reason}" for r in self.examples]}


def documents(config: CorpusConfig, receipt: Receipt) -> Iterator[Document]:
    """Yield the usable documents of a corpus in a stable order, filling the receipt on the way.

    Raises DataError at the end if nothing was usable or more was rejected than the config allows.
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


def read(config: CorpusConfig, receipt: Receipt | None = None) -> Iterator[Document | Reject]:
    """Yield every row of every file as a Document or a Reject, file by file in sorted order.

    Empty rows are yielded too, as documents without text. `receipt.rows` grows with each row read.
    """
    for path in expand(config.files):
        name, reader = formats.printable(path.name), formats.reader_of(path, config.text, config.documents)
        for row in reader:
            if receipt is not None:
                receipt.rows += 1
            if isinstance(row.value, formats.BadRow):
                if row.value.error is not None:
                    raise row.value.error
                yield Reject(name, row.place, row.value.reason)
            else:
                yield Document(f"{name}:{row.place.rpartition(' ')[2]}", row.value)


def expand(files: Iterable[str], key: str = "corpus.files") -> list[Path]:
    """Return the files that paths and globs stand for, each once, sorted; errors name the recipe's key."""
    found: set[Path] = set()
    for pattern in files:
        path = Path(pattern).expanduser()
        if path.is_file():
            found.add(path)
            continue
        if path.is_dir():
            raise DataError(
                f"{pattern} is a folder", allowed=f"{key} takes files and globs", do=f"Write {pattern}/*.txt"
            )
        matches = {Path(match) for match in glob.glob(str(path), recursive=True)}
        if not any(match.is_file() for match in matches):
            raise DataError(
                _nothing_at(pattern, path),
                allowed=f"{key} takes paths and globs; relative ones start at the working directory",
                do=f"Check {key}",
            )
        found |= {match for match in matches if match.is_file()}
    return sorted(found)


def is_validation(document_id: str, share: float, seed: int) -> bool:
    """Say whether a document is held out: by its id (or text) alone, so a growing corpus keeps its split."""
    return fraction(document_id, seed, "validation") < share


def sources(config: CorpusConfig) -> list[dict[str, Any]]:
    """Describe the files by name, size and a hash of both ends, for fingerprints that survive a copy."""
    return described(expand(config.files))


def described(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Describe files by name, size and a hash of both ends."""
    return [
        {"name": formats.printable(path.name), "bytes": path.stat().st_size, "sha256_ends": _ends(path)}
        for path in paths
    ]


def text_bytes(config: CorpusConfig) -> int:
    """Return how much text the files hold, unpacked: exact but for JSON and CSV's marks.

    Parquet says so in its header; gz and zst are unpacked to know it, since a file may be several of them in a row.
    """
    return sum(_unpacked(path, config.text) for path in expand(config.files))


def _unpacked(path: Path, column: str) -> int:
    if formats.suffix_of(path.name) == "parquet":
        try:
            with pq.ParquetFile(path) as file:
                groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{path} cannot be read as parquet ({error})", do="Restore the file or take it out"
            ) from error
        return sum(tables.bytes_of(group, column) for group in groups)
    if streams.packer_of(path.name):
        return sum(len(chunk) for chunk in streams.chunks(str(path)) if isinstance(chunk, bytes))
    return path.stat().st_size


def _ends(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(_IDENTITY_BYTES))
        file.seek(max(0, path.stat().st_size - _IDENTITY_BYTES))
        digest.update(file.read(_IDENTITY_BYTES))
    return digest.hexdigest()


def _nothing_at(pattern: str, path: Path) -> str:
    if glob.has_magic(pattern):
        return f"no file matches {pattern}"
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    return f"there is no file {pattern}{suggest(path.name, siblings)}"
