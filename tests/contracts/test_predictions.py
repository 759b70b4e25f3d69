"""The contract of `headstart predict` with every task: one row in, one row out, in the same order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import headstart
from headstart.core import artifact, config, registry
from headstart.core.contracts import Task
from headstart.stages.finetune.finished import Finetuned
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.predict.compute import Scores
from headstart.stages.runs.manifest import FinetuneManifest
from headstart.tasks.multi_label import MultiLabel
from headstart.tasks.source import CheckpointFolder


def published(folder: Path, task: Task, checkpoint: Path, adaptation: str = "full") -> Path:
    """Write the artifact of a run that trained nothing."""
    source = CheckpointFolder(checkpoint, task, seed=0)
    raw = {
        "output": str(folder), "model": str(checkpoint), "task": config.to_dict(task.config), "adaptation": adaptation,
        "data": {"train": "a.csv", "validation": 1, "test": "b.csv"},
        # Vectors are compared with those of another library, which computes in fp32.
        "training": {"max_length": 64, "precision": "fp32"},
    }  # fmt: skip
    recipe = config.fill(FinetuneRecipe, raw)
    method = registry.build("adaptations", recipe.adaptation)
    parents = {"model": artifact.identity(checkpoint)}
    facts = FinetuneManifest(recipe=config.to_dict(recipe), seed=0, task=task.state(), parents=parents)
    with artifact.staged(folder, FinetuneManifest.KIND, **facts.to_dict()) as staging:
        task.save(method.finish(method.adapt(source)), source.input_spec(64), staging.path)
        source.tokenizer().save_pretrained(str(staging))
    return folder


@pytest.fixture(scope="module")
def rows(task_case) -> list[dict[str, Any]]:
    """The validation rows without their gold values; row 3 lacks its first column."""
    columns = task_case.validation.columns
    rows = [
        {"id": i, **{name: values[i] for name, values in columns.items()}} for i in range(len(task_case.validation))
    ]
    rows[3][next(iter(columns))] = None
    return rows


@pytest.fixture(scope="module")
def model(task_case, checkpoint, tmp_path_factory) -> Path:
    family = type(task_case.task).families[0]
    return published(tmp_path_factory.mktemp("model") / "m", task_case.task, checkpoint(family, None))


@pytest.fixture(scope="module")
def predict(model, rows, tmp_path_factory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def run(name: str, **settings: Any) -> Path:
        result = headstart.predict(model, folder / "rows.jsonl", folder / name, quiet=True, **settings)
        assert result["rows"] == len(rows) and result["failed"] == 1 and result["problems"][0][0] == 4
        return folder / name

    return run


def test_every_row_has_its_prediction_in_order(task_case, model, rows, predict):
    written = [json.loads(line) for line in predict("out.jsonl", chunk_rows=7).read_text().splitlines()]
    assert [row["id"] for row in written] == list(range(len(rows)))
    assert [{name: row[name] for name in rows[0]} for row in written] == rows
    assert [i for i, row in enumerate(written) if row["error"]] == [3]
    assert written[3]["prediction"] is None and "is empty" in written[3]["error"]
    finetuned = Finetuned(model, FinetuneManifest.read(model))
    names = list(task_case.validation.columns)
    complete = [tuple(row[name] for name in names) for row in rows if row[names[0]] is not None]
    by_hand = finetuned.predict_texts([row[0] if len(row) == 1 else row for row in complete])
    predictions = [row["prediction"] for row in written if not row["error"]]
    if isinstance(predictions[0], float):
        assert np.allclose(predictions, by_hand, atol=1e-4)
    elif not isinstance(predictions[0], dict):
        assert predictions == by_hand


def test_every_format_has_the_same_rows(predict, rows):
    lines = [json.loads(line) for line in predict("same.jsonl").read_text().splitlines()]
    table = pq.read_table(predict("same.parquet"))
    assert table.column("id").to_pylist() == list(range(len(rows)))
    assert table.column("prediction").to_pylist() == [line["prediction"] for line in lines]
    assert table.column_names == list(lines[0])
    for name in ("same.csv", "same.tsv"):
        text = predict(name, only_predictions=True).read_text(encoding="utf-8")
        assert text.startswith("prediction") and text.count("\n") >= len(rows) + 1


def test_probabilities_add_up_to_one(task_case, predict, rows):
    task = task_case.task
    if not Scores(task, None, False).has_scores:
        pytest.skip("this task gives no probabilities")
    lines = predict("top.jsonl", top_k=2, scores=bool(task.labels)).read_text(encoding="utf-8").splitlines()
    for row in (row for row in map(json.loads, lines) if not row["error"]):
        if isinstance(task, MultiLabel):
            assert all(0 < row[f"score_{label}"] < 1 for label in task.labels)
            assert row["probability"] == [row[f"score_{label}"] for label in row["prediction"]]
            continue
        values = [row[name] for name in ("probability", "probability_1", "label_1", "prediction")]
        is_per_word = isinstance(row["prediction"], list)
        for probability, best, label, prediction in zip(*values, strict=True) if is_per_word else [values]:
            assert probability is None or (probability == best and label == prediction and 0 < probability <= 1)
        if task.labels and not is_per_word:
            assert sum(row[f"score_{label}"] for label in task.labels) == pytest.approx(1, abs=1e-4)


def test_an_adapter_predicts(make_task_case, checkpoint, tmp_path):
    case = make_task_case("classify", "")
    model = published(tmp_path / "m", case.task, checkpoint("encoder", None), "lora")
    assert (model / "adapter_config.json").is_file()
    lines = "".join(json.dumps({"text": text}) + "\n" for text in case.validation.columns["text"])
    (tmp_path / "rows.jsonl").write_text(lines, encoding="utf-8")
    result = headstart.predict(model, tmp_path / "rows.jsonl", tmp_path / "out.csv", quiet=True)
    assert result["predicted"] == len(case.validation)


def test_a_single_text_of_embed_becomes_its_vector(make_task_case, checkpoint, tmp_path):
    from sentence_transformers import SentenceTransformer

    case = make_task_case("embed", "")
    model = published(tmp_path / "m", case.task, checkpoint("encoder", None))
    texts = list(case.validation.columns["sentence1"])
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    headstart.predict(model, tmp_path / "rows.jsonl", tmp_path / "out.parquet", quiet=True)
    vectors = np.array(pq.read_table(tmp_path / "out.parquet").column("prediction").to_pylist())
    assert np.allclose(vectors, SentenceTransformer(str(model), device="cpu").encode(texts), atol=1e-4)
