"""The selection of a part: which documents are dropped, with examples, one row group at a time; samples of parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

from headstart.corpus.dedup import duplicates
from headstart.corpus.dedup.lines import LinesConfig
from headstart.corpus.parts.files import in_order, part_file
from headstart.corpus.parts.pieces import hashes_of
from headstart.corpus.select import part as selection
from headstart.corpus.select import samples
from headstart.corpus.select.part import SelectSettings, select_part


def write_cleaned(work: Path, texts: list[str], groups: int) -> None:
    """Write the output of the cleaning task for one part, with the given number of row groups."""
    rows = len(texts)
    table = pa.table(
        {
            "doc": np.arange(rows), "id": [str(row) for row in range(rows)], "source": ["s"] * rows,
            "url": pa.nulls(rows, pa.string()), "language": ["en"] * rows,
            "evaluation_sets": pa.array([[]] * rows, pa.list_(pa.string())),
            "key": np.random.default_rng(0).integers(0, 2**63, rows).astype(np.uint64),
            "text": pa.array(texts, pa.large_string()),
        }
    )  # fmt: skip
    for folder in ("clean/documents", "duplicates/found", "lines"):
        (work / folder).mkdir(parents=True)
    pq.write_table(table, part_file(work / "clean" / "documents", 0), row_group_size=-(-rows // groups))
    pq.write_table(duplicates.SCHEMA.empty_table(), work / "duplicates" / "found" / "none.parquet")
    pq.write_table(pa.table({"line": hashes_of(["Menu"], 0)}), work / "lines" / "a.parquet")


def select(work: Path) -> dict[str, Any]:
    settings = SelectSettings(folder=work, lines=LinesConfig(), rates={"s/en": 0.5}, validation=0.0, seed=0)
    return select_part({"part": 0, "settings": settings.model_dump_json()})


def test_dropped_documents_are_recorded_with_examples(tmp_path: Path) -> None:
    write_cleaned(tmp_path, ["Menu", *(f"Menu\nText number {n} ä." for n in range(100)), "Menu"], groups=3)
    note = select(tmp_path)
    counts = {rule: n for step in note["books"] for rule, n in step["dropped"].items()}
    assert counts["lines.emptied"] == 2 and 20 < counts["mixture.sampled_out"] < 80
    rows = pq.read_table(part_file(tmp_path / "select" / "dropped", 0)).to_pylist()
    for rule, number in counts.items():
        of_rule = [row for row in rows if row["rule"] == rule]
        assert len(of_rule) == number
        assert sum(row["text"] is not None for row in of_rule) == min(10, number)
    assert [row["text"] for row in rows if row["rule"] == "lines.emptied"] == ["Menu", "Menu"]
    assert all(row["characters"] >= 4 for row in rows)


def test_one_row_group_is_processed_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cleaned(tmp_path, [f"Text number {n}." for n in range(60)], groups=12)
    sizes = list[int]()
    drop = selection._Selector._drop_duplicates

    def counted(self: Any, table: pa.Table) -> pa.Table:
        sizes.append(len(table))
        return drop(self, table)

    monkeypatch.setattr(selection._Selector, "_drop_duplicates", counted)
    select(tmp_path)
    assert sizes == [5] * 12


def test_samples_come_from_all_parts_and_read_single_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = np.random.default_rng(1).integers(0, 2**63, 4000).astype(np.uint64)
    for part in range(40):
        columns = {"id": [f"{part}:{row}" for row in range(100)], "source": ["s"] * 100, "language": ["en"] * 100}
        texts = [f"{part}:{row} text" for row in range(100)]
        table = pa.table({"key": keys[part::40], **columns, "text": texts})
        pq.write_table(table, part_file(tmp_path, part), row_group_size=7)
    read = list[list[str] | None]()
    read_table = pq.read_table

    def recorded(*arguments: Any, **settings: Any) -> pa.Table:
        read.append(settings.get("columns"))
        return read_table(*arguments, **settings)

    monkeypatch.setattr(samples.pq, "read_table", recorded)
    drawn = samples.draw(in_order(tmp_path), 12, seed=0)
    assert drawn == samples.draw(in_order(tmp_path)[::-1], 12, seed=0) != samples.draw(in_order(tmp_path), 12, seed=1)
    assert all(row["text"] == f"{row['id']} text" for row in drawn)
    assert len({row["id"].partition(":")[0] for row in drawn}) > 6
    assert all(columns == ["key"] for columns in read), "texts are read one row group at a time"


def test_parts_are_sorted_by_number(tmp_path: Path) -> None:
    for number in (100_000, 99_999, 7):
        part_file(tmp_path, number).touch()
    assert [path.stem for path in in_order(tmp_path)] == ["part-00007", "part-99999", "part-100000"]
