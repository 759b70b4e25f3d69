"""Boilerplate lines, proportions of sources and languages, and choices by hash."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

from headstart.corpus.dedup import lines
from headstart.corpus.parts.pieces import hashes_of
from headstart.corpus.select.proportions import chances, rates


def texts(*values: str) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, pa.large_string())])


def counted(*values: str) -> dict[int, int]:
    made = lines.hashed(pa.array(np.arange(len(values))), texts(*values))
    assert made.schema == lines.SCHEMA
    found: dict[int, int] = {}
    for line in made["line"].to_pylist():
        found[line] = found.get(line, 0) + 1
    return found


def test_a_line_counts_once_in_a_document_and_paragraphs_count_as_well() -> None:
    assert sorted(counted("menu\ntext\nmenu", "menu\n\nother").values()) == [1, 1, 1, 2]
    shared = counted("a\nb\n\nx", "a\nb\n\ny")
    assert sorted(shared.values()) == [1, 1, 2, 2, 2], "two lines and the paragraph that they make"


def test_boilerplate_is_taken_out_and_gaps_are_closed() -> None:
    documents = [
        "Home\nHome page\nReal text one.\n\nCopyright\nAll rights",
        "Home\n\nOnly this.",
        "Home",
        "Nothing here",
    ]
    made = lines.hashed(pa.array([0]), texts("Home\n\nCopyright\nAll rights"))
    known = np.sort(made["line"].to_numpy())
    after, count, size = lines.without(texts(*documents), known)
    assert after.to_pylist() == ["Home page\nReal text one.", "Only this.", "", "Nothing here"]
    assert count == 4 and size == sum(map(len, documents)) - sum(map(len, after.to_pylist()))
    # A paragraph alone, whose lines may stand elsewhere.
    both = hashes_of(["Copyright\nAll rights"], 1)
    after, _, _ = lines.without(texts("Copyright\nAll rights\n\nText", "Copyright\nis kept"), both)
    assert after.to_pylist() == ["Text", "Copyright\nis kept"]
    assert lines.without(texts("x"), np.zeros(0, np.uint64))[1:] == (0, 0)


def stripped(text: str, known: set[str]) -> str:
    """The same in plain Python: paragraphs first, then lines, and gaps closed."""
    if not known & {*text.split("\n"), *text.split("\n\n")}:
        return text
    kept = []
    for block in text.split("\n\n"):
        rows = [row for row in block.split("\n") if not row or row not in known]
        if not ("\n" in block and block in known) and any(rows):
            kept.append("\n".join(rows))
    return "\n\n".join(kept)


def test_taking_out_is_the_same_as_in_plain_python_by_two_calls_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()

    def counted_hashes(pieces: pa.Array | list[str], seed: int) -> Any:
        calls.append(seed)
        return hashes_of(pieces, seed)

    monkeypatch.setattr(lines, "hashes_of", counted_hashes)
    monkeypatch.setattr("headstart.corpus.parts.pieces.hashes_of", counted_hashes)
    chance = random.Random(0)
    documents = [
        "".join(chance.choice(["menu", "a", "b ä", "\n", "\n", "\n\n"]) for _ in range(30)) for _ in range(400)
    ]
    for known in (["menu"], ["a", "menu"], ["a\nb ä", "b ä"], ["never"]):
        marks = np.sort(np.concatenate([hashes_of([piece], int("\n" in piece)) for piece in known]))
        calls.clear()
        after, _, size = lines.without(texts(*documents), marks)
        expected = [stripped(document, set(known)) for document in documents]
        assert after.to_pylist() == expected
        assert size == sum(map(len, documents)) - sum(map(len, expected))
        assert len(calls) == 2, "one call for all lines and one for all paragraphs"


def test_rates_keep_the_scarcest_whole() -> None:
    sizes = {("a", "en"): 1000, ("b", "en"): 100}
    assert rates(sizes, {"a": 1, "b": 1}, None) == pytest.approx({("a", "en"): 0.1, ("b", "en"): 1.0})
    assert rates(sizes, {"a": None, "b": None}, None) == pytest.approx({("a", "en"): 1.0, ("b", "en"): 1.0})
    languages = {("a", "en"): 10_000, ("a", "pt"): 100}
    found = rates(languages, {"a": None}, 0.5)
    kept = {group: languages[group] * rate for group, rate in found.items()}
    assert kept["a", "en"] / kept["a", "pt"] == pytest.approx((10_000 / 100) ** 0.5)
    assert max(found.values()) == pytest.approx(1.0)
    assert rates({("a", "en"): 0}, {"a": 1.0}, 0.3) == {("a", "en"): 1.0}


def test_a_language_is_lifted_whatever_source_it_comes_from() -> None:
    apart = rates({("a", "en"): 10_000, ("b", "pt"): 100}, {"a": None, "b": None}, 0.5)
    assert apart == pytest.approx({("a", "en"): 0.1, ("b", "pt"): 1.0})
    spread = rates({("a", "en"): 6_000, ("b", "en"): 4_000, ("b", "pt"): 100}, {"a": None, "b": None}, 0.5)
    assert spread == pytest.approx({("a", "en"): 0.1, ("b", "en"): 0.1, ("b", "pt"): 1.0})


def test_chances_are_even_depend_on_the_key_alone_and_on_the_purpose() -> None:
    keys = np.random.default_rng(0).integers(0, 2**63, 100_000).astype(np.uint64)
    drawn = chances(keys, 0, "validation")
    assert drawn.min() >= 0 and drawn.max() < 1
    assert np.histogram(drawn, bins=20, range=(0, 1))[0] == pytest.approx(np.full(20, 5000), rel=0.06)
    assert (chances(keys[::-1], 0, "validation")[::-1] == drawn).all()
    for other in (chances(keys, 1, "validation"), chances(keys, 0, "mixture")):
        assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.02
