"""What quality rules count in a text, as native expressions over the column `text` and by its pieces.

A word is a run of characters between blanks, a line one with something on it, a paragraph what stands between blank
lines. A line or paragraph is duplicated where it stood before in the same text.
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


def measured(texts: pa.ChunkedArray | pa.Array, names: Collection[str]) -> Values:
    """Return the numbers of each name, one for each text."""
    native = {name: EXPRESSIONS[name]() for name in names if name in EXPRESSIONS}
    table = evaluate(pa.table({"text": texts}), native)
    found = {name: table[name].to_numpy().astype(np.float64) for name in native}
    for one, cut in {"line": lines_of, "paragraph": paragraphs_of}.items():
        if f"distinct {one}s" in names:
            numbers = cut(texts).numbers()
            found |= {
                f"{one}s": numbers["all"],
                f"distinct {one}s": numbers["distinct"],
                f"characters in {one}s": numbers["characters"],
                f"characters in distinct {one}s": numbers["distinct characters"],
            }
    return found


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

    found = lit(0)
    for word in STOP_WORDS:
        found = found + regexp(col("text"), rf"(?i-u:\b{word}\b)").cast(DataType.int32())
    return found


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
