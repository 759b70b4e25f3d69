"""What a cleaning step is: a batch of documents in, the same batch out, changed, with a verdict on each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc


@dataclass
class StepOutput:
    """A batch after a step."""

    table: pa.Table
    verdict: pa.Array | pa.ChunkedArray | None = None
    """For each row the name of the rule that drops it, or null; None where the step drops nothing."""
    counts: Counter[str] = field(default_factory=Counter)
    """What the step found and changed, for the datasheet."""


class CleaningStep(Protocol):
    """One step of cleaning; its settings are its own."""

    name: str

    def apply(self, table: pa.Table) -> StepOutput:
        """Judge and change a batch with at least the columns `id` and `text`."""
        ...


def with_text(table: pa.Table, texts: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the table with other texts."""
    return table.set_column(table.schema.get_field_index("text"), "text", texts)


def characters(table: pa.Table) -> int:
    """Return how many characters the texts of a batch have."""
    return int(pc.sum(pc.utf8_length(table["text"])).as_py() or 0)


def flat(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def changed(texts: pa.Array | pa.ChunkedArray, chosen: pa.Array | pa.ChunkedArray, by: Sequence[str]) -> pa.Array:
    """Return texts with the chosen ones replaced, in their order."""
    whole = flat(texts)
    return pc.replace_with_mask(whole, flat(chosen), pa.array(by, whole.type))
