"""Labeled rows from several files, patterns, folders and folders of `datasets`, read as one table."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.core import file_hashes
from headstart.core.data import InputColumn
from headstart.core.errors import DataError
from headstart.tasks import labelled, tables
from headstart.tasks.labelled import LABEL, LABELS, TEXT, TEXTS
from headstart.tasks.table_files import DatasetSplit, locate
from headstart.tasks.table_rows import read_rows, survey

COLUMNS = (InputColumn("text", TEXT, "task.text"), InputColumn("label", LABEL, "task.label", is_gold=True))
CLASSES = {"names": ["negative", "positive"], "_type": "ClassLabel"}


def features(**columns):
    """Return the metadata that `datasets` writes into the schema of a file."""
    return {b"huggingface": json.dumps({"info": {"features": columns}}).encode()}


def rows_of(source):
    located = locate(source)
    forms = [tables.recognize(path) for path in located.files]
    rows = list(read_rows(located, forms))
    assert survey(located, forms).rows == len(rows)
    return [row.values for row in rows]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\none,x\ntwo,y\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("label;text\nx;three\n", encoding="utf-8")
    (tmp_path / "c.jsonl").write_text('{"text": "four", "label": "y", "more": 1}\n', encoding="utf-8")
    return tmp_path


def test_several_files_and_patterns_are_read_one_after_another(files, monkeypatch):
    examples = labelled.read([str(files / "*.csv"), str(files / "c.jsonl")], COLUMNS)
    assert examples.columns["text"] == ["one", "two", "three", "four"] and examples.labels == ["x", "y", "x", "y"]
    assert [row["text"] for row in rows_of([str(files / "*.csv"), str(files / "c.jsonl")])] == examples.columns["text"]
    monkeypatch.chdir(files)
    assert labelled.read("?.csv", COLUMNS).labels == ["x", "y", "x"]
    with pytest.raises(DataError, match=r"a\.csv is listed twice"):
        locate(["a.csv", "*.csv"])
    with pytest.raises(DataError, match=r"no file matches z\*\.csv"):
        locate("z*.csv")


def test_the_content_of_one_file_has_the_hash_of_its_bytes(files):

    assert locate(files / "a.csv").sha256() == file_hashes.sha256(files / "a.csv")
    both, other = locate(str(files / "*.csv")).sha256(), locate([str(files / "b.csv"), str(files / "a.csv")]).sha256()
    assert both != other, "the order of the rows counts"


def test_a_faulty_row_is_named_with_its_file(files):
    (files / "b.csv").write_text("text,label\nthree,x\nfour,\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"b\.csv, row 2, column 'label' is empty"):
        labelled.read(str(files / "?.csv"), COLUMNS)


def test_files_whose_columns_have_other_types_are_refused(files):
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), files / "d.parquet")
    with pytest.raises(DataError, match="do not fit together"):
        labelled.read([str(files / "a.csv"), str(files / "d.parquet")], COLUMNS)


def test_a_folder_of_parquet_and_arrow_files(tmp_path):
    folder = tmp_path / "train"
    (folder / "deeper").mkdir(parents=True)
    tables_of = [pa.table({"text": [f"text {i}"], "label": [f"label {i}"]}) for i in range(3)]
    pq.write_table(tables_of[0], folder / "0.parquet")
    with pa.ipc.new_stream(str(folder / "1.arrow"), tables_of[1].schema) as stream:
        stream.write_table(tables_of[1])
    with pa.ipc.new_file(str(folder / "deeper" / "2.arrow"), tables_of[2].schema) as file:
        file.write_table(tables_of[2])
    (folder / "README.md").write_text("not a table", encoding="utf-8")
    assert labelled.read(folder, COLUMNS).labels == ["label 0", "label 1", "label 2"]
    assert rows_of(folder) == [{"text": f"text {i}", "label": f"label {i}"} for i in range(3)]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="without Parquet or Arrow files"):
        locate(tmp_path / "empty")


def test_class_numbers_become_class_names(tmp_path):
    path = tmp_path / "a.parquet"
    schema = pa.schema(
        [("text", pa.string()), ("label", pa.int64()), ("tags", pa.list_(pa.int64())), ("number", pa.int64())],
        metadata=features(label=CLASSES, tags={"feature": CLASSES, "_type": "List"}, number={"dtype": "int64"}),
    )
    columns = {"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0, 1], [], None], "number": [0, 1, 2]}
    pq.write_table(pa.table(columns, schema), path)
    expected = {"label": ["positive", "negative", None], "tags": [["negative", "positive"], [], None]}
    table, _ = tables.read(path)
    assert table.to_pydict() == {**columns, **expected}
    rows = rows_of(path)
    assert {name: [row[name] for row in rows] for name in columns} == {**columns, **expected}
    assert survey(locate(path), [tables.recognize(path)]).schema.field("label").type == pa.string()
    with pytest.raises(DataError, match="row 3, column 'label' is empty"):
        labelled.read(path, COLUMNS)


def test_a_class_number_without_a_name_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"label": [0, 5]}, pa.schema([("label", pa.int64())], features(label=CLASSES))), path)
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as parquet"):
        tables.read(path)
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as parquet"):
        rows_of(path)


def test_folders_that_datasets_saved(tmp_path):
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    names = datasets.Features({
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["negative", "positive"]),
        "words": datasets.List(datasets.Value("string")),
        "tags": datasets.List(datasets.ClassLabel(names=["O", "B-X"])),
    })  # fmt: skip
    columns = {
        "text": [f"text {i}" for i in range(10)], "label": [i % 2 for i in range(10)],
        "words": [["a", "b"]] * 10, "tags": [[0, 1]] * 10,
    }  # fmt: skip
    train = datasets.Dataset.from_dict(columns, features=names)
    shuffled = train.shuffle(seed=1).select(range(6))
    both = datasets.DatasetDict({"train": train, "test": shuffled})
    both.save_to_disk(str(tmp_path / "saved"), num_shards={"train": 3, "test": 1})
    shuffled.save_to_disk(str(tmp_path / "single"))
    read = labelled.read(DatasetSplit(str(tmp_path / "saved"), "train"), COLUMNS)
    assert read.columns["text"] == train["text"][:] and read.labels == ["negative", "positive"] * 5
    for source in (tmp_path / "single", DatasetSplit(str(tmp_path / "saved"), "test")):
        assert labelled.read(source, COLUMNS).columns["text"] == shuffled["text"][:]
    tagged = (InputColumn("words", TEXTS, "task.words"), InputColumn("tags", LABELS, "task.label", is_gold=True))
    assert labelled.read(tmp_path / "single", tagged).labels == [["O", "B-X"]] * 6
    with pytest.raises(DataError, match=r"has no split 'validation'.*Its splits: train, test"):
        locate(DatasetSplit(str(tmp_path / "saved"), "validation"))
    with pytest.raises(DataError, match=r"has several splits \(train, test\)"):
        locate(tmp_path / "saved")
    with pytest.raises(DataError, match="single data set without splits"):
        locate(DatasetSplit(str(tmp_path / "single"), "train"))
