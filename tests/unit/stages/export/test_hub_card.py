"""The card for the Hub: its metadata are read by huggingface_hub itself, and what is unknown is said."""

from __future__ import annotations

import pytest
from huggingface_hub import ModelCard

from headstart.stages.export import hub_card
from headstart.stages.export.comparison import Comparison, Measured
from headstart.stages.export.settings import ExportSettings
from headstart.stages.runs.manifest import FinetuneData, FinetuneManifest

COMMIT = "0123456789" * 4


def manifest(**data):
    return FinetuneManifest(
        recipe={
            "seed": 3, "model": f"org/base@{COMMIT}", "task": {"kind": "classify"}, "adaptation": {"name": "lora"},
            "data": {"train": "train", "validation": 0.1, "test": "test", **data},
        },
        seed=4,
        task={"kind": "classify", "text": ["review"], "labels": ["bad", "good"]},
        data=FinetuneData(train_rows=90, test_rows=20, test_source="private/folder/test.csv", max_length=64),
        metrics={"lora": [{"accuracy": 0.5}, {"accuracy": 0.75, "macro_f1": 0.7}], "majority": [{"accuracy": 0.5}]},
        table="| method | accuracy |\n|---|---|\n| lora | 62.5 |",
        verdicts=["lora is better than majority."],
        pipeline="text-classification",
        architecture="BertForSequenceClassification",
    )  # fmt: skip


@pytest.fixture
def comparison():
    models = [Measured("torch fp32", 0.75, 10, {"1": 1.0, "32": 2.0})]
    return Comparison("accuracy", 100.0, 20, "test", 1, 1, 1.0, models, "torch fp32")


def card_of(facts, comparison, **settings):
    return ModelCard(hub_card.write(facts, ExportSettings(to="hub", **settings), "run()\n", comparison))


def test_huggingface_hub_reads_the_metadata(comparison):
    facts = manifest(dataset=f"org/reviews@{COMMIT}", config="small")
    card = card_of(facts, comparison, license="apache-2.0", language=["en"], repo="me/reviews")
    data = card.data
    assert (data.license, data.language, data.base_model) == ("apache-2.0", ["en"], "org/base")
    assert data.datasets == ["org/reviews"] and data.metrics == ["accuracy", "f1"]
    assert data.model_name == "reviews" and data.pipeline_tag == "text-classification"
    scores = {result.metric_type: result for result in data.eval_results}
    assert {name: result.metric_value for name, result in scores.items()} == {"accuracy": 0.75, "f1": 0.7}, "seed 4"
    result = scores["accuracy"]
    assert (result.dataset_type, result.dataset_config, result.dataset_split) == ("org/reviews", "small", "test")
    assert result.dataset_revision == COMMIT and "20 test rows" in result.metric_name
    assert "license of the model" not in card.text and "| lora | 62.5 |" in card.text
    assert "`bad`, `good`" in card.text and "lora is better than majority" in card.text


def test_what_is_unknown_is_said_and_the_metadata_name_no_folder(comparison):
    card = card_of(manifest(), comparison)
    assert card.data.license == "unknown" and card.data.language is None and card.data.datasets is None
    assert {result.dataset_name for result in card.data.eval_results} == {"test.csv"}
    for sentence in ("The license of the model", "The language of the texts", "between groups of people"):
        assert sentence in card.text
    assert "private/folder" not in card.content.split("---")[1]
