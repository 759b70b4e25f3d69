"""What quality rules count in a text, with native expressions over the column `text` and over its pieces.

Words are separated by whitespace and paragraphs by blank lines; empty lines do not count. A line or paragraph is
repeated if it occurred before in the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headstart.corpus.clean.rules import Values
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.pieces import lines_of, paragraphs_of

if TYPE_CHECKING:
    from daft import Expression

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
_TERMINAL = """[.!?…"'”’»。！？](?:\\[[0-9]+\\])?"""


def count(texts: pa.ChunkedArray | pa.Array, names: Collection[str]) -> Values:
    """Return the named counts, each with one number per text."""
    native = {name: EXPRESSIONS[name]() for name in names if name in EXPRESSIONS}
    table = evaluate(pa.table({"text": texts}), native)
    counts = {name: table[name].to_numpy().astype(np.float64) for name in native}
    for piece, split in {"line": lines_of, "paragraph": paragraphs_of}.items():
        if f"distinct {piece}s" in names:
            totals = split(texts).totals()
            counts |= {
                f"{piece}s": totals["all"],
                f"distinct {piece}s": totals["distinct"],
                f"characters in {piece}s": totals["characters"],
                f"characters in distinct {piece}s": totals["distinct characters"],
            }
    return counts


def _count(pattern: str) -> Callable[[], Expression]:
    def expression() -> Expression:
        from daft import DataType, col
        from daft.functions import regexp_count

        return regexp_count(col("text"), pattern).cast(DataType.float64())

    return expression


def _has(pattern: str) -> Callable[[], Expression]:
    def expression() -> Expression:
        from daft import col
        from daft.functions import regexp

        return regexp(col("text"), pattern)

    return expression


def _characters() -> Expression:
    from daft import DataType, col
    from daft.functions import length

    return length(col("text")).cast(DataType.float64())


def _stop_words() -> Expression:
    from daft import DataType, col, lit
    from daft.functions import regexp

    total = lit(0)
    for word in STOP_WORDS:
        total = total + regexp(col("text"), rf"(?i-u:\b{word}\b)").cast(DataType.int32())
    return total


EXPRESSIONS: dict[str, Callable[[], Expression]] = {
    "characters": _characters,
    "words": _count(r"\S+"),
    "blanks": _count(r"\s"),
    "words with a letter": _count(r"[^\s\p{L}]*\p{L}\S*"),
    "hashes": _count(r"#"),
    "ellipses": _count(r"…|\.\.\."),
    "stop words": _stop_words,
    "lines": _count(r"[^\n]+"),
    "lines with a bullet": _count(r"(?m)^ *[•‣▪◦●*–-]"),
    "lines with an ellipsis": _count(r"(?m)(?:…|\.\.\.)$"),
    "lines with an end": _count(rf"(?m){_TERMINAL}$"),
    "short lines": _count(r"(?m)^[^\n]{1,29}$"),
    "sentences": _count(r"[.!?…][”’»\x22')\]]*(?:\s|$)|[。！？]"),
    "lorem ipsum": _has(r"(?i-u)lorem ipsum"),
    "curly bracket": _has(r"\{"),
}
