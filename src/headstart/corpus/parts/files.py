"""The files that a task writes for its part: all of them and then a marker, or nothing that counts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.core import artifact


def part_name(number: int) -> str:
    """Return the name that all files and folders of a part share, without a suffix."""
    return f"part-{number:05d}"


def marker(folder: Path, number: int) -> Path:
    """Return the path of the file that marks a part as finished and holds its note."""
    return folder / f"{part_name(number)}.json"


def part_file(folder: Path, number: int) -> Path:
    """Return the path of a part's table in a folder."""
    return folder / f"{part_name(number)}.parquet"


def in_order(folder: Path) -> list[Path]:
    """Return the tables of a folder sorted by part number; sorted by name, part 100000 would precede part 99999."""
    return sorted(folder.glob("part-*.parquet"), key=lambda path: int(path.stem.removeprefix("part-")))


def finished(folder: Path, number: int) -> dict[str, Any] | None:
    """Return the note of a finished part, or None if the part is not finished."""
    try:
        note: dict[str, Any] = json.loads(marker(folder, number).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return note


def size_of(folder: Path) -> dict[str, int]:
    """Return the total rows and bytes of the tables in a folder."""
    files = sorted(folder.glob("*.parquet"))
    rows = sum(pq.read_metadata(file).num_rows for file in files)
    return {"rows": rows, "bytes": sum(file.stat().st_size for file in files)}


class PartFiles:
    """The Parquet files of one part, one per kind of table, written batch by batch."""

    def __init__(self, folder: Path, number: int) -> None:
        """Select names that no other process uses, so that files of a killed run do not interfere."""
        self.folder, self.name = folder, part_file(folder, number).name
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._staging: dict[str, Path] = {}

    def write(self, kind: str, table: pa.Table) -> None:
        """Append a batch to the file of a kind; the same batches give the same bytes."""
        if kind not in self._writers:
            (self.folder / kind).mkdir(parents=True, exist_ok=True)
            self._staging[kind] = self.folder / kind / f".{self.name}.{os.getpid()}"
            self._writers[kind] = pq.ParquetWriter(
                self._staging[kind], table.schema, compression="zstd", write_statistics=True
            )
        self._writers[kind].write_table(table)

    def commit(self) -> None:
        """Close and flush all files and give them their final names."""
        for kind, writer in self._writers.items():
            writer.close()
            artifact.flush(self._staging[kind])
            os.replace(self._staging[kind], self.folder / kind / self.name)

    def discard(self) -> None:
        """Close and remove all files."""
        for kind, writer in self._writers.items():
            writer.close()
            self._staging[kind].unlink(missing_ok=True)


@contextmanager
def part_files(folder: Path, number: int, note: dict[str, Any]) -> Iterator[PartFiles]:
    """Open the files of a part; on exit, give them their final names and then write `note` as the marker."""
    files = PartFiles(folder, number)
    try:
        yield files
        files.commit()
    except BaseException:
        files.discard()
        raise
    path = marker(folder, number)
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    staging.write_text(json.dumps(note, sort_keys=True) + "\n", encoding="utf-8")
    artifact.flush(staging)
    os.replace(staging, path)
    artifact.flush(folder)
