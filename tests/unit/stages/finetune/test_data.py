"""The three splits of a run: files, numbers of rows or shares of one file."""

from __future__ import annotations

import pytest

from headstart.core.errors import DataError
from headstart.stages.finetune.data import read_data
from headstart.stages.finetune.recipe import LabeledData
from headstart.tasks.classify import Classify


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"text number {i},{'ab'[i % 2]}\n" for i in range(100)))
    return str(path)


def read(**data):
    return read_data(LabeledData.model_validate(data), Classify(Classify.Config()))


def test_one_file_is_split_three_ways_by_shares(rows):
    splits = read(train=rows, validation=0.1, test=0.2)
    texts = [set(split.columns["text"]) for split in (splits.train, splits.validation, splits.test)]
    assert [len(split) for split in texts] == [72, 8, 20]
    assert len(set.union(*texts)) == 100
    again = read(train=rows, validation=0.1, test=0.2)
    assert again == splits


def test_a_number_of_validation_rows_beside_a_share_of_test_rows(rows):
    splits = read(train=rows, validation=10, test=0.25)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (65, 10, 25)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5])
def test_a_share_lies_between_zero_and_one(rows, share):
    with pytest.raises(ValueError, match=r"greater than 0|less than 1|valid"):
        LabeledData.model_validate({"train": rows, "validation": 10, "test": share})


def test_fewer_rows_than_asked_for_are_reported(rows, caplog):
    with caplog.at_level("WARNING", logger="headstart"):
        read(train=rows, validation=0.1, test=0.2, train_rows=5000, test_rows=4000)
    assert "data.train_rows is 5000, but there are only 72 rows" in caplog.text
    assert "data.test_rows is 4000, but there are only 20 rows" in caplog.text


def test_labels_that_differ_by_case_are_reported(tmp_path, caplog):
    path = tmp_path / "rows.csv"
    labels = ["positif", "négatif"] * 30 + [" positif", "Positif"]
    path.write_text("text,label\n" + "".join(f"text {i},{label}\n" for i, label in enumerate(labels)))
    with caplog.at_level("WARNING", logger="headstart"):
        read(train=str(path), validation=0.1, test=0.1)
    assert "differ only by case or spaces" in caplog.text


def test_incomplete_rows_stop_a_run_unless_they_are_left_out(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2] if i % 10 else ''}\n" for i in range(50)))
    with pytest.raises(DataError, match="4 other rows are incomplete too"):
        read(train=str(path), validation=0.1, test=0.2)
    splits = read(train=str(path), validation=0.1, test=0.2, skip_incomplete=True)
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 45


def test_the_new_keys_leave_old_recipes_as_they_are(rows):
    data = LabeledData.model_validate({"train": rows, "validation": 10, "test": rows})
    assert set(data.model_dump()) == {"train", "validation", "test", "train_rows", "test_rows"}
    assert isinstance(data.validation, int)
