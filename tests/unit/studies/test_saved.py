"""A study that was computed before keys were renamed: its folder is still read, and no cell is computed again.

`data/old_cells.json` holds the cells of a real run (two adaptations of one pre-training, two baselines, two seeds),
without weights. Their addresses depend on the content of the files that `write_inputs` makes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from headstart.core import artifact
from headstart.core.errors import RecipeError
from headstart.studies import study as stage
from headstart.studies.graph import Node, cell_dir
from headstart.studies.render import report
from headstart.studies.run import nodes
from headstart.studies.saved import upgrade

CELLS = Path(__file__).with_name("data") / "old_cells.json"
OLD_STUDY = {
    "question": "Does pre-training help?", "output": "out", "seeds": 2, "reference": "majority", "overlap": False,
    "base": {
        "pretrain": {
            "corpus": {"files": ["corpus.txt"], "validation": 0.1}, "tokenizer": {"vocab": 300},
            "backbone": {"family": "encoder", "kind": "bert", "size": "tiny"}, "objective": "masked_lm",
            "training": {"budget": "4 steps", "row_length": 16, "batch_tokens": 64, "evaluations": 1},
        },
        "finetune": {
            "task": {"kind": "classify", "text": ["text"], "label": "label"},
            "data": {"train": "train.csv", "validation": "test.csv", "test": "test.csv"},
            "training": {"budget": "2 steps", "batch_size": 4, "max_length": 16, "evaluations": 1, "logging_steps": 1},
        },
    },
    "axes": {
        "labels": {"finetune.data.labels": [8]},
        "adaptation": {"full": {"finetune.adaptation": "full"}, "none": {"finetune.adaptation": "as_is"}},
    },
    "compare": ["adaptation"], "baselines": ["majority", "svm"],
    "claims": [{"says": "Pre-training helps", "contrast": "full > majority"}],
    "tuned": [{"where": {"adaptation": "full"}, "adaptation": {"learning_rate": 1e-3}}],
    "without": [{"baseline": "svm", "labels": 8}],
}  # fmt: skip


def write_inputs(folder: Path) -> None:
    """Write the text and the labeled rows that the cells were computed from."""
    starts = ["ba", "ke", "li", "mo", "nu", "ra", "so", "ti", "vo", "pe", "ga", "hu"]
    ends = ["n", "r", "st", "ly", "ck", "ming", "ther", "word", "den", "ple", "que", "sm"]
    words = [start + middle + end for start in starts for middle in ("", "x", "z") for end in ends]
    lines = [" ".join(words[(n * n + 7 * k + n // 3) % len(words)] for k in range(12)) + "." for n in range(1500)]
    (folder / "corpus.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    for name, count in (("train", 24), ("test", 8)):
        rows = [f"a {'good' if n % 3 else 'bad'} day {n},{'yes' if n % 3 else 'no'}" for n in range(count)]
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")


@pytest.fixture
def old(tmp_path, monkeypatch) -> Path:
    """The output folder of the study as the old version left it."""
    monkeypatch.chdir(tmp_path)
    nodes._content.cache_clear()
    nodes._rows_content.cache_clear()
    nodes._described_files.cache_clear()
    write_inputs(tmp_path)
    for name, text in json.loads(CELLS.read_text(encoding="utf-8")).items():
        path = tmp_path / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "out"


def test_the_saved_study_is_translated_and_every_cell_is_found(old):
    state = stage.StudyState(stage.load(old / "study.yaml"))
    assert set(state.graph.nodes) == {path.name for path in (old / "cells").iterdir()}
    assert state.results.missing == []
    assert [row[1:4] for row in state.scores.rows] == [
        ["full", "accuracy", 2], ["majority", "accuracy", 2], ["none", None, 0]
    ]  # fmt: skip
    assert state.scores.rows[2][-1].startswith("left out: ")
    assert [verdict.claim.statement for verdict in state.verdicts] == ["Pre-training helps"]


def test_tables_and_the_report_are_written_from_old_cells(old):
    page = report.run(stage.StudyState(stage.load(old / "study.yaml")), old / "new")
    html = page.read_text(encoding="utf-8")
    assert "8 of 8 cells are finished, 2 seeds." in html and "Training cost " in html
    assert "8: loss over tokens" in html and "train_rows: 8" in html
    assert (old / "new" / "tables" / "missing.csv").read_text().count("\n") == 1, "only the header"


def test_nothing_is_computed_again(old, monkeypatch):
    monkeypatch.setattr(stage, "build_executor", lambda *_, todo: StoppedExecutor(todo))
    outcome = stage.run(stage.load(old / "study.yaml"), quiet=True)
    assert (outcome.finished, outcome.total) == (8, 8)
    saved = yaml.safe_load((old / "study.yaml").read_text(encoding="utf-8"))
    assert saved["claims"][0]["statement"] == "Pre-training helps" and "tuned" not in saved


class StoppedExecutor:
    """Refuses every job."""

    capacity = 1

    def __init__(self, todo: int) -> None:
        assert todo == 0

    def close(self) -> None:
        """Has nothing to stop."""


def test_a_node_that_was_saved_with_old_keys_is_translated(old):
    (path, *_) = sorted((old / "cells").glob("finetune-*"))
    saved = artifact.read_manifest(path)["node"]
    assert "labels" in saved["recipe"]["data"] and "company" in saved["recipe"]
    node = Node.from_dict(saved)
    assert node.recipe["data"]["train_rows"] == 8 and node.recipe["compare_with"] == [] and node.parents
    assert cell_dir(old, node.id) == path


def test_a_study_of_the_user_with_old_keys_is_refused(old, tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(OLD_STUDY), encoding="utf-8")
    with pytest.raises(RecipeError, match="it was renamed to 'overrides'"):
        stage.load(tmp_path / "mine.yaml")


def test_settings_of_axes_and_base_recipes_are_translated():
    study = upgrade({
        "base": {"pretrain": None, "finetune": {"adaptation": "as_is", "company": []}},
        "axes": {"a": {
            "x": {"finetune.training.evaluations": 3, "pretrain.tokenizer": {"vocab": 9}},
            "y": {"finetune": {"data": {"labels": 4}}, "finetune.adaptation.name": "as_is"},
        }},
    })  # fmt: skip
    assert study["base"] == {"pretrain": None, "finetune": {"adaptation": {"name": "zero_shot"}, "compare_with": []}}
    assert study["axes"]["a"] == {
        "x": {"finetune.training.eval_count": 3, "pretrain.tokenizer": {"vocab_size": 9}},
        "y": {"finetune": {"data": {"train_rows": 4}}, "finetune.adaptation.name": "zero_shot"},
    }
