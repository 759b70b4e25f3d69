"""Boilerplate lines and paragraphs are counted and removed."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

from headstart.corpus.dedup import lines
from headstart.corpus.parts.pieces import hashes_of


def texts(*values: str) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, pa.large_string())])


def counted(*values: str) -> Counter[int]:
    table = lines.hash_lines(pa.array(np.arange(len(values))), texts(*values))
    assert table.schema == lines.SCHEMA
    return Counter(table["line"].to_pylist())


def test_a_line_counts_once_per_document_and_paragraphs_count_too() -> None:
    assert sorted(counted("menu\ntext\nmenu", "menu\n\nother").values()) == [1, 1, 1, 2]
    shared = counted("a\nb\n\nx", "a\nb\n\ny")
    assert sorted(shared.values()) == [1, 1, 2, 2, 2], "two lines and the paragraph of both"


def test_boilerplate_is_removed_and_gaps_are_closed() -> None:
    documents = [
        "Home\nHome page\nReal text one.\n\nCopyright\nAll rights",
        "Home\n\nOnly this.",
        "Home",
        "Nothing here",
    ]
    table = lines.hash_lines(pa.array([0]), texts("Home\n\nCopyright\nAll rights"))
    boilerplate = np.sort(table["line"].to_numpy())
    after, count, size = lines.remove(texts(*documents), boilerplate)
    assert after.to_pylist() == ["Home page\nReal text one.", "Only this.", "", "Nothing here"]
    assert count == 4 and size == sum(map(len, documents)) - sum(map(len, after.to_pylist()))
    # Only the paragraph is boilerplate; its lines may occur elsewhere.
    paragraph = hashes_of(["Copyright\nAll rights"], 1)
    after, _, _ = lines.remove(texts("Copyright\nAll rights\n\nText", "Copyright\nis kept"), paragraph)
    assert after.to_pylist() == ["Text", "Copyright\nis kept"]
    assert lines.remove(texts("x"), np.zeros(0, np.uint64))[1:] == (0, 0)


def removed(text: str, known: set[str]) -> str:
    """Remove paragraphs, then lines, and close the gaps, in plain Python."""
    if not known & {*text.split("\n"), *text.split("\n\n")}:
        return text
    kept = []
    for block in text.split("\n\n"):
        rows = [row for row in block.split("\n") if not row or row not in known]
        if not ("\n" in block and block in known) and any(rows):
            kept.append("\n".join(rows))
    return "\n\n".join(kept)


def test_removal_equals_plain_python_with_two_calls_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()

    def counted_hashes(pieces: pa.Array | list[str], seed: int) -> Any:
        calls.append(seed)
        return hashes_of(pieces, seed)

    monkeypatch.setattr(lines, "hashes_of", counted_hashes)
    monkeypatch.setattr("headstart.corpus.parts.pieces.hashes_of", counted_hashes)
    rng = random.Random(0)
    documents = ["".join(rng.choice(["menu", "a", "b ä", "\n", "\n", "\n\n"]) for _ in range(30)) for _ in range(400)]
    for known in (["menu"], ["a", "menu"], ["a\nb ä", "b ä"], ["never"]):
        hashes = np.sort(np.concatenate([hashes_of([piece], int("\n" in piece)) for piece in known]))
        calls.clear()
        after, _, size = lines.remove(texts(*documents), hashes)
        expected = [removed(document, set(known)) for document in documents]
        assert after.to_pylist() == expected
        assert size == sum(map(len, documents)) - sum(map(len, expected))
        assert len(calls) == 2, "one call for all lines and one for all paragraphs"
