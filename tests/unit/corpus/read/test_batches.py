"""Batches of a part: every row is counted, whatever its file contains, in batches of bounded size."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.corpus.read.batches import REJECT_SCHEMA, ReadBatch, read_batches
from headstart.corpus.read.sources import SourceConfig, parts_of
from headstart.corpus.read.tables import BATCH_BYTES


def read(path: Path, max_bytes: int = 10**6, megabytes: float = 64, **settings: Any) -> list[ReadBatch]:
    source = SourceConfig(name="s", files=[str(path)], **settings)
    batches = [b for part in parts_of([source], megabytes) for b in read_batches(part, source, max_bytes)]
    for batch in batches:
        rejects = pa.Table.from_pylist(batch.rejects, REJECT_SCHEMA)
        assert batch.rows == len(batch.table) + sum(rejects["rows"].to_pylist())
    return batches


def rows_of(batches: list[ReadBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.table.to_pylist()]


def rejects_of(batches: list[ReadBatch]) -> list[dict[str, Any]]:
    return [reject for batch in batches for reject in batch.rejects]


@pytest.mark.parametrize("url", [[["a"], ["b"]] * 300, [{"at": "a"}] * 600], ids=["list", "struct"])
def test_an_extra_column_that_is_not_text_is_null_and_costs_no_row(tmp_path: Path, url: list[object]) -> None:
    pq.write_table(pa.table({"text": [f"text {n}" for n in range(600)], "url": url}), tmp_path / "a.parquet")
    batches = read(tmp_path / "a.parquet")
    assert [row["text"] for row in rows_of(batches)] == [f"text {n}" for n in range(600)]
    assert {row["url"] for row in rows_of(batches)} == {None} and not rejects_of(batches)


def test_a_missing_url_is_null_in_every_format(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x", "y", "z"], "url": ["http://a", "", None]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "b.parquet")
    (tmp_path / "c.jsonl").write_text('{"text": "x", "url": "http://a"}\n{"text": "y", "url": ""}\n{"text": "z"}\n')
    (tmp_path / "d.csv").write_text("url,text\nhttp://a,x\n,y\n")
    urls = [[row["url"] for row in rows_of(read(path))] for path in sorted(tmp_path.iterdir())]
    assert urls == [["http://a", None, None], [None], ["http://a", None, None], ["http://a", None]]


def test_bad_bytes_in_extra_columns_and_file_names_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"url,text\nhttp://x/\xff,good text\n")
    (row,) = rows_of(read(tmp_path / "a.csv"))
    assert row["text"] == "good text" and row["url"].startswith("http://x/")
    (tmp_path / "b.csv").write_bytes(b"url,texts\xff\nhttp://x,lost\n")
    assert len(rejects_of(read(tmp_path / "b.csv"))) == 1
    odd = tmp_path / "odd"
    odd.mkdir()
    for name in (b"\xff.jsonl", b"\xfe.jsonl"):
        Path(os.fsdecode(os.fsencode(odd) + b"/" + name)).write_text('{"text": "x"}\n{bad\n')
    batches = read(odd)
    assert [row["id"] for row in rows_of(batches)] == ["\\xfe.jsonl@0", "\\xff.jsonl@0"]
    assert [reject["file"] for reject in rejects_of(batches)] == ["\\xfe.jsonl", "\\xff.jsonl"]


def test_a_file_without_the_column_counts_all_its_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"txt": ["lost"] * 5000}), tmp_path / "a.parquet", row_group_size=1000)
    (tmp_path / "b.csv").write_text("id,body\n" + '1,"two\nlines"\n' * 999 + "2\n\n")
    batches = read(tmp_path / "a.parquet")
    (reject,) = rejects_of(batches)
    assert (reject["place"], reject["rows"]) == ("file", 5000) and sum(batch.rows for batch in batches) == 5000
    assert "no column 'text'; did you mean 'txt'? It has: txt." in reject["reason"] and "Set" not in reject["reason"]
    assert sum(batch.rows for batch in read(tmp_path / "b.csv")) == 1001
    assert sum(reject["rows"] for reject in rejects_of(read(tmp_path / "b.csv"))) == 1001


def test_positions_in_later_parts_of_a_file_are_those_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{bad\n" + b'{"text": "good row"}\n' * 100 + b"{bad\n" + b'{"text": "good row"}\n' * 10)
    rejects = rejects_of(read(path, megabytes=0.001))
    assert [(reject["place"], reject["offset"]) for reject in rejects] == [("row 0", 0), ("byte 2105", 2105)]


def test_files_of_the_same_name_have_different_ids_and_rejects(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_bytes(b"a text\n\xff\n")
    for pattern in (tmp_path, tmp_path / "*" / "a.txt"):
        batches = read(pattern)
        assert [row["id"] for row in rows_of(batches)] == ["x/a.txt:0", "y/a.txt:0"]
        assert [reject["file"] for reject in rejects_of(batches)] == ["x/a.txt", "y/a.txt"]


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_batches_of_long_texts_are_cut_by_bytes(tmp_path: Path, is_dictionary: bool) -> None:
    texts = [f"{0 if is_dictionary else n} " + "x" * 500_000 for n in range(120)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", use_dictionary=is_dictionary, compression="zstd")
    batches = read(tmp_path / "a.parquet")
    assert [row["text"] for row in rows_of(batches)] == texts
    assert [row["id"] for row in rows_of(batches)] == [f"a.parquet:{n}" for n in range(120)]
    assert max(batch.table.nbytes for batch in batches) < 2 * BATCH_BYTES


def test_batches_of_short_rows_and_rejects_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n" * 20_000)
    (tmp_path / "b.txt").write_text("x\n\n" * 70_000)
    pq.write_table(
        pa.table({"text": pa.array([b"\xff"] * 20_000, pa.binary()).view(pa.string())}), tmp_path / "c.parquet"
    )
    for name, rows in (("a.jsonl", 20_000), ("b.txt", 70_000), ("c.parquet", 20_000)):
        batches = read(tmp_path / name)
        assert sum(batch.rows for batch in batches) == rows
        assert max(len(batch.rejects) for batch in batches) <= 10_000 and max(batch.rows for batch in batches) <= 66_000


def test_a_document_that_is_too_long_is_rejected_with_its_position_in_every_format(tmp_path: Path) -> None:
    long = "a line of text\n" * 100_000
    (tmp_path / "a.txt").write_text(f"first\n\n{long}\nlast\n")
    batches = read(tmp_path / "a.txt")
    assert [(row["id"], row["text"]) for row in rows_of(batches)] == [("a.txt:0", "first"), ("a.txt:2", "last")]
    (reject,) = rejects_of(batches)
    assert (reject["place"], reject["offset"]) == ("document 1", 7)
    assert reject["reason"] == "a document of 1,500,000 bytes; reading.longest_mb allows 1,000,000"
    (reject,) = rejects_of(read(tmp_path / "a.txt", documents="file"))
    assert reject["place"] == "document 0" and reject["offset"] == 0
    pq.write_table(pa.table({"text": ["first", long, None, "last"]}), tmp_path / "b.parquet")
    batches = read(tmp_path / "b.parquet")
    assert [row["text"] for row in rows_of(batches)] == ["first", "", "last"]
    (reject,) = rejects_of(batches)
    assert reject["place"] == "row 1" and "1,500,000 bytes" in reject["reason"] and len(reject["raw"]) == 200
    (tmp_path / "c.csv").write_text('text\nfirst\n"' + "y" * 600_000 + "\n" + "z" * 600_000 + '"\nlast\n')
    batches = read(tmp_path / "c.csv")
    assert [row["text"] for row in rows_of(batches)] == ["first", "last"]
    (reject,) = rejects_of(batches)
    assert reject["place"] == "row 1" and "a record of 1,200,004 bytes" in reject["reason"]


def test_suffixes_in_upper_case_are_supported(tmp_path: Path) -> None:
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(b'{"text": "x"}\n'))
    pq.write_table(pa.table({"text": ["y"]}), tmp_path / "B.PARQUET")
    assert [row["text"] for row in rows_of(read(tmp_path))] == ["x", "y"]
