"""Readers: every format, every fault of a row, and row counts that balance."""

from __future__ import annotations

import csv
import gzip
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headstart.core.data import Document, Reject
from headstart.core.errors import DataError
from headstart.corpus.read.readers import (
    CorpusConfig,
    Receipt,
    documents,
    expand,
    is_validation,
    read,
    sources,
    text_bytes,
)


def read_all(path: Path, **settings: object) -> list[Document | Reject]:
    return list(read(CorpusConfig.model_validate({"files": str(path), **settings})))


def texts(path: Path, **settings: object) -> list[str]:
    items = read_all(path, **settings)
    assert all(isinstance(item, Document) for item in items), items
    return [item.text for item in items if isinstance(item, Document)]


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.tokens"])
def test_plain_text_is_split_at_blank_lines_or_kept_whole(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, b"\xef\xbb\xbfone\ntwo\n \n\n\nthree\r\n\r\nfour")
    assert texts(path) == ["one\ntwo", "three", "four"]
    assert [item.id for item in read_all(path) if isinstance(item, Document)] == [f"{name}:{i}" for i in range(3)]
    assert texts(path, documents="file") == ["one\ntwo\n \n\n\nthree\r\n\r\nfour"]


def test_a_bad_line_of_text_is_rejected_and_the_lines_around_it_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt", b"good\nb\xffd\nstill good\n\nlast\n")
    items = read_all(path)
    assert items[0] == Reject("a.txt", "line 2", "not UTF-8 (byte 0xff at 1)")
    assert [item.text for item in items if isinstance(item, Document)] == ["good\nstill good", "last"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_each_bad_json_row_is_one_reject_and_the_others_are_read(tmp_path: Path, name: str) -> None:
    rows = [
        b'{"text": "first"}',
        b'{"text": "b\xffd"}',
        b'{"text": ',
        b"[1, 2]",
        b'{"other": 1}',
        b'{"text": 7}',
        b'{"text": "\\ud800"}',
        b"[" * 100_000,
        b'{"text": null}',
        b"",
        '{"text": "zuletzt: ü"}'.encode(),
    ]
    items = read_all(written(tmp_path, name, b"\n".join(rows)))
    assert len(items) == len(rows)
    rejects = [item for item in items if isinstance(item, Reject)]
    assert [reject.position for reject in rejects] == [f"row {i}" for i in range(1, 8)]
    assert [(i.id, i.text) for i in items if isinstance(i, Document)] == [
        (f"{name}:0", "first"),
        (f"{name}:8", ""),
        (f"{name}:9", ""),
        (f"{name}:10", "zuletzt: ü"),
    ]


def test_csv_keeps_newlines_in_quotes_and_rejects_bad_records(tmp_path: Path) -> None:
    content = b'id,text\n1,"two\nlines, ""quoted"""\n2,b\xffd\n3\n4,a,b\n5,"x"y\n6,' + b"z" * 200_000 + b"\n"
    items = read_all(written(tmp_path, "a.csv", content))
    kinds = [item.text if isinstance(item, Document) else item.position for item in items]
    assert kinds == ['two\nlines, "quoted"', "row 1", "row 2", "row 3", "row 4", "z" * 200_000]


def test_csv_with_an_open_quote_is_an_error_and_not_one_large_row(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", b'text\nfine\n"never closed\nrow\nrow\n')
    with pytest.raises(DataError, match="line 3 opens a quote"):
        read_all(path)


def test_parquet_reads_all_row_groups_and_rejects_bad_bytes(tmp_path: Path) -> None:
    raw = [f"text {i}".encode() for i in range(600)]
    raw[300] = b"b\xffd"
    strings = pa.Array.from_buffers(pa.string(), len(raw), pa.array(raw, pa.binary()).buffers())
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(600), "text": strings}), path, row_group_size=50)
    items = read_all(path)
    assert len(items) == 600
    assert items[300] == Reject("a.parquet", "row 300", "not UTF-8 (byte 0xff at 1)")
    assert items[599] == Document("a.parquet:599", "text 599")


def test_parquet_with_dictionary_and_null_values(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": pa.array(["a", None, "a"]).dictionary_encode()}), path)
    assert texts(path, text="body") == ["a", "", "a"]


def test_a_missing_column_is_an_error_with_the_columns_and_the_nearest(tmp_path: Path) -> None:
    pq.write_table(pa.table({"title": ["t"], "texts": ["x"], "n": [1]}), tmp_path / "a.parquet")
    written(tmp_path, "a.jsonl", b'{"title": "t", "texts": "x"}\n')
    written(tmp_path, "a.csv", b"title,texts\nt,x\n")
    for name in ("a.parquet", "a.jsonl", "a.csv"):
        with pytest.raises(DataError, match=r"no column 'text'; did you mean 'texts'\?.*title, texts.*corpus.text"):
            read_all(tmp_path / name)
    with pytest.raises(DataError, match=r"'n' of a\.parquet holds int64"):
        read_all(tmp_path / "a.parquet", text="n")


def test_rows_of_jsonl_without_the_key_are_rejects_even_the_first(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", b'{"id": 1}\n{"id": 2}\n{"id": 3, "text": "three"}\n{"id": 4}\n')
    items = read_all(path)
    assert [item.text for item in items if isinstance(item, Document)] == ["three"]
    rejects = [item for item in items if isinstance(item, Reject)]
    assert [(item.position, item.reason) for item in rejects] == [
        (f"row {row}", "no column 'text'") for row in (0, 1, 3)
    ]


@pytest.mark.parametrize("name", ["a.parquet", "a.txt.gz"])
def test_a_truncated_file_is_an_error_that_names_the_file(tmp_path: Path, name: str) -> None:
    whole = gzip.compress(b"text\n" * 10_000)
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=name):
        read_all(tmp_path / name)


def test_expand_sorts_removes_repetitions_and_explains_what_is_missing(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "odd[1].txt"):
        written(tmp_path, name, b"x")
    assert [p.name for p in expand([f"{tmp_path}/*.txt", f"{tmp_path}/a.txt"])] == ["a.txt", "b.txt", "odd[1].txt"]
    assert [p.name for p in expand([f"{tmp_path}/odd[1].txt"])] == ["odd[1].txt"]
    with pytest.raises(DataError, match=r"did you mean 'a.txt'\?"):
        expand([f"{tmp_path}/aa.txt"])
    with pytest.raises(DataError, match=r"no file matches .*\*\.jsonl"):
        expand([f"{tmp_path}/*.jsonl"])
    with pytest.raises(DataError, match="is a folder"):
        expand([str(tmp_path)])
    with pytest.raises(DataError, match="unsupported suffix"):
        read_all(written(tmp_path, "a.pdf", b"x"))


def test_receipt_counts_and_max_reject_share_is_enforced(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", b'{"text": "good"}\n{"text": " "}\nnot json\n{"text": "fine"}\n')
    receipt = Receipt()
    with pytest.raises(DataError, match=r"1 of 4 rows.*row 2: not JSON.*max_reject_share allows 1.00%"):
        list(documents(CorpusConfig(files=[str(path)]), receipt))
    receipt = Receipt()
    kept = list(documents(CorpusConfig(files=[str(path)], max_reject_share=0.25), receipt))
    assert [document.text for document in kept] == ["good", "fine"]
    assert {k: v for k, v in receipt.summary().items() if k != "examples"} == {
        "rows": 4,
        "documents": 2,
        "rejects": 1,
        "empty": 1,
        "characters": 8,
    }
    receipt.rows += 1
    with pytest.raises(DataError, match="5 rows were read, but 4 are accounted for"):
        receipt.check()


@pytest.mark.parametrize(("name", "content"), [("a.txt", b""), ("a.jsonl", b'{"text": ""}\n'), ("a.csv", b"text\n")])
def test_an_empty_corpus_is_an_error(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(DataError, match="corpus is empty"):
        list(documents(CorpusConfig(files=[str(written(tmp_path, name, content))]), Receipt()))


def test_config_accepts_one_string_and_refuses_values_out_of_range() -> None:
    assert CorpusConfig.model_validate({"files": "a.txt"}).files == ["a.txt"]
    for bad in ({"validation": 0}, {"validation": 0.6}, {"files": []}, {"documents": "line"}):
        with pytest.raises(ValidationError):
            CorpusConfig.model_validate({"files": "a.txt", **bad})


def test_split_depends_on_the_id_alone_and_has_the_configured_fraction() -> None:
    ids = [f"wiki.parquet:{i}" for i in range(20_000)]
    held_out = {i for i in ids if is_validation(i, 0.05, seed=1)}
    assert 0.045 < len(held_out) / len(ids) < 0.055
    assert held_out == {i for i in reversed(ids) if is_validation(i, 0.05, seed=1)}
    assert held_out != {i for i in ids if is_validation(i, 0.05, seed=2)}
    assert held_out < {i for i in ids if is_validation(i, 0.1, seed=1)}


def test_descriptions_of_files_survive_a_copy_and_detect_a_change(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    content = bytes(3 << 20)
    one, two = written(tmp_path, "a.txt", content), written(tmp_path / "copy", "a.txt", content)
    described = [sources(CorpusConfig(files=[str(path)])) for path in (one, two)]
    assert described[0] == described[1]
    one.write_bytes(content[:-1] + b"x")
    assert sources(CorpusConfig(files=[str(one)])) != described[0]


readable = st.text(st.characters(codec="utf-8"), max_size=30)


@settings(max_examples=40, deadline=None)
@given(st.lists(readable, min_size=1, max_size=8))
def test_any_text_round_trips_through_jsonl_csv_and_parquet(rows: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
        with (folder / "a.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["text"], *([row] for row in rows)])
        pq.write_table(pa.table({"text": rows}), folder / "a.parquet")
        for file_name in ("a.jsonl", "a.csv", "a.parquet"):
            assert texts(folder / file_name) == rows


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["a.txt", "a.jsonl", "a.csv"]))
def test_any_bytes_are_accounted_for_or_refused_with_a_message(content: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(b"text\n" + content if name == "a.csv" else b'{"text": "x"}\n' + content)
        receipt = Receipt()
        try:
            for document in documents(CorpusConfig(files=[str(path)], max_reject_share=1), receipt):
                document.text.encode()
        except DataError as error:
            assert "corpus is empty" in str(error) or "never closed" in str(error)


def test_real_articles(data_folder: Path) -> None:
    path = data_folder / "corpora" / "wikipedia-en-2015" / "part-00.parquet"
    receipt = Receipt()
    articles = [d for d, _ in zip(documents(CorpusConfig(files=[str(path)]), receipt), range(200), strict=False)]
    assert len({article.id for article in articles}) == 200
    assert all(len(article.text.split()) >= 50 for article in articles)
    with pytest.raises(DataError, match=r"It has: id, title, text"):
        next(iter(read(CorpusConfig(files=[str(path)], text="body"))))


def test_text_bytes_are_those_of_the_decompressed_text(tmp_path):
    text = "one line of text\n" * 1000
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()) * 3)
    table = pa.table({"text": [f"{i} {text}" for i in range(10)], "other": ["x" * 5000] * 10})
    pq.write_table(table, tmp_path / "c.parquet", compression="zstd")
    assert text_bytes(CorpusConfig(files=[str(tmp_path / "a.txt")])) == len(text)
    assert text_bytes(CorpusConfig(files=[str(tmp_path / "b.txt.gz")])) == 3 * len(text)
    assert text_bytes(CorpusConfig(files=[str(tmp_path / "c.parquet")])) == pytest.approx(10 * len(text), rel=0.05)


def test_text_bytes_of_zst_with_and_without_a_stated_size(tmp_path):
    zstandard = pytest.importorskip("zstandard", reason="pip install 'headstart[corpus]'")
    text = b"one line of text\n" * 1000
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(text)
    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress(text) + streamed)
    assert text_bytes(CorpusConfig(files=[str(tmp_path / "a.txt.zst")])) == 2 * len(text)
