"""Rows are read one after another; a row that cannot be read does not end the reading."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.core.errors import DataError
from headstart.tasks import tables
from headstart.tasks.table_files import locate
from headstart.tasks.table_rows import read_rows, survey


def read(path):
    located, forms = locate(path), [tables.recognize(path)]
    rows, found = list(read_rows(located, forms)), survey(located, forms)
    assert found.rows == len(rows)
    return rows, found.schema


def test_csv_cells_are_texts(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('a,b\n1,"two\nlines"\n\n007,\n1,2,3\n5\n', encoding="utf-8")
    rows, schema = read(path)
    assert schema == pa.schema([("a", pa.string()), ("b", pa.string())])
    assert [row.values for row in rows[:2]] == [{"a": "1", "b": "two\nlines"}, {"a": "007", "b": ""}]
    assert [row.problem for row in rows] == [
        "", "", "the row has 3 cells, but the header has 2", "the row has 1 cells, but the header has 2",
    ]  # fmt: skip


def test_tsv_has_no_quotes(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('a\tb\n"one\ttwo\nthree\tfour"\n', encoding="utf-8")
    assert [row.values["a"] for row in read(path)[0]] == ['"one', "three"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_encodings(tmp_path, encoding):
    for path, text in ((tmp_path / "a.csv", "text;n\nfiancée;1\n"), (tmp_path / "a.jsonl", '{"text": "fiancée"}\n')):
        path.write_bytes(text.encode(encoding))
        assert read(path)[0][0].values["text"] == "fiancée"


def test_types_of_json_columns_fit_all_rows(tmp_path):
    path = tmp_path / "a.jsonl"
    first = {"whole": 1, "mixed": 1, "huge": 1, "list": ["a"], "none": None}
    last = {"whole": 1.5, "mixed": "b", "huge": 2**70, "list": [], "late": True}
    path.write_text("".join(json.dumps(row) + "\n" for row in [*[first] * 5000, last]), encoding="utf-8")
    rows, schema = read(path)
    assert rows[0].values == first and rows[-1].values == last
    types = {"whole": pa.float64(), "mixed": pa.string(), "huge": pa.string(), "list": pa.list_(pa.string()),
             "none": pa.string(), "late": pa.bool_()}  # fmt: skip
    assert {field.name: field.type for field in schema} == types


def test_parquet_rows_cross_row_groups(tmp_path):
    pq.write_table(pa.table({"n": range(100)}), tmp_path / "a.parquet", row_group_size=7)
    assert [row.values["n"] for row in read(tmp_path / "a.parquet")[0]] == list(range(100))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"[{", "cannot be read as JSON"), ("a.csv", b"", "is empty"), ("a.csv", b"a,a\n1,2\n", "several"),
        ("a.parquet", b"torn", "cannot be read as parquet"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / name)


MEASURE = """
import resource, sys
from pathlib import Path
from headstart.tasks import tables
from headstart.tasks.table_files import locate
from headstart.tasks.table_rows import read_rows, survey
for name in sys.argv[1:]:
    located, forms = locate(name), [tables.recognize(Path(name))]
    assert sum(1 for _ in read_rows(located, forms)) == survey(located, forms).rows
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path, suffix):
    """Files of 4 and of 80 MB; the peak is in kB."""
    paths = []
    for count in (10_000, 200_000):
        paths.append(tmp_path / f"{count}.{suffix}")
        values = [f"{i} {'x' * 400} fiancée" for i in range(count)]
        if suffix == "parquet":
            pq.write_table(pa.table({"text": values}), paths[-1], use_dictionary=False, compression="none")
        else:
            lines = values if suffix == "csv" else (json.dumps({"text": value}) for value in values)
            header = "text\n" if suffix == "csv" else ""
            paths[-1].write_bytes((header + "\n".join(lines)).encode("cp1252" if suffix == "csv" else "utf-8"))
    done = subprocess.run([sys.executable, "-c", MEASURE, *paths], capture_output=True, text=True, check=True)
    few, many = map(int, done.stdout.split())
    assert many - few < 30_000, f"{few:,} → {many:,} kB"
