"""The result of a cell in JSON."""

from __future__ import annotations

import json

from headstart.core import artifact
from headstart.evaluation.cost import PriceTag
from headstart.evaluation.forgetting import Forgetting
from headstart.stages.finetune import result
from headstart.stages.finetune.result import MethodDetails, MethodResult

TRAINED = MethodResult(
    "full", 1, ["a", "b"], {"accuracy": 0.5}, {"accuracy": 0.75},
    MethodDetails(
        train_rows=60, trainable_parameters=10, parameters=20, steps=25, best_step=3, learning_rate=5e-4,
        architecture="BertForSequenceClassification", notes=["2 texts are truncated."],
        forgetting=Forgetting("pre-training loss", 2.0, 2.5, lower_is_better=True),
    ),
    PriceTag(tokens=5, flops=6.0, seconds=7.0),
)  # fmt: skip
BASELINE = MethodResult(
    "svm", 0, [1.5], {"spearman": 0.1}, details=MethodDetails(train_rows=60, chosen={"C": 1.0}), cost=PriceTag()
)


def test_json_gives_the_same_result_back():
    for expected in (TRAINED, BASELINE):
        assert MethodResult.from_dict(json.loads(json.dumps(expected.to_dict()))) == expected


def test_the_keys_are_those_of_earlier_versions():
    assert list(TRAINED.to_dict()) == ["method", "seed", "predictions", "test", "validation", "details", "cost"]
    assert set(TRAINED.to_dict()["details"]) == {
        "trainable_parameters", "parameters", "steps", "best_step", "learning_rate", "train_rows", "architecture",
        "notes", "forgetting",
    }  # fmt: skip
    assert BASELINE.to_dict()["details"] == {"chosen": {"C": 1.0}, "train_rows": 60}


def test_unknown_keys_are_ignored_and_missing_ones_get_defaults():
    values = {"method": "full", "seed": 0, "predictions": [], "test": {}, "gold": [1], "details": {"colour": "red"}}
    assert MethodResult.from_dict(values) == MethodResult("full", 0, [], {})


def test_a_written_result_is_an_artifact(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    files = {"curve.jsonl": tmp_path / "metrics.jsonl", "absent.txt": tmp_path / "absent.txt"}
    result.write(tmp_path / "cell", TRAINED.to_dict(), "cell", files, node={"id": "x"})
    manifest = artifact.verify(tmp_path / "cell", "cell")
    assert set(manifest["files"]) == {"result.json", "curve.jsonl"} and manifest["node"] == {"id": "x"}
    assert MethodResult.from_dict(result.read(tmp_path / "cell")) == TRAINED
