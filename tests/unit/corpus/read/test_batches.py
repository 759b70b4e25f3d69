"""Batches of a part: every row is counted, whatever its file holds, in batches of bounded size."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.corpus.read.batches import REJECTS, ReadBatch, read_batches
from headstart.corpus.read.sources import SourceConfig, parts_of
from headstart.corpus.read.tables import BATCH_BYTES


def batches(path: Path, longest: int = 10**6, megabytes: float = 64, **settings: Any) -> list[ReadBatch]:
    source = SourceConfig(name="s", files=[str(path)], **settings)
    found = [b for part in parts_of([source], megabytes) for b in read_batches(part, source, longest)]
    for batch in found:
        told = pa.Table.from_pylist(batch.rejects, REJECTS)
        assert batch.rows == len(batch.table) + sum(told["rows"].to_pylist())
    return found


def rows_of(found: list[ReadBatch]) -> list[dict[str, Any]]:
    return [row for batch in found for row in batch.table.to_pylist()]


def rejects_of(found: list[ReadBatch]) -> list[dict[str, Any]]:
    return [reject for batch in found for reject in batch.rejects]


@pytest.mark.parametrize("url", [[["a"], ["b"]] * 300, [{"at": "a"}] * 600], ids=["list", "struct"])
def test_a_column_beside_the_text_that_is_no_text_costs_no_row(tmp_path: Path, url: list[object]) -> None:
    pq.write_table(pa.table({"text": [f"text {n}" for n in range(600)], "url": url}), tmp_path / "a.parquet")
    found = batches(tmp_path / "a.parquet")
    assert [row["text"] for row in rows_of(found)] == [f"text {n}" for n in range(600)]
    assert {row["url"] for row in rows_of(found)} == {None} and not rejects_of(found)


def test_a_missing_address_is_null_in_every_format(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x", "y", "z"], "url": ["http://a", "", None]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "b.parquet")
    (tmp_path / "c.jsonl").write_text('{"text": "x", "url": "http://a"}\n{"text": "y", "url": ""}\n{"text": "z"}\n')
    (tmp_path / "d.csv").write_text("url,text\nhttp://a,x\n,y\n")
    urls = [[row["url"] for row in rows_of(batches(path))] for path in sorted(tmp_path.iterdir())]
    assert urls == [["http://a", None, None], [None], ["http://a", None, None], ["http://a", None]]


def test_bad_bytes_beside_the_text_and_in_names_are_written_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"url,text\nhttp://x/\xff,good text\n")
    (row,) = rows_of(batches(tmp_path / "a.csv"))
    assert row["text"] == "good text" and row["url"].startswith("http://x/")
    (tmp_path / "b.csv").write_bytes(b"url,texts\xff\nhttp://x,lost\n")
    assert len(rejects_of(batches(tmp_path / "b.csv"))) == 1
    odd = tmp_path / "odd"
    odd.mkdir()
    for name in (b"\xff.jsonl", b"\xfe.jsonl"):
        Path(os.fsdecode(os.fsencode(odd) + b"/" + name)).write_text('{"text": "x"}\n{bad\n')
    found = batches(odd)
    assert [row["id"] for row in rows_of(found)] == ["\\xfe.jsonl@0", "\\xff.jsonl@0"]
    assert [reject["file"] for reject in rejects_of(found)] == ["\\xfe.jsonl", "\\xff.jsonl"]


def test_a_file_without_the_column_counts_all_its_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"txt": ["lost"] * 5000}), tmp_path / "a.parquet", row_group_size=1000)
    (tmp_path / "b.csv").write_text("id,body\n" + '1,"two\nlines"\n' * 999 + "2\n\n")
    found = batches(tmp_path / "a.parquet")
    (reject,) = rejects_of(found)
    assert (reject["place"], reject["rows"]) == ("file", 5000) and sum(batch.rows for batch in found) == 5000
    assert "no column 'text'; did you mean 'txt'? It has: txt." in reject["reason"] and "Set" not in reject["reason"]
    assert sum(batch.rows for batch in batches(tmp_path / "b.csv")) == 1001
    assert sum(reject["rows"] for reject in rejects_of(batches(tmp_path / "b.csv"))) == 1001


def test_places_in_later_parts_of_a_file_are_those_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{bad\n" + b'{"text": "good row"}\n' * 100 + b"{bad\n" + b'{"text": "good row"}\n' * 10)
    found = rejects_of(batches(path, megabytes=0.001))
    assert [(reject["place"], reject["offset"]) for reject in found] == [("row 0", 0), ("byte 2105", 2105)]


def test_files_of_the_same_name_have_different_ids_and_rejects(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_bytes(b"a text\n\xff\n")
    for pattern in (tmp_path, tmp_path / "*" / "a.txt"):
        found = batches(pattern)
        assert [row["id"] for row in rows_of(found)] == ["x/a.txt:0", "y/a.txt:0"]
        assert [reject["file"] for reject in rejects_of(found)] == ["x/a.txt", "y/a.txt"]


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_batches_of_long_texts_are_cut_by_bytes(tmp_path: Path, is_dictionary: bool) -> None:
    texts = [f"{0 if is_dictionary else n} " + "x" * 500_000 for n in range(120)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", use_dictionary=is_dictionary, compression="zstd")
    found = batches(tmp_path / "a.parquet")
    assert [row["text"] for row in rows_of(found)] == texts
    assert [row["id"] for row in rows_of(found)] == [f"a.parquet:{n}" for n in range(120)]
    assert max(batch.table.nbytes for batch in found) < 2 * BATCH_BYTES


def test_many_short_rows_and_rejects_are_not_held_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n" * 20_000)
    (tmp_path / "b.txt").write_text("x\n\n" * 70_000)
    pq.write_table(
        pa.table({"text": pa.array([b"\xff"] * 20_000, pa.binary()).view(pa.string())}), tmp_path / "c.parquet"
    )
    for name, rows in (("a.jsonl", 20_000), ("b.txt", 70_000), ("c.parquet", 20_000)):
        found = batches(tmp_path / name)
        assert sum(batch.rows for batch in found) == rows
        assert max(len(batch.rejects) for batch in found) <= 10_000 and max(batch.rows for batch in found) <= 66_000


def test_a_document_too_long_is_told_with_its_place_in_every_format(tmp_path: Path) -> None:
    long = "a line of text\n" * 100_000
    (tmp_path / "a.txt").write_text(f"first\n\n{long}\nlast\n")
    found = batches(tmp_path / "a.txt")
    assert [(row["id"], row["text"]) for row in rows_of(found)] == [("a.txt:0", "first"), ("a.txt:2", "last")]
    (reject,) = rejects_of(found)
    assert (reject["place"], reject["offset"]) == ("document 1", 7)
    assert reject["reason"] == "a document of 1,500,000 bytes; reading.longest_mb allows 1,000,000"
    (reject,) = rejects_of(batches(tmp_path / "a.txt", documents="file"))
    assert reject["place"] == "document 0" and reject["offset"] == 0
    pq.write_table(pa.table({"text": ["first", long, None, "last"]}), tmp_path / "b.parquet")
    found = batches(tmp_path / "b.parquet")
    assert [row["text"] for row in rows_of(found)] == ["first", "", "last"]
    (reject,) = rejects_of(found)
    assert reject["place"] == "row 1" and "1,500,000 bytes" in reject["reason"] and len(reject["raw"]) == 200
    (tmp_path / "c.csv").write_text('text\nfirst\n"' + "y" * 600_000 + "\n" + "z" * 600_000 + '"\nlast\n')
    found = batches(tmp_path / "c.csv")
    assert [row["text"] for row in rows_of(found)] == ["first", "last"]
    (reject,) = rejects_of(found)
    assert reject["place"] == "row 1" and "a record of 1,200,004 bytes" in reject["reason"]


def test_suffixes_in_capitals_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(b'{"text": "x"}\n'))
    pq.write_table(pa.table({"text": ["y"]}), tmp_path / "B.PARQUET")
    assert [row["text"] for row in rows_of(batches(tmp_path))] == ["x", "y"]
