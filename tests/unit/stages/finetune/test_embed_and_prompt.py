"""Sentence vectors and prompts through `finetune` and `evaluate`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headstart
from headstart.core import artifact
from headstart.core.errors import RecipeError


def finetune(way: Path, output: Path, **sections: Any) -> Path:
    return headstart.finetune(
        {
            "output": str(output), "model": str(way / "pretrained"), "seeds": 2, "compare_with": [],
            "training": {"budget": "3 steps", "max_length": 32, "eval_count": 1, "batch_size": 8}, **sections,
        },
        quiet=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def pairs(way, verses, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("pairs")
    texts = [verse for verse in verses if verse][:60]
    rows = [(text, text[: len(text) // 2] if n % 2 else texts[n - 1], n % 2) for n, text in enumerate(texts)]
    for name, split in (("train", rows[:40]), ("test", rows[40:])):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("sentence1", "sentence2", "score"), *split])
    return {"train": str(folder / "train.csv"), "validation": 10, "test": str(folder / "test.csv")}


@pytest.mark.parametrize("adaptation", ["full", "lora"])
def test_vectors_load_in_plain_sentence_transformers(way, pairs, tmp_path, adaptation):
    from sentence_transformers import SentenceTransformer

    folder = finetune(way, tmp_path / "out", task={"kind": "embed"}, data=pairs, adaptation=adaptation)
    manifest = artifact.verify(folder, "model of finetune")
    assert "SentenceTransformer(" in (folder / "README.md").read_text(encoding="utf-8")
    with Path(pairs["test"]).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    model = SentenceTransformer(str(folder), device="cpu")
    left, right = (model.encode([row[name] for row in rows]) for name in ("sentence1", "sentence2"))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    from headstart.evaluation.correlations import spearman

    best = manifest["metrics"][adaptation][manifest["seed"]]
    assert spearman([float(row["score"]) for row in rows], cosines) == pytest.approx(best["spearman"], abs=0.02)
    assert headstart.evaluate(folder, pairs["test"])["spearman"] == pytest.approx(best["spearman"], abs=1e-6)


def test_training_by_ranking_can_be_validated_by_retrieval(way, pairs, tmp_path):
    """Rows split off from the training file are read as validation rows: the second text is the one to find."""
    task = {"kind": "embed", "loss": "ranking", "test": "retrieval"}
    folder = finetune(
        way, tmp_path / "out", task=task, data=pairs, adaptation="full", compare_with=["zero_shot", "svm"]
    )
    manifest = artifact.verify(folder, "model of finetune")
    assert manifest["data"]["train_rows"] == 30 and manifest["data"]["validation_rows"] == 10
    assert 0 < manifest["metrics"]["full"][0]["mrr_at_10"] <= manifest["metrics"]["full"][0]["ndcg_at_10"] <= 1
    assert "svm" in manifest["left_out"]


def test_zero_shot_does_not_train_the_head_of_a_loss(way, pairs, tmp_path):
    task = {"kind": "embed", "loss": "softmax", "label": "score"}
    folder = finetune(way, tmp_path / "out", task=task, data=pairs, adaptation="zero_shot")
    assert "| zero_shot |" in artifact.verify(folder)["table"] and "| 0 |" in artifact.verify(folder)["table"]


def test_the_manifest_keeps_the_examples_of_a_prompt(way, tmp_path):
    data = {"train": str(way / "train.csv"), "validation": 20, "test": str(way / "test.csv"), "train_rows": 4}
    task = {"kind": "prompt", "shots": 2, "template": "{text} {label}"}
    training = {"max_length": 256}
    folder = finetune(way, tmp_path / "out", task=task, data=data, adaptation="zero_shot", training=training)
    manifest = artifact.verify(folder, "model of finetune")
    assert len(manifest["task"]["shown"]) == 2
    assert "Nothing was trained" in (folder / "README.md").read_text(encoding="utf-8")
    best = manifest["metrics"]["zero_shot"][manifest["seed"]]
    assert headstart.evaluate(folder, data["test"])["accuracy"] == best["accuracy"]
    with pytest.raises(RecipeError, match="trains nothing"):
        headstart.plan(manifest["recipe"])


def test_training_is_refused_for_a_prompt(way, tmp_path):
    data = {"train": str(way / "train.csv"), "validation": 20, "test": str(way / "test.csv")}
    with pytest.raises(RecipeError, match=r"'full' cannot be used for the task 'prompt'.*no training loss"):
        finetune(way, tmp_path / "out", task={"kind": "prompt"}, data=data, adaptation="full")
