"""Documents that a rule dropped: all by their names, and the text of a few, for a person to judge the rule by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from headstart.corpus.parts.files import PartFiles

EXAMPLES = 10
"""Dropped documents of each rule, in each part, of which the text is kept."""
EXAMPLE_CHARACTERS = 2000


class Dropped:
    """The table of what was dropped of one part."""

    def __init__(self, files: PartFiles, shown_as: Callable[[str], str] | None = None) -> None:
        """Write into a part's files; `shown_as` says what a person may see of a text."""
        self.files, self.shown_as = files, shown_as or (lambda text: text)
        self.shown: Counter[str] = Counter()

    def write(self, rule: str, table: pa.Table) -> None:
        """Note which documents a rule dropped, the text of the first few with them."""
        room = max(0, EXAMPLES - self.shown[rule])
        self.shown[rule] += min(room, len(table))
        # Cut twice, so that nothing is cut in half before `shown_as` looks for it.
        texts = pc.utf8_slice_codeunits(table["text"].slice(0, room), 0, 2 * EXAMPLE_CHARACTERS).to_pylist()
        heads = [self.shown_as(text)[:EXAMPLE_CHARACTERS] for text in texts]
        columns = {
            "id": table["id"],
            "source": table["source"],
            "rule": pa.array([rule] * len(table), pa.string()),
            "characters": pc.utf8_length(table["text"]).cast(pa.int64()),
            "text": pa.array([*heads, *[None] * (len(table) - len(heads))], pa.large_string()),
        }
        self.files.write("dropped", pa.table(columns))
