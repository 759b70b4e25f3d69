"""The probabilities that a run keeps for its page of errors."""

from __future__ import annotations

import json

from headstart.core import artifact
from headstart.stages.finetune.error_page import SCORES, read_scores, write_scores


def test_probabilities_are_read_as_they_were_written(tmp_path):
    """Labels keep their types, and a label without a probability in a row stays absent there."""
    scores = [{1: 0.25, 2: 0.75}, {1: 1 / 3, 2: 0.5, 3: 1 / 6}]
    write_scores(tmp_path / SCORES, scores)
    assert read_scores(tmp_path) == scores


def test_no_file_without_probabilities_of_labels(tmp_path):
    for scores in ([], [0.5, 0.2], [[{"a": 1.0}]]):
        write_scores(tmp_path / SCORES, scores)
    assert list(tmp_path.iterdir()) == [] and read_scores(tmp_path) == []


def test_a_run_keeps_them_in_its_cells_and_writes_the_page(way):
    scores = read_scores(way / "tuned" / "cells" / "full-seed-0")
    facts = json.loads((way / "tuned" / "evaluation.json").read_text(encoding="utf-8"))
    assert len(scores) == facts["rows"] == 60 and all(abs(sum(row.values()) - 1) < 1e-9 for row in scores)
    assert not (way / "tuned" / "cells" / "majority-seed-0" / SCORES).exists(), "a baseline has none"
    files = artifact.read_manifest(way / "tuned")["files"]
    assert {"evaluation.html", "evaluation.md", "evaluation.json"} <= files.keys()
