"""Labeled rows: all rows are read, or the error names the file and the row."""

from __future__ import annotations

import csv
import datetime
import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.tasks import labelled
from headstart.tasks.classify import Classify

TEXTS = ["plain", 'with "quotes", commas', "zwölf Boxkämpfer 🥊", "NA", "12", "null", ""]
LABELS = ["a", "b", "a", "b", "a", "b", "a"]


def read(path, text=("text",), label="label") -> Examples:
    return labelled.read(path, Classify(Classify.Config(text=list(text), label=label)).columns("train"))


def write(path, texts, labels, more=None):
    rows = [{"text": t, "label": y, "other": "x"} for t, y in zip(texts, labels, strict=True)]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix in (".jsonl", ".json"):
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None} if path.suffix == ".tsv" else {}
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["text", "label", "other"], **dialect)
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet", ".CSV"])
def test_each_format_gives_the_same_rows(tmp_path, suffix):
    path = write(tmp_path / f"data{suffix}", TEXTS, LABELS)
    examples = read(path)
    assert examples.columns == {"text": TEXTS} and list(examples.labels) == LABELS and examples.source == str(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("labels", [[0, 1, 2], [True, False, True], [0.5, -1.0, 2.25], ["x", "y", "z"]])
def test_labels_keep_their_type(tmp_path, suffix, labels):
    examples = read(write(tmp_path / f"data{suffix}", ["a", "b", "c"], labels))
    assert list(examples.labels) == labels and [type(v) for v in examples.labels] == [type(v) for v in labels]


def test_pairs_come_from_two_columns(tmp_path):
    examples = read(write(tmp_path / "d.csv", ["a", "b"], [0, 1]), ["text", "other"])
    assert examples.columns == {"text": ["a", "b"], "other": ["x", "x"]}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_long_files_and_texts_with_many_lines_are_read_completely(tmp_path, suffix):
    texts = [f'line one of {i}, long enough that blocks end inside\nline "two"\n\nend' for i in range(20_000)]
    texts[7] = "x" * 3_000_000
    examples = read(write(tmp_path / f"d{suffix}", texts, ["a", "b"] * 10_000))
    assert examples.columns["text"] == texts


def test_a_single_quote_character_swallows_no_rows_of_a_tsv(tmp_path):
    path = tmp_path / "d.tsv"
    path.write_text('text\tlabel\n"so he said\t1\nsecond\t0\nthe end"\t1\n')
    examples = read(path)
    assert examples.columns["text"] == ['"so he said', "second", 'the end"'] and examples.labels == [1, 0, 1]


def test_a_byte_order_mark_is_not_part_of_the_column_name(tmp_path):
    path = tmp_path / "d.csv"
    path.write_bytes("\ufefftext,label\na,1\n".encode())
    assert len(read(path)) == 1


def error_of(path, text=("text",), label="label") -> str:
    with pytest.raises(DataError) as caught:
        read(path, text, label)
    assert str(path.name) in str(caught.value)
    return str(caught.value)


def test_a_wrong_column_name_gets_a_suggestion(tmp_path):
    path = write(tmp_path / "d.csv", ["a"], [1])
    assert "has no column 'txt'; did you mean 'text'?" in error_of(path, ["txt"])
    message = error_of(path, label="lable")
    assert "did you mean 'label'?" in message and "Its columns: text, label, other" in message


def test_a_wrong_file_name_gets_a_suggestion(tmp_path):
    write(tmp_path / "train.csv", ["a"], [1])
    assert "did you mean 'train.csv'?" in error_of(tmp_path / "trian.csv")


@pytest.mark.parametrize(
    ("suffix", "missing"),
    [(s, m) for s in (".csv", ".jsonl", ".parquet") for m in (None, "")] + [(".csv", math.nan), (".parquet", math.nan)],
)
def test_a_missing_label_is_reported_with_its_row(tmp_path, suffix, missing):
    others = [1.0, 2.0] if isinstance(missing, float) else ["a", "b"]
    path = write(tmp_path / f"d{suffix}", ["a", "b", "c"], [others[0], missing, others[1]])
    assert "row 2, column 'label' is empty" in error_of(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_missing_text_and_a_wrong_type_are_reported_with_their_rows(tmp_path, suffix):
    assert "row 3, column 'text' is empty" in error_of(write(tmp_path / f"d{suffix}", ["a", "b", None], [1, 2, 3]))
    assert "row 1, column 'text' is a int: 5" in error_of(write(tmp_path / f"e{suffix}", [5, 6], [1, 2]))


@pytest.mark.parametrize("label", [["a"], {"a": 1}, datetime.date(2024, 1, 1), b"x"])
def test_a_label_that_is_neither_word_nor_number_is_rejected(tmp_path, label):
    assert "Every row needs a label: a word or a number" in error_of(
        write(tmp_path / "d.parquet", ["a", "b"], [label] * 2)
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.csv", b""), ("d.csv", b"text,label\n"), ("d.csv", b"text,label\na,1\nb\n"),
        ("d.csv", b"text,text,label\na,b,1\n"), ("d.parquet", b"PAR1 but no more"),
        ("d.jsonl", b'{"text": "a", "label": 1'), ("d.json", b'[{"text": "a", "label": 1}'), ("d.xlsx", b"PK"),
        ("d", b"text,label\na,1\n"),
    ],
)  # fmt: skip
def test_a_broken_file_gives_a_data_error(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    error_of(tmp_path / name)


def test_all_incomplete_rows_are_counted_at_once(tmp_path):
    path = write(tmp_path / "d.jsonl", ["a", None, "c", "d", "e"], ["x", "y", None, "x", ""])
    message = error_of(path)
    assert "row 2, column 'text' is empty; 2 other rows are incomplete too: 3, 5" in message
    assert "data.skip_incomplete" in message


def test_incomplete_rows_can_be_left_out(tmp_path, caplog):
    path = write(tmp_path / "d.jsonl", ["a", None, "c", "d", "e"], ["x", "y", None, "x", ""])
    columns = Classify(Classify.Config()).columns("train")
    with caplog.at_level("WARNING", logger="headstart"):
        examples = labelled.read(path, columns, skip_incomplete=True)
    assert (examples.columns["text"], list(examples.labels)) == (["a", "d"], ["x", "x"])
    assert "3 of 5 rows left out" in caplog.text
    with pytest.raises(DataError, match="is empty"):
        labelled.read(write(tmp_path / "e.jsonl", [None], ["x"]), columns, skip_incomplete=True)


def test_what_was_recognized_is_logged(tmp_path, caplog):
    (tmp_path / "d.csv").write_bytes("text;label\ntrès bon;1\nmauvais;0\n".encode("cp1252"))
    with caplog.at_level("INFO", logger="headstart"):
        examples = read(tmp_path / "d.csv")
    assert examples.columns["text"] == ["très bon", "mauvais"] and list(examples.labels) == [1, 0]
    assert "CSV, separated by semicolons, CP1252" in caplog.text


def numbered(count: int) -> Examples:
    return Examples({"text": [f"t{i}" for i in range(count)]}, list(range(count)), "d.csv")


@given(st.integers(1, 60), st.integers(1, 80), st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_sampled_rows_are_a_pure_function_of_the_seed(size, count, seed):
    whole = numbered(size)
    sample = labelled.sample_rows(whole, count, seed, "labels")
    assert sample == labelled.sample_rows(whole, count, seed, "labels")
    assert len(set(sample.labels)) == len(sample) == min(size, count)
    assert [f"t{label}" for label in sample.labels] == sample.columns["text"]


def test_seeds_sample_different_rows_and_larger_samples_contain_smaller_ones():
    whole = numbered(1000)
    few, many = (labelled.sample_rows(whole, n, 3, "labels").labels for n in (20, 50))
    assert many[:20] == few
    assert set(labelled.sample_rows(whole, 20, 4, "labels").labels) != set(few)
    assert labelled.sample_rows(whole, None, 0, "labels") is whole


def test_a_subset_of_test_rows_is_spread_and_in_order():
    whole = numbered(1000)
    labels = labelled.fixed_subset(whole, 50).labels
    assert labels == sorted(set(labels)) and len(labels) == 50 and labels[10] > 50
    assert labelled.fixed_subset(whole, 1000) is whole and labelled.fixed_subset(whole, None) is whole


@given(st.integers(2, 80), st.data())
@settings(deadline=None, max_examples=50)
def test_a_split_is_a_partition(size, data):
    count = data.draw(st.integers(1, size - 1))
    rest, held_out = labelled.split_off(numbered(size), count, "validation")
    assert len(held_out) == count and sorted([*rest.labels, *held_out.labels]) == list(range(size))
    assert (rest, held_out) == labelled.split_off(numbered(size), count, "validation")


@pytest.mark.parametrize("count", [-1, 0, 5, 6])
def test_a_split_with_an_empty_part_is_rejected(count):
    with pytest.raises(DataError, match=rf"data\.validation is {count}, but d\.csv has 5 rows"):
        labelled.split_off(numbered(5), count, "validation")


def test_a_share_splits_off_that_part_and_each_split_other_rows():
    rest, test = labelled.split_off(numbered(50), 0.2, "test")
    assert (len(rest), len(test)) == (40, 10)
    assert test != labelled.split_off(numbered(50), 0.2, "validation")[1]
    with pytest.raises(DataError, match=r"data\.test is 0\.001"):
        labelled.split_off(numbered(50), 0.001, "test")


def test_labels_that_are_probably_mistakes_are_named():
    labels = ["positif"] * 50 + ["négatif"] * 50 + [" positif", "Positif", "neutre"]
    doubts = labelled.doubtful_labels(Examples({"text": ["a"] * len(labels)}, labels, "d.csv"))
    assert "'positif' and ' positif' and 'Positif'" in doubts[0]
    assert "'neutre'" in doubts[1]
    assert labelled.doubtful_labels(Examples({"text": ["a", "b"]}, ["x", "y"], "d.csv")) == []
