"""The interface of a cleaning step: a batch of documents in, the changed batch out, with a verdict on each document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc


@dataclass
class StepOutput:
    """The output of a step for one batch."""

    table: pa.Table
    verdict: pa.Array | pa.ChunkedArray | None = None
    """For each row the name of the rule that drops it, or null; None if the step drops nothing."""
    counts: Counter[str] = field(default_factory=Counter)
    """What the step found and changed, for the datasheet."""


class CleaningStep(Protocol):
    """One cleaning step, built from its section of the recipe."""

    name: str

    def apply(self, table: pa.Table) -> StepOutput:
        """Change and judge a batch that has at least the columns `id` and `text`."""
        ...


def with_text(table: pa.Table, texts: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the table with its column `text` replaced."""
    return table.set_column(table.schema.get_field_index("text"), "text", texts)


def count_characters(table: pa.Table) -> int:
    """Return the number of characters in the texts of a batch."""
    return int(pc.sum(pc.utf8_length(table["text"])).as_py() or 0)


def as_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as a single array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def replace_where(texts: pa.Array | pa.ChunkedArray, mask: pa.Array | pa.ChunkedArray, new: Sequence[str]) -> pa.Array:
    """Return the texts with those selected by a mask replaced, in their order."""
    array = as_array(texts)
    return pc.replace_with_mask(array, as_array(mask), pa.array(new, array.type))
