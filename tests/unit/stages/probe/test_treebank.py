"""Treebanks: what is not a head, a word, a relation or a tag is named with its row."""

from __future__ import annotations

import json

import pytest

from headstart.core.errors import DataError
from headstart.stages.probe.hidden.label_tasks import read_entities, read_treebank
from headstart.stages.probe.treebank import read_tagged, read_trees

ROW = {"tokens": ["the", "king"], "heads": [2, 0], "relations": ["det", "root"], "tags": ["DET", "NOUN"]}


@pytest.fixture
def treebank(tmp_path):
    """JSON Lines of sound rows, the second of which is changed; columns without a value are left out."""

    def write(rows=20, every=False, **changed):
        path = tmp_path / "trees.jsonl"
        lines = [ROW | (changed if every or number == 2 else {}) for number in range(1, rows + 1)]
        kept = [{name: value for name, value in line.items() if value is not ...} for line in lines]
        path.write_text("\n".join(map(json.dumps, kept)), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": [2, None]}, "row 2: head 2 is null, not an integer"),
        ({"tokens": ["the", None]}, "row 2: token 2 is null, not a text"),
        ({"relations": [None, "root"]}, "row 2: relation 1 is null, not a text"),
        ({"tags": ["DET", None]}, "row 2: tag 2 is null, not a text"),
    ],
)
def test_a_value_that_is_missing_is_refused(treebank, changed, message):
    path = treebank(**changed)
    with pytest.raises(DataError, match=rf"{path.name}, {message}.*Repair or remove the row"):
        read_treebank(path, path.name, 20, 0)


@pytest.mark.parametrize("heads", [["2", "0"], [2.0, 0.5], [True, False]])
def test_heads_that_are_not_integers_are_refused(treebank, heads):
    path = treebank(heads=heads, every=True)
    with pytest.raises(DataError, match=rf"row 1: head 1 is {heads[0]!r}, not an integer.*Convert the heads"):
        read_trees(path)


def test_words_that_are_numbers_are_refused(treebank):
    with pytest.raises(DataError, match="row 1: token 1 is 7, not a text"):
        read_trees(treebank(tokens=[7, 8], every=True))


@pytest.mark.parametrize("changed", [{"tokens": ["the", None]}, {"tags": [None, "NOUN"]}])
def test_tags_without_trees_are_checked_too(treebank, changed):
    path = treebank(**changed)
    for read in (read_tagged, lambda path: read_entities(path, path.name, 20, 0)):
        with pytest.raises(DataError, match=r"row 2: (token 2|tag 1) is null, not a text"):
            read(path)


def test_tags_may_be_numbers_or_absent(treebank):
    assert read_tagged(treebank(tags=[3, 7], every=True))[0].tags == ["3", "7"]
    assert read_trees(treebank(tags=..., every=True))[0].tags == []
