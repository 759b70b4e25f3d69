"""The three stages of ULMFiT with its recipes, on a small corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.runs.conftest import QUICKSTART, ROOT

import headstart

RECIPES = ROOT / "recipes" / "ulmfit"
TINY = ("training.seq_length=32", "training.batch_tokens=256", "training.eval_count=1", "training.logging_steps=1")


def manifest(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "headstart.json").read_text(encoding="utf-8"))
    return values


def test_general_text_then_target_text_then_labels(verses, tmp_path):
    general, target, tuned = (tmp_path / name for name in ("general", "target", "tuned"))
    for name, lines in (("general", verses[:600]), ("target", verses[600:900])):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(filter(None, lines)), encoding="utf-8")
    headstart.pretrain(
        RECIPES / "1-general.yaml", f"output={general}", f"corpus.files=[{tmp_path / 'general.txt'}]",
        f"corpus.prepared={tmp_path / 'prepared'}", "corpus.validation=0.1", "tokenizer.vocab_size=600",
        "backbone.size=tiny", "training.budget=10 steps", *TINY, quiet=True,
    )  # fmt: skip
    headstart.pretrain(
        RECIPES / "2-target.yaml", f"output={target}", f"corpus.files=[{tmp_path / 'target.txt'}]",
        f"corpus.prepared={tmp_path / 'prepared'}", "corpus.validation=0.1", f"backbone.path={general}",
        "training.budget=20 steps", *TINY, quiet=True,
    )  # fmt: skip
    assert manifest(target)["parents"]["checkpoint"] and manifest(target)["architecture"] == "BiLMForPreTraining"
    lines = [json.loads(line) for line in (target / "logs" / "metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert rates[0] == pytest.approx(5e-4 / 32) and max(rates) == pytest.approx(5e-4) and rates.index(max(rates)) == 2
    data = [f"data.{split}={QUICKSTART / 'data' / f'kind-{split}.csv'}" for split in ("train", "validation", "test")]
    headstart.finetune(
        RECIPES / "3-classifier.yaml", f"output={tuned}", f"model={target}", *data, "data.train_rows=64", "seeds=1",
        "compare_with=[majority]", "training.budget=16 steps", "training.max_length=32", "training.eval_count=1",
        quiet=True,
    )  # fmt: skip
    third = manifest(tuned)
    assert {"gradual_unfreezing", "majority"} == third["metrics"].keys()
    assert "pre-training loss" in third["table"] and third["architecture"] == "BiLMForSequenceClassification"
