"""Test rows that occur in the pre-training corpus, for several kinds of tasks."""

from __future__ import annotations

import json

import pytest

from headstart.core import config, registry
from headstart.studies.run import overlap as study_overlap
from headstart.studies.run.nodes import OverlapRecipe
from headstart.tasks import labelled

SHARED = "the quick brown fox jumps over the lazy dog while seven grey geese fly slowly past"
OTHER = "a slow red hen walks under a busy cat while nine white swans swim quickly by here"


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        (
            {"kind": "classify", "text": ["one", "two"], "label": "label"},
            [{"one": OTHER, "two": SHARED, "label": 0}, {"one": OTHER, "two": "", "label": 1}],
        ),
        (
            {"kind": "tag", "words": "words", "label": "tags"},
            [{"words": text.split(), "tags": ["X"] * len(text.split())} for text in (SHARED, OTHER)],
        ),
    ],
)
def test_rows_are_found_by_their_texts(tmp_path, task, rows):
    pytest.importorskip("daft", reason="`pip install 'headstart[corpus]'`")
    (tmp_path / "corpus.txt").write_text(f"It is said that {SHARED}, or was.\n\nAnd nothing else.\n", encoding="utf-8")
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    recipe = {"corpus": {"files": [f"{tmp_path}/corpus.txt"]}, "test": f"{tmp_path}/test.jsonl", "task": task}
    counts = study_overlap.count(config.fill(OverlapRecipe, recipe), tmp_path)
    assert (counts["rows"], counts["of"]) == ([0], 2)


def test_only_the_tested_rows_are_counted(tmp_path):
    pytest.importorskip("daft", reason="`pip install 'headstart[corpus]'`")
    (tmp_path / "corpus.txt").write_text(f"It is said that {SHARED}, or was.\n", encoding="utf-8")
    rows = [{"text": SHARED if number % 3 else OTHER, "label": number % 2} for number in range(12)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    task = {"kind": "classify", "text": ["text"], "label": "label"}
    recipe = {"corpus": {"files": [f"{tmp_path}/corpus.txt"]}, "test": f"{tmp_path}/test.jsonl", "task": task}
    counts = study_overlap.count(config.fill(OverlapRecipe, {**recipe, "test_rows": 5}), tmp_path)
    columns = registry.build("tasks", config.fill(OverlapRecipe, recipe).task).columns("test")
    whole = labelled.read(tmp_path / "test.jsonl", columns)
    tested = labelled.fixed_subset(whole, 5).columns["text"]
    assert counts["of"] == 5 and counts["rows"] == [row for row, text in enumerate(tested) if text == SHARED]
