"""Labelled rows: every one read, or the fault named with its file and row."""

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
        plain = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None} if path.suffix == ".tsv" else {}
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["text", "label", "other"], **plain)
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet", ".CSV"])
def test_each_format_gives_the_same_rows(tmp_path, suffix):
    path = write(tmp_path / f"data{suffix}", TEXTS, LABELS)
    found = read(path)
    assert found.columns == {"text": TEXTS} and list(found.labels) == LABELS and found.source == str(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("labels", [[0, 1, 2], [True, False, True], [0.5, -1.0, 2.25], ["x", "y", "z"]])
def test_labels_keep_their_type(tmp_path, suffix, labels):
    found = read(write(tmp_path / f"data{suffix}", ["a", "b", "c"], labels))
    assert list(found.labels) == labels and [type(v) for v in found.labels] == [type(v) for v in labels]


def test_pairs_come_from_two_columns(tmp_path):
    found = read(write(tmp_path / "d.csv", ["a", "b"], [0, 1]), ["text", "other"])
    assert found.columns == {"text": ["a", "b"], "other": ["x", "x"]}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_long_files_and_texts_of_many_lines_are_read_whole(tmp_path, suffix):
    texts = [f'line one of {i}, long enough that blocks end inside\nline "two"\n\nend' for i in range(20_000)]
    texts[7] = "x" * 3_000_000
    found = read(write(tmp_path / f"d{suffix}", texts, ["a", "b"] * 10_000))
    assert found.columns["text"] == texts


def test_a_lone_quote_swallows_no_rows_of_a_tsv(tmp_path):
    path = tmp_path / "d.tsv"
    path.write_text('text\tlabel\n"so he said\t1\nsecond\t0\nthe end"\t1\n')
    found = read(path)
    assert found.columns["text"] == ['"so he said', "second", 'the end"'] and found.labels == [1, 0, 1]


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    path = tmp_path / "d.csv"
    path.write_bytes("\ufefftext,label\na,1\n".encode())
    assert len(read(path)) == 1


def refused(path, text=("text",), label="label") -> str:
    with pytest.raises(DataError) as caught:
        read(path, text, label)
    assert str(path.name) in str(caught.value)
    return str(caught.value)


def test_a_wrong_column_is_named_with_the_right_one(tmp_path):
    path = write(tmp_path / "d.csv", ["a"], [1])
    assert "has no column 'txt'; did you mean 'text'?" in refused(path, ["txt"])
    message = refused(path, label="lable")
    assert "did you mean 'label'?" in message and "Its columns: text, label, other" in message


def test_a_missing_file_is_named_with_its_neighbour(tmp_path):
    write(tmp_path / "train.csv", ["a"], [1])
    assert "did you mean 'train.csv'?" in refused(tmp_path / "trian.csv")


@pytest.mark.parametrize(
    ("suffix", "missing"),
    [(s, m) for s in (".csv", ".jsonl", ".parquet") for m in (None, "")] + [(".csv", math.nan), (".parquet", math.nan)],
)
def test_a_row_without_a_label_is_named(tmp_path, suffix, missing):
    others = [1.0, 2.0] if isinstance(missing, float) else ["a", "b"]
    path = write(tmp_path / f"d{suffix}", ["a", "b", "c"], [others[0], missing, others[1]])
    assert "row 2, column 'label' holds nothing" in refused(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_row_without_a_text_or_with_another_type_is_named(tmp_path, suffix):
    assert "row 3, column 'text' holds nothing" in refused(write(tmp_path / f"d{suffix}", ["a", "b", None], [1, 2, 3]))
    assert "row 1, column 'text' holds a int, 5" in refused(write(tmp_path / f"e{suffix}", [5, 6], [1, 2]))


@pytest.mark.parametrize("label", [["a"], {"a": 1}, datetime.date(2024, 1, 1), b"x"])
def test_a_label_that_is_neither_word_nor_number_is_refused(tmp_path, label):
    assert "Every row needs a label: a word or a number" in refused(
        write(tmp_path / "d.parquet", ["a", "b"], [label] * 2)
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.csv", b""), ("d.csv", b"text,label\n"), ("d.csv", b"text,label\na,1\nb\n"),
        ("d.csv", b"text,label\n\xfc,1\n"), ("d.csv", b"text,text,label\na,b,1\n"), ("d.parquet", b"PAR1 but no more"),
        ("d.jsonl", b'{"text": "a", "label": 1'), ("d.json", b'[{"text": "a", "label": 1}]'), ("d.xlsx", b"PK"),
        ("d", b"text,label\na,1\n"),
    ],
)  # fmt: skip
def test_a_broken_file_is_an_error_for_a_person(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name)


def numbered(count: int) -> Examples:
    return Examples({"text": [f"t{i}" for i in range(count)]}, list(range(count)), "d.csv")


@given(st.integers(1, 60), st.integers(1, 80), st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_chosen_rows_are_a_pure_function_of_the_seed(size, count, seed):
    whole = numbered(size)
    chosen = labelled.choose(whole, count, seed, "labels")
    assert chosen == labelled.choose(whole, count, seed, "labels")
    assert len(set(chosen.labels)) == len(chosen) == min(size, count)
    assert [f"t{label}" for label in chosen.labels] == chosen.columns["text"]


def test_seeds_choose_other_rows_and_more_rows_hold_the_fewer():
    whole = numbered(1000)
    few, many = (labelled.choose(whole, n, 3, "labels").labels for n in (20, 50))
    assert many[:20] == few, "a larger number of labels should add to the smaller"
    assert set(labelled.choose(whole, 20, 4, "labels").labels) != set(few)
    assert labelled.choose(whole, None, 0, "labels") is whole


def test_some_test_rows_are_spread_and_in_order():
    whole = numbered(1000)
    chosen = labelled.some(whole, 50).labels
    assert chosen == sorted(set(chosen)) and len(chosen) == 50 and chosen[10] > 50
    assert labelled.some(whole, 1000) is whole and labelled.some(whole, None) is whole


@given(st.integers(2, 80), st.data())
@settings(deadline=None, max_examples=50)
def test_rows_split_off_are_taken_out(size, data):
    count = data.draw(st.integers(1, size - 1))
    rest, held_out = labelled.split_off(numbered(size), count)
    assert len(held_out) == count and sorted([*rest.labels, *held_out.labels]) == list(range(size))
    assert (rest, held_out) == labelled.split_off(numbered(size), count)


@pytest.mark.parametrize("count", [-1, 0, 5, 6])
def test_a_split_that_leaves_nothing_is_refused(count):
    with pytest.raises(DataError, match=rf"asks for {count} rows of d\.csv, which has 5"):
        labelled.split_off(numbered(5), count)
