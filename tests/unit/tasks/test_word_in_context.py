"""A word in two contexts: the word is marked in both sentences."""

from __future__ import annotations

import pytest

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError
from headstart.tasks.labelled import read
from headstart.tasks.word_in_context import WordInContext


def task_of(**settings) -> WordInContext:
    return WordInContext(WordInContext.Config(**settings))


def rows(positions: str = "2-0", label: str = "T") -> Examples:
    columns = {"sentence1": ["you must carry it"], "sentence2": ["carry on"], "indexes": [positions]}
    return Examples(columns, [label], "d.jsonl")


@pytest.mark.parametrize("marker", ['"', "*"])
def test_the_word_is_marked_in_both_sentences(tiny_tokenizer, marker):
    task = task_of(marker=marker)
    task.labels = ["F", "T"]
    (feature,) = task.encode(rows(), InputSpec(tiny_tokenizer, "encoder", 64))
    expected = tiny_tokenizer(f"you must {marker} carry {marker} it", f"{marker} carry {marker} on")
    assert feature["input_ids"] == expected["input_ids"] and feature["labels"] == 1


def test_another_position_gives_other_tokens(tiny_tokenizer):
    task, spec = task_of(), InputSpec(tiny_tokenizer, "encoder", 64)
    task.labels = ["F", "T"]
    assert task.encode(rows("2-0"), spec)[0]["input_ids"] != task.encode(rows("1-0"), spec)[0]["input_ids"]


def test_a_position_beyond_the_sentence_is_refused(tiny_tokenizer):
    task = task_of()
    task.labels = ["F", "T"]
    with pytest.raises(DataError, match="position 5 in 'sentence2', which has 2 words"):
        task.encode(rows("0-5"), InputSpec(tiny_tokenizer, "encoder", 64))


def test_a_row_without_two_positions_is_refused(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("sentence1,sentence2,indexes,label\na b,c d,2,T\n", encoding="utf-8")
    with pytest.raises(DataError, match="two positions of words"):
        read(path, task_of().columns("train"))


def test_the_published_data_fit(data_folder):
    task = task_of()
    for split in ("train", "validation", "test"):
        examples = read(data_folder / "tasks" / "wic" / f"{split}.parquet", task.columns(split))
        if split == "train":
            task.fit_labels(examples)
        marked = task._marked(examples)
        assert all(text.count('" ') >= 1 for name in ("sentence1", "sentence2") for text in marked.columns[name])
    assert task.labels == ["F", "T"]
