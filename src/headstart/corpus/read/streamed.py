"""A corpus that is read while a model trains on it: its parts are declared from the listing of its files alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import Field, field_validator

from headstart.core.config import Section
from headstart.core.data import Document
from headstart.core.errors import DataError
from headstart.corpus.read import formats, readers, streams, tables, urls
from headstart.corpus.read.readers import SPLITS, CorpusConfig, Receipt


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
    """A file, or the `share`-th of `shares` equal ranges of one."""

    path: str
    """A local path, or the URL of an object with its size and ETag."""
    size: int
    share: int = 0
    shares: int = 1


class StreamedCorpus(CorpusConfig):
    """Raw files that are read while the model trains, in parts whose order is shuffled."""

    stream: StreamConfig = Field(description="train while the files are read; `true` for the defaults")

    @field_validator("stream", mode="before")
    @classmethod
    def _true_is_default(cls, value: Any) -> Any:
        return {} if value is True else value

    @cached_property
    def parts(self) -> list[list[FileRange]]:
        """Return the parts, which depend on the names and sizes of the files alone; nothing is read."""
        size = int(self.stream.part_mb * 1e6)
        parts: list[list[FileRange]] = []
        joined: list[FileRange] = []
        for path in self.paths():
            file = FileRange(str(path), readers.size_of(path))
            shares = round(file.size / size) if _can_be_divided(path.name) else 1
            if shares > 1 or file.size >= size:
                parts += [[FileRange(file.path, file.size, share, shares)] for share in range(shares)]
                continue
            joined.append(file)
            if sum(small.size for small in joined) >= size:
                parts.append(joined)
                joined = []
        return [*parts, joined] if joined else parts

    def part_documents(self, part: int, seed: int, receipt: Receipt) -> Iterator[tuple[str, Document]]:
        """Yield the usable documents of a part with their split, and fill the receipt."""
        receipt.max_reject_share = self.max_reject_share
        for piece in self.parts[part]:
            name = formats.printable(urls.without_options(piece.path).rpartition("/")[2])
            for item in readers.items(name, _rows(piece, self), receipt):
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


def _can_be_divided(name: str) -> bool:
    return formats.suffix_of(name) in ("jsonl", "parquet") and not streams.compression_of(name)


def _rows(piece: FileRange, corpus: StreamedCorpus) -> Iterator[formats.RawRow]:
    """Return the rows of a range: bytes of JSON Lines, row groups of Parquet, and otherwise the whole file."""
    count = tables.groups_of(piece.path) if formats.suffix_of(piece.path) == "parquet" else piece.size
    start, end = (count * (piece.share + more) // piece.shares for more in (0, 1))
    stop = None if piece.share + 1 == piece.shares else end
    return formats.reader_of(piece.path, corpus.text, corpus.documents, start, stop)
