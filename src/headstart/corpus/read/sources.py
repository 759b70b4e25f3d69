"""Where a corpus comes from: named sources, their files, and the parts that tasks read.

A part is a file, or a range of a large file that can be split (row groups of Parquet, lines of JSON). Parts depend on
the files alone, never on the number of workers, so that a corpus has the same parts on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pyarrow.parquet as pq
import yaml
from pydantic import Field, PrivateAttr, field_validator

from headstart.core.config import Section
from headstart.core.errors import DataError
from headstart.corpus.read import patterns, readers, stores, tables, urls
from headstart.corpus.read.formats import READERS, RawRow, ReadOptions, printable, suffix_of
from headstart.corpus.read.stores import StoredObject
from headstart.corpus.read.streams import compression_of, opened
from headstart.corpus.read.urls import is_remote
from headstart.corpus.read.warc import read_warc
from headstart.corpus.read.webpages import read_html

FORMATS: dict[str, Callable[[str, ReadOptions], Iterator[RawRow]]] = {
    **READERS,
    "warc": read_warc,
    "wet": read_warc,
    "html": read_html,
    "htm": read_html,
}
"""The reader of each format, by suffix."""


class SourceConfig(Section):
    """One source of raw text."""

    name: str = Field(pattern=r"^[\w-]+$", description="letters, digits, _ and -")
    files: list[str] = Field(
        min_length=1,
        description="paths, globs, folders (such as a Hugging Face data set) or URLs (s3, gs, az, hf, https): .txt, "
        ".jsonl, .csv, .warc, .wet, .html, each also with .gz or .zst, and .parquet",
    )
    text: str = Field("text", description="the column with the text, in parquet, jsonl and csv")
    url: str | None = Field("url", description="the column with the URL of the page, if there is one")
    documents: Literal["blank_line", "file"] = Field("blank_line", description="what one document is in plain text")
    license: str | None = Field(None, description="the license; taken from a folder's README.md if not set")
    weight: float | None = Field(None, gt=0, description="proportion of the corpus, relative to the other weights")
    without: list[str] = Field([], description="names of the quality rules that are not applied to this source")
    _listed: dict[str, stores.Listing] = PrivateAttr(default_factory=dict)
    """The objects that each URL of `files` matches, listed once."""

    @field_validator("files", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return [str(value)] if isinstance(value, str | Path) else value


@dataclass(frozen=True)
class SourcePart:
    """What one task reads: a file, or a range of one."""

    number: int
    source: str
    path: str
    start: int = 0
    """The first byte or row group."""
    stop: int | None = None
    """The byte or row group at which the part ends; None for the end of the file."""
    first_row: int = 0
    """The number of rows of the file before this part, if it is known."""
    name: str = ""
    """The path relative to the common root of the source's files; the file name alone if empty."""

    @property
    def file(self) -> str:
        """The file's name in ids and rejects."""
        return self.name or printable(PurePosixPath(urls.without_options(self.path)).name)

    def to_json(self) -> dict[str, Any]:
        """Return the part as plain JSON types."""
        return asdict(self)


def files_of(source: SourceConfig) -> dict[str, str]:
    """Return the files of a source, each once, sorted, with their names (paths from the patterns' common root).

    Folders are searched for files in a supported format; `skipped_files` returns the others.
    """
    files = patterns.match(source.files, FORMATS, source._listed).files
    supported = f"Supported: {', '.join(f'.{suffix}' for suffix in FORMATS)}, each also with .gz or .zst"
    if not files:
        raise DataError(
            f"source {source.name!r} has no files in a supported format in {', '.join(source.files)}",
            allowed=supported,
            do="Check files",
        )
    for path in files:
        if suffix_of(path) not in FORMATS:
            shown = urls.without_options(path)
            raise DataError(f"{shown} has an unsupported suffix", allowed=supported, do="Rename or convert the file")
    return files


def skipped_files(source: SourceConfig) -> list[str]:
    """Return the names of files in the source's folders that are not read, such as a license or an archive."""
    return patterns.match(source.files, FORMATS, source._listed).skipped


def parts_of(sources: Sequence[SourceConfig], megabytes: float) -> list[SourcePart]:
    """Return the numbered parts of all sources, in their order."""
    parts: list[SourcePart] = []
    for source in sources:
        for path, name in files_of(source).items():
            for start, stop, first_row in _ranges(path, source.text, int(megabytes * 1e6)):
                parts.append(SourcePart(len(parts), source.name, path, start, stop, first_row, name))
    return parts


def identities(sources: Sequence[SourceConfig]) -> dict[str, list[dict[str, Any]]]:
    """Describe the files of each source by name, size and a hash of both ends (or an ETag), to detect changes."""
    return {
        source.name: [
            {**readers.describe([_located(path)])[0], "name": name} for path, name in files_of(source).items()
        ]
        for source in sources
    }


def license_of(source: SourceConfig) -> str | None:
    """Return the license from the recipe, or from the dataset card of a folder."""
    if source.license is not None:
        return source.license
    for folder in source.files:
        card = Path(urls.local_path(folder)).expanduser() / "README.md"
        if not is_remote(folder) and card.is_file():
            text = card.read_text(encoding="utf-8", errors="replace")
            front = text.split("---")[1] if text.startswith("---") and text.count("---") > 1 else ""
            try:
                stated = (yaml.safe_load(front) or {}).get("license")
            except (yaml.YAMLError, AttributeError):
                stated = None
            if stated:
                return ", ".join(stated) if isinstance(stated, list) else str(stated)
    return None


def _ranges(path: str, column: str, size: int) -> Iterator[tuple[int, int | None, int]]:
    """Yield (start, stop, first row) of ranges with about `size` bytes of text, if the format can be split."""
    if suffix_of(path) == "jsonl" and not compression_of(path):
        file_size = readers.size_of(_located(path))
        count = max(1, round(file_size / size))
        for i in range(count):
            yield file_size * i // count, file_size * (i + 1) // count if i + 1 < count else None, 0
    elif suffix_of(path) == "parquet":
        yield from _row_groups(path, column, size)
    else:
        yield 0, None, 0


def _row_groups(path: str, column: str, size: int) -> Iterator[tuple[int, int | None, int]]:
    try:
        with opened(path) as raw, pq.ParquetFile(raw) as file:
            metadata = file.metadata
            sizes = [tables.bytes_of(file, number, column) for number in range(metadata.num_row_groups)]
    except tables.UNREADABLE:
        yield 0, None, 0  # The fault is reported when the file is read.
        return
    start = held = rows = first_row = 0
    for number, group_bytes in enumerate(sizes):
        held += group_bytes
        rows += metadata.row_group(number).num_rows
        if held >= size or number + 1 == len(sizes):
            yield start, number + 1, first_row
            start, held, first_row = number + 1, 0, first_row + rows
            rows = 0
    if not sizes:
        yield 0, 0, 0


def _located(path: str) -> Path | StoredObject:
    return StoredObject.parse(path) if is_remote(path) else Path(path)
