"""What quality rules count in a text, as native expressions over the column `text`.

A word is a run of characters between blanks, a line one with something on it, a paragraph what stands between blank
lines. A line or paragraph is duplicated where it stood before in the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from headstart.corpus.engine import evaluate

if TYPE_CHECKING:
    from daft import Expression

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
_TERMINAL = """[.!?…"'”’»。！？](?:\\[[0-9]+\\])?"""


def measured(texts: pa.ChunkedArray | pa.Array, names: Iterable[str]) -> pa.Table:
    """Return a column for each name, a row for each text."""
    return evaluate(pa.table({"text": texts}), {name: EXPRESSIONS[name]() for name in names})


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


def _pieces(separator: str, distinct: bool, inside: str) -> Callable[[], Expression]:
    """Count the pieces of a text, or the characters inside them, all or each once."""

    def expression() -> Expression:
        from daft import DataType, col
        from daft.functions import length, list_count, list_distinct, list_join, regexp_replace, split

        pieces = split(regexp_replace(col("text"), r"\n{2,}", "\n") if separator == "\n" else col("text"), separator)
        pieces = list_distinct(pieces) if distinct else pieces
        number = list_count(pieces) if inside == "pieces" else length(list_join(pieces, ""))
        return number.cast(DataType.float64())

    return expression


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
    "distinct lines": _pieces("\n", True, "pieces"),
    "characters in lines": _pieces("\n", False, "characters"),
    "characters in distinct lines": _pieces("\n", True, "characters"),
    "paragraphs": _pieces("\n\n", False, "pieces"),
    "distinct paragraphs": _pieces("\n\n", True, "pieces"),
    "characters in paragraphs": _pieces("\n\n", False, "characters"),
    "characters in distinct paragraphs": _pieces("\n\n", True, "characters"),
    "sentences": _count(r"[.!?…][”’»\x22')\]]*(?:\s|$)|[。！？]"),
    "lorem ipsum": _has(r"(?i-u)lorem ipsum"),
    "curly bracket": _has(r"\{"),
}
