"""Where a corpus comes from: named sources, their files, and the parts that tasks read.

A part is a file, or a range of a large one that can be cut (row groups of Parquet, lines of JSON). Parts depend on
the files alone, never on the number of workers, so that the same corpus has the same parts everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import Field, field_validator

from headstart.core.config import Section
from headstart.core.errors import DataError
from headstart.corpus.read import addresses, patterns, readers, tables
from headstart.corpus.read.addresses import is_remote
from headstart.corpus.read.formats import READERS, RawRow, ReadOptions, printable, suffix_of
from headstart.corpus.read.streams import opened, packer_of
from headstart.corpus.read.warc import read_warc
from headstart.corpus.read.webpages import read_html

KNOWN: dict[str, Callable[[str, ReadOptions], Iterator[RawRow]]] = {
    **READERS,
    "warc": read_warc,
    "wet": read_warc,
    "html": read_html,
    "htm": read_html,
}


class SourceConfig(Section):
    """One source of raw text."""

    name: str = Field(pattern=r"^[\w-]+$", description="letters, digits, _ and -")
    files: list[str] = Field(
        min_length=1,
        description="paths, globs, folders (a Hugging Face data set's, say) or addresses of an object store: .txt, "
        ".jsonl, .csv, .warc, .wet, .html, also with .gz or .zst, and .parquet",
    )
    text: str = Field("text", description="the column with the text, in parquet, jsonl and csv")
    url: str | None = Field("url", description="the column with the page's address, where there is one")
    documents: Literal["blank_line", "file"] = Field("blank_line", description="what one document is in plain text")
    licence: str | None = Field(None, description="as given; a folder's README says it where this does not")
    weight: float | None = Field(None, gt=0, description="share of the corpus, relative to the others' weights")
    without: list[str] = Field([], description="names of quality rules that do not hold for this source")

    @field_validator("files", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [str(value)] if isinstance(value, str | Path) else value


@dataclass(frozen=True)
class SourcePart:
    """What one task reads."""

    number: int
    source: str
    path: str
    start: int = 0
    """The first byte or row group."""
    stop: int | None = None
    first_row: int = 0
    """How many rows of the file come before it, where that can be told."""
    name: str = ""
    """The file's path from what all files of the source have in common; its bare name where none is given."""

    @property
    def file(self) -> str:
        """The file's name in ids and rejects."""
        return self.name or printable(PurePosixPath(addresses.bare(self.path)).name)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON types."""
        return asdict(self)


def files_of(source: SourceConfig) -> dict[str, str]:
    """Return the files of a source, each once, sorted, and each one's name: its path from where the patterns differ.

    Folders are searched for files that a reader knows; `passed_over` names the others.
    """
    found = patterns.matched(source.files, KNOWN).files
    known = f"Known: {', '.join(f'.{suffix}' for suffix in KNOWN)}, also packed by gz or zst"
    if not found:
        listed = ", ".join(source.files)
        raise DataError(
            f"source {source.name!r} has no files that a reader knows in {listed}", allowed=known, do="Check files"
        )
    for path in found:
        if suffix_of(path) not in KNOWN:
            raise DataError(f"{path} has a suffix that no reader knows", allowed=known, do="Rename or convert the file")
    return found


def passed_over(source: SourceConfig) -> list[str]:
    """Return the names of files in the source's folders that are not read, such as a licence or an archive."""
    return patterns.matched(source.files, KNOWN).passed_over


def parts_of(sources: Sequence[SourceConfig], megabytes: float) -> list[SourcePart]:
    """Return the parts of all sources in their order, numbered."""
    parts: list[SourcePart] = []
    for source in sources:
        for path, name in files_of(source).items():
            for start, stop, first_row in _ranges(path, source.text, int(megabytes * 1e6)):
                parts.append(SourcePart(len(parts), source.name, path, start, stop, first_row, name))
    return parts


def identities(sources: Sequence[SourceConfig]) -> dict[str, list[dict[str, Any]]]:
    """Describe the files of each source by name, size and a hash of both ends, to notice when they change."""
    found: dict[str, list[dict[str, Any]]] = {}
    for source in sources:
        found[source.name] = [
            {"name": name, **_remote_identity(path)}
            if is_remote(path)
            else {**readers.described([Path(path)])[0], "name": name}
            for path, name in files_of(source).items()
        ]
    return found


def licence_of(source: SourceConfig) -> str | None:
    """Return the licence as the recipe or a folder's dataset card gives it."""
    if source.licence is not None:
        return source.licence
    for folder in source.files:
        card = Path(addresses.local(folder)).expanduser() / "README.md"
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
    """Cut a file into ranges of about so many bytes of text, where its format allows."""
    if suffix_of(path) == "jsonl" and not packer_of(path) and not is_remote(path):
        whole = Path(path).stat().st_size
        count = max(1, round(whole / size))
        for index in range(count):
            yield whole * index // count, whole * (index + 1) // count if index + 1 < count else None, 0
    elif suffix_of(path) == "parquet":
        yield from _row_groups(path, column, size)
    else:
        yield 0, None, 0


def _row_groups(path: str, column: str, size: int) -> Iterator[tuple[int, int | None, int]]:
    try:
        with opened(path) as raw, pq.ParquetFile(raw) as file:
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    except (pa.ArrowException, OSError):
        yield 0, None, 0  # Reading tells what is wrong with it.
        return
    start = held = rows = first_row = 0
    for number, group in enumerate(groups):
        held += tables.bytes_of(group, column)
        rows += group.num_rows
        if held >= size or number + 1 == len(groups):
            yield start, number + 1, first_row
            start, held, first_row = number + 1, 0, first_row + rows
            rows = 0
    if not groups:
        yield 0, 0, 0


def _remote_identity(path: str) -> dict[str, Any]:
    system, key = addresses.system_of(path)
    info = system.get_file_info(key)
    return {"bytes": info.size, "changed": info.mtime_ns}
