"""Documents that a rule dropped: the ids of all, and the text of some as examples for checking the rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from headstart.corpus.parts.files import PartFiles

EXAMPLES = 10
"""Dropped documents per rule and part whose text is kept."""
EXAMPLE_CHARACTERS = 2000


class DroppedDocuments:
    """The table of the documents that were dropped from one part."""

    def __init__(self, files: PartFiles, mask: Callable[[str], str] | None = None) -> None:
        """Write to the files of a part; `mask` replaces what must not be shown of a text (personal data)."""
        self.files, self.mask = files, mask or (lambda text: text)
        self.shown: Counter[str] = Counter()

    def write(self, rule: str, table: pa.Table) -> None:
        """Record which documents a rule dropped, with the text of the first few."""
        room = max(0, EXAMPLES - self.shown[rule])
        self.shown[rule] += min(room, len(table))
        # Cut before and after masking: the first cut is wider, so that `mask` sees no half of what it looks for.
        texts = pc.utf8_slice_codeunits(table["text"].slice(0, room), 0, 2 * EXAMPLE_CHARACTERS).to_pylist()
        examples = [self.mask(text)[:EXAMPLE_CHARACTERS] for text in texts]
        columns = {
            "id": table["id"],
            "source": table["source"],
            "rule": pa.array([rule] * len(table), pa.string()),
            "characters": pc.utf8_length(table["text"]).cast(pa.int64()),
            "text": pa.array([*examples, *[None] * (len(table) - len(examples))], pa.large_string()),
        }
        self.files.write("dropped", pa.table(columns))
