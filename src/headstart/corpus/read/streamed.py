"""A corpus that is read while a model trains on it: its parts are declared before its text is read.

They follow from the names and sizes of the files, and from the number of row groups of large Parquet files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from headstart.core.config import Section
from headstart.core.data import Document
from headstart.core.errors import DataError
from headstart.core.file_hashes import FileVersion
from headstart.corpus.read import attempts, blocks, formats, readers, streams, tables, urls
from headstart.corpus.read.readers import SPLITS, CorpusConfig, Receipt
from headstart.corpus.read.stores import StoredObject


class StreamConfig(Section):
    """How much of a corpus is held at a time, and so how well its rows are shuffled."""

    part_mb: float = Field(
        16,
        gt=0,
        description="megabytes of files in a part, as stored; large .jsonl and .parquet files are divided, small files "
        "are joined, and other files are not divided",
    )
    shuffle_parts: int = Field(
        8,
        ge=1,
        description="parts whose rows are shuffled together; the tokenizer is trained, and documents are held out, on "
        "the first of such groups",
    )


@dataclass(frozen=True)
class FileRange:
    """A file, or a range of one: bytes of JSON Lines, or row groups of Parquet."""

    path: str
    """A local path, or the URL of an object with its size and ETag."""
    size: int
    """The bytes of the whole file."""
    version: FileVersion | None = None
    """That of a local file when it was listed; the reader of a store holds each read against the ETag."""
    start: int = 0
    stop: int | None = None
    """None reads to the end."""

    @classmethod
    def whole(cls, path: Path | StoredObject) -> FileRange:
        """Return a whole file as it is now."""
        if isinstance(path, StoredObject):
            return cls(str(path), path.size)
        version = FileVersion.of(path)
        return cls(str(path), version.size, version)

    def divided(self, shares: int, length: int) -> list[FileRange]:
        """Return equal ranges of a file that has `length` bytes or row groups."""
        edges = [length * share // shares for share in range(shares)]
        return [replace(self, start=start, stop=stop) for start, stop in zip(edges, [*edges[1:], None], strict=True)]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise a DataError if a local file was replaced after it was listed, or while the block reads it."""
        self._require_version()
        try:
            yield
        except Exception:
            # If the file was replaced, any other fault that was found in it follows from that.
            self._require_version()
            raise
        self._require_version()

    def _require_version(self) -> None:
        if self.version is None:
            return
        try:
            found = FileVersion.of(self.path)
        except FileNotFoundError:
            raise attempts.replaced(self.path, "it is gone") from None
        if found.size != self.version.size:
            raise attempts.replaced(self.path, f"it had {self.version.size:,} bytes and has {found.size:,}")
        if found != self.version:
            raise attempts.replaced(self.path, "it has the same size, but was written again")


class StreamedCorpus(CorpusConfig):
    """Raw files that are read while the model trains, in parts whose order is shuffled."""

    stream: StreamConfig = Field(description="train while the files are read; `true` for the defaults")

    @field_validator("stream", mode="before")
    @classmethod
    def _true_is_default(cls, value: Any) -> Any:
        return {} if value is True else value

    @cached_property
    def parts(self) -> list[list[FileRange]]:
        """Return the parts; of the files, only the footers of large Parquet files are read."""
        size = int(self.stream.part_mb * 1e6)
        files = [FileRange.whole(path) for path in self.paths()]
        lengths = _lengths_of([file for file in files if _can_be_divided(file.path) and round(file.size / size) > 1])
        parts: list[list[FileRange]] = []
        joined: list[FileRange] = []
        joined_bytes = 0
        for file in files:
            if file.size >= size:
                length = lengths.get(file.path, 1)
                shares = max(1, min(round(file.size / size), length))
                parts += [[piece] for piece in file.divided(shares, length)]
                continue
            joined.append(file)
            joined_bytes += file.size
            if joined_bytes >= size:
                parts.append(joined)
                joined, joined_bytes = [], 0
        return [*parts, joined] if joined else parts

    def part_documents(self, part: int, seed: int, receipt: Receipt) -> Iterator[tuple[str, Document]]:
        """Yield the usable documents of a part with their split, and fill the receipt."""
        receipt.max_reject_share = self.max_reject_share
        for piece in self.parts[part]:
            name = formats.printable(urls.without_options(piece.path).rpartition("/")[2])
            rows = formats.reader_of(piece.path, self.text, self.documents, piece.start, piece.stop)
            with piece.unchanged():
                for item in readers.items(name, rows, receipt):
                    if receipt.add(item, self.min_characters):
                        assert isinstance(item, Document)
                        yield SPLITS[readers.is_validation(item.text, self.validation, seed)], item

    def head_documents(self, parts: Iterable[int], seed: int, receipt: Receipt) -> Iterator[tuple[str, Document]]:
        """Yield the usable documents of the first parts with their split, and fill the receipt.

        Raises a DataError at the end if one of the splits is empty.
        """
        counts = dict.fromkeys(SPLITS, 0)
        for part in parts:
            for split, document in self.part_documents(part, seed, receipt):
                counts[split] += 1
                yield split, document
        receipt.check()
        empty = next((split for split in SPLITS if not counts[split]), None)
        if empty is not None:
            raise DataError(
                f"none of the {receipt.documents:,} documents that a stream reads first is in the {empty} split",
                allowed=f"Both splits need text from the first {self.stream.shuffle_parts} parts; corpus.validation is "
                f"{self.validation:g}",
                do="Raise corpus.stream.part_mb, corpus.stream.shuffle_parts or corpus.validation",
            )


def _can_be_divided(path: str) -> bool:
    return formats.suffix_of(path) in ("jsonl", "parquet") and not streams.compression_of(path)


def _lengths_of(files: list[FileRange]) -> dict[str, int]:
    """Return by path in what files can be divided: the bytes of JSON Lines, and the row groups of Parquet."""

    def length(file: FileRange) -> int:
        return tables.groups_of(file.path) if formats.suffix_of(file.path) == "parquet" else file.size

    # Together, because each footer in a store takes a request.
    with ThreadPoolExecutor(blocks.CONNECTIONS, thread_name_prefix="headstart-footers") as pool:
        return dict(zip((file.path for file in files), pool.map(length, files), strict=True))
