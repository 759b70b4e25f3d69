"""The folder beside an output file with the finished chunks, from which a killed run resumes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headstart.core import artifact
from headstart.core.log import logger
from headstart.stages.predict.output import OutputFormat, RowValues

_IDENTITY, _JOINED = "identity.json", "joined.json"
_NAMED = 20
"""Problems of a chunk that are kept in words."""


@dataclass
class Receipt:
    """What is recorded about a finished chunk. The file of the chunk is complete if its receipt exists."""

    rows: int = 0
    failed: int = 0
    problems: list[tuple[int, str]] = field(default_factory=list)
    """Number of the row in the input, counted from 1, and why it has no prediction; the first ones only."""
    size: int = 0

    def __add__(self, other: Receipt) -> Receipt:
        problems = [*self.problems, *other.problems][:_NAMED]
        return Receipt(self.rows + other.rows, self.failed + other.failed, problems, self.size + other.size)


class Parts:
    """The finished chunks of one output. Chunks of another model, input or setting are not used."""

    def __init__(self, output: Path) -> None:
        """Refer to the folder; `open` creates it."""
        self.output, self.folder = output, output.with_name(f".{output.name}.parts")

    def open(self, identity: Mapping[str, Any]) -> None:
        """Create the folder, or empty it if its chunks have another identity."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.belongs_to(identity):
            if (self.folder / _IDENTITY).exists():
                logger.info("%s: finished chunks of another model, input or setting are not used", self.output)
            for path in self.folder.glob("part-*"):
                path.unlink()
            (self.folder / _JOINED).unlink(missing_ok=True)
            artifact.write_whole(self.folder / _IDENTITY, json.dumps(identity, indent=2) + "\n")

    def belongs_to(self, identity: Mapping[str, Any]) -> bool:
        """True if the folder has chunks of this identity."""
        return _read(self.folder / _IDENTITY) == json.loads(json.dumps(identity))

    def finished(self) -> dict[int, Receipt]:
        """Return the receipts of the finished chunks, by the number of the chunk."""
        receipts: dict[int, Receipt] = {}
        for path in sorted(self.folder.glob("part-*.receipt")):
            number, values = int(path.stem.partition("-")[2]), _read(path)
            data = self._path(number)
            if values is not None and data.is_file() and data.stat().st_size == values["size"]:
                values["problems"] = [(row, text) for row, text in values["problems"]]
                receipts[number] = Receipt(**values)
        return receipts

    def save(self, number: int, rows: Sequence[RowValues], receipt: Receipt, form: OutputFormat) -> Receipt:
        """Write the rows of a chunk and its receipt; a chunk is on disk as a whole or not at all."""
        path = self._path(number)
        staging = path.with_suffix(".staging")
        form.write(staging, rows)
        artifact.flush(staging)
        staging.replace(path)
        receipt.size, receipt.problems = path.stat().st_size, receipt.problems[:_NAMED]
        artifact.write_whole(path.with_suffix(".receipt"), json.dumps(asdict(receipt)) + "\n")
        return receipt

    def join(self, count: int, form: OutputFormat) -> None:
        """Join all chunks into the output by one rename, and remove the folder."""
        staging = self.folder / f"whole{self.output.suffix}"
        form.join([self._path(number) for number in range(count)], staging)
        artifact.flush(staging)
        artifact.write_whole(self.folder / _JOINED, json.dumps({"size": staging.stat().st_size}) + "\n")
        staging.replace(self.output)
        artifact.flush(self.output.parent)
        self.remove()

    def is_joined(self) -> bool:
        """True if a run was killed after it wrote the output and before it removed the folder."""
        joined = _read(self.folder / _JOINED)
        return joined is not None and self.output.is_file() and self.output.stat().st_size == joined["size"]

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:08d}.data"


def _read(path: Path) -> Any:
    """Return the JSON in a file; None if there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
