"""The quickstart's data keep what their README promises."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.core.errors import DataError

FOLDER = Path(__file__).parents[2] / "recipes" / "quickstart" / "data"
ROWS = {"train": 2_000, "validation": 500, "test": 1_000}
LABELS = {"kind-": {"law", "history", "poetry", "prophecy", "gospel", "letter"}, "order-": {"written", "disordered"}}
VERSE = "And God saw the light, that it was good: and God divided the light from the darkness."


def _load_make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quickstart_make", FOLDER / "make.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = bytecode
    return module


MAKE = _load_make()


def _rows(prefix: str, split: str) -> list[tuple[str, str]]:
    with (FOLDER / f"{prefix}{split}.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = [(row["text"], row["label"]) for row in reader]
    assert reader.fieldnames == ["text", "label"]
    return rows


@pytest.fixture(scope="module")
def chapters() -> list[list[str]]:
    """The pre-training text as a list of chapters, each a list of verses."""
    text = gzip.decompress((FOLDER / "kjv.txt.gz").read_bytes()).decode("utf-8")
    return [chapter.splitlines() for chapter in text.strip("\n").split("\n\n")]


def test_pretraining_text_is_whole_and_plain(chapters: list[list[str]]) -> None:
    verses = [verse for chapter in chapters for verse in chapter]
    assert (len(chapters), len(verses)) == (999, 26_341)
    assert all(verse and verse == " ".join(verse.split()) for verse in verses)
    assert not any(character.isdigit() for verse in verses for character in verse)
    assert sum(len(verse.split()) for verse in verses) == 667_290


def test_gzip_carries_no_date() -> None:
    assert (FOLDER / "kjv.txt.gz").read_bytes()[4:8] == bytes(4)


@pytest.mark.parametrize("prefix", LABELS)
@pytest.mark.parametrize("split", ROWS)
def test_columns_counts_and_even_labels(prefix: str, split: str) -> None:
    rows = _rows(prefix, split)
    counts = Counter(label for _, label in rows)
    assert len(rows) == ROWS[split]
    assert set(counts) == LABELS[prefix]
    assert max(counts.values()) - min(counts.values()) <= 1
    assert all(len(MAKE.words(text)) >= MAKE.SHORTEST_VERSE_WORDS for text, _ in rows)


@pytest.mark.parametrize("prefix", LABELS)
def test_rows_are_not_sorted_by_label(prefix: str) -> None:
    first = {label for _, label in _rows(prefix, "train")[:50]}
    assert first == LABELS[prefix]


def test_no_verse_stands_twice_or_in_two_splits() -> None:
    for prefix in LABELS:
        bags = [MAKE.bag(text) for split in ROWS for text, _ in _rows(prefix, split)]
        assert len(bags) == len(set(bags))
    of_split = {split: {MAKE.bag(text) for prefix in LABELS for text, _ in _rows(prefix, split)} for split in ROWS}
    assert not of_split["train"] & of_split["validation"]
    assert not of_split["train"] & of_split["test"]
    assert not of_split["validation"] & of_split["test"]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_verses_are_not_in_the_pretraining_text(split: str, chapters: list[list[str]]) -> None:
    read = {MAKE.bag(verse) for chapter in chapters for verse in chapter}
    runs = {run for chapter in chapters for verse in chapter for run in MAKE.runs(verse)}
    for prefix in LABELS:
        for text, label in _rows(prefix, split):
            assert MAKE.bag(text) not in read
            if label != "disordered":
                own = MAKE.runs(text)
                assert len(own & runs) < MAKE.SHARED_RUNS_MOST * len(own), text


def test_training_verses_are_in_the_pretraining_text(chapters: list[list[str]]) -> None:
    """The other side of the coin: were the text another edition, the test above would pass for nothing."""
    read = {MAKE.bag(verse) for chapter in chapters for verse in chapter}
    assert all(MAKE.bag(text) in read for prefix in LABELS for text, _ in _rows(prefix, "train"))


def test_folder_stays_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) <= 2_500_000


@given(index=st.integers(0, 100_000))
def test_disorder_changes_the_order_and_nothing_else(index: int) -> None:
    changed = MAKE.disorder(VERSE, index, "test")
    assert changed is not None and changed != VERSE
    assert MAKE.bag(changed) == MAKE.bag(VERSE)
    assert changed.split()[0] == "And"
    assert [token[-1] for token in changed.split() if not token[-1].isalpha()] == [",", ":", "."]
    moved = sum(old != new for old, new in zip(MAKE.words(VERSE), MAKE.words(changed), strict=True))
    assert moved == 2 * MAKE.SWAPS
    assert changed == MAKE.disorder(VERSE, index, "test")


def test_disorder_declines_a_verse_without_room() -> None:
    assert MAKE.disorder("Jesus wept.", 0, "test") is None


@pytest.mark.parametrize(
    "line", ["Tobit1:1 The book of the words of Tobit", "In the beginning", "Ge1:1 In the beginning"]
)
def test_a_dump_that_is_not_the_whole_text_is_refused(line: str, tmp_path: Path) -> None:
    dump = tmp_path / "kjv.dump"
    dump.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"Make the dump as the head of make\.py says"):
        MAKE.read_dump(dump)
