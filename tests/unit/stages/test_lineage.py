"""The list of runs: finished, resumable and broken ones, and which was made from which."""

from __future__ import annotations

import json

import pytest

from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.stages import lineage


@pytest.fixture
def runs(tmp_path):
    """A pre-trained model, a fine-tuned one, an unfinished run and a broken one."""
    with artifact.staged(tmp_path / "base", "checkpoint of pretrain") as staging:
        (staging.path / "model.safetensors").write_bytes(b"weights")
        (staging.path / "README.md").write_text("---\nlicense: x\n---\n# The card\n")
        staging.facts |= {"metrics": {"validation": {"loss": 3.5}}, "cost": {"seconds": 600.0, "kwh": 0.01}}
    with artifact.staged(tmp_path / "deep" / "tuned", "model of finetune") as staging:
        (staging.path / "model.safetensors").write_bytes(b"other weights")
        staging.facts |= {
            "parents": {"model": artifact.identity(tmp_path / "base")},
            "recipe": {"adaptation": {"name": "full"}},
            "metrics": {"svm": [{"accuracy": 0.1}], "full": [{"accuracy": 0.8}, {"accuracy": 0.9}]},
            "cost": {"seconds": 30.0},
        }
    with artifact.staged(tmp_path / "base" / "prepared" / "tokenizer", "tokenizer") as staging:
        (staging.path / "tokenizer.json").write_text("{}")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "recipe.yaml").write_text("objective: {name: masked_lm}\n")
    (tmp_path / "begun" / "cost.json").write_text('{"seconds": 5.0}')
    with artifact.staged(tmp_path / "broken", "model of finetune") as staging:
        (staging.path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "broken" / "model.safetensors").unlink()
    return tmp_path


def test_every_run_is_listed_with_its_state_and_its_parents(runs):
    found = {run.path: run for run in lineage.find_runs(runs)}
    assert {path: run.state for path, run in found.items()} == {
        "base": "finished", "deep/tuned": "finished", "begun": "resumable", "broken": "broken",
    }  # fmt: skip
    assert found["deep/tuned"].parents == ["base"]
    assert found["deep/tuned"].score == "accuracy 0.850 (2 seeds)"
    assert (found["begun"].verb, found["begun"].seconds) == ("pretrain", 5.0)
    assert found["broken"].problem == "model.safetensors is missing"
    assert json.dumps([run.to_dict() for run in found.values()])


def test_the_seconds_of_a_corpus_are_the_sum_of_its_steps(runs):
    with artifact.staged(runs / "text", "corpus") as staging:
        (staging.path / "a.parquet").write_bytes(b"rows")
        staging.facts["cost"] = {"seconds": {"read": 20.0, "clean": 70.0}}
    found = {run.path: run for run in lineage.find_runs(runs)}
    assert found["text"].seconds == 90.0 and "2 min" in lineage.table(list(found.values()))


def test_the_tree_shows_children_below_their_parents(runs):
    lines = lineage.tree(lineage.find_runs(runs)).splitlines()
    position = next(i for i, line in enumerate(lines) if line.startswith("base"))
    assert lines[position + 1].startswith("└── deep/tuned  finetune  finished")
    assert "loss 3.500" in lineage.table(lineage.find_runs(runs))


def test_a_damaged_manifest_is_a_broken_run(runs):
    (runs / "base" / "headstart.json").write_text("{")
    assert {run.path: run.state for run in lineage.find_runs(runs)}["base"] == "broken"


def test_the_card_is_shown_without_its_front_matter(runs):
    assert lineage.card(runs / "base") == "# The card"
    assert "state: finished" in lineage.card(runs / "deep" / "tuned")
    with pytest.raises(ArtifactError, match="is not a run"):
        lineage.card(runs / "base" / "prepared")
    with pytest.raises(ArtifactError, match="there is no folder"):
        lineage.find_runs(runs / "nowhere")
