"""A finished folder is verified and scored on other data."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

import headstart
from headstart.core import artifact
from headstart.core.errors import ArtifactError, DataError, HeadstartError, RecipeError
from headstart.stages import evaluate
from headstart.stages.finetune import finished, result
from headstart.tasks import labelled
from headstart.tasks.classify import Classify


def test_a_fine_tuned_model_reproduces_the_scores_of_its_run(way):
    scores = headstart.evaluate(way / "tuned", way / "test.csv")
    assert scores["rows"] == 60
    reported = artifact.read_manifest(way / "tuned")["metrics"]["full"][0]
    assert {name: scores[name] for name in reported} == pytest.approx(reported)


def test_a_pre_trained_model_on_text(way):
    scores = headstart.evaluate(way / "pretrained", way / "other.txt")
    assert scores["rows"] > 50 and 0 <= scores["accuracy"] < 1 and 3 < scores["loss"] < math.log(600) + 1
    assert headstart.evaluate(way / "pretrained", way / "other.txt") == scores
    artifact.verify(way / "pretrained")


def test_an_altered_model_is_not_scored(way, tmp_path):
    shutil.copytree(way / "tuned", tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    for call in (lambda: headstart.evaluate(tmp_path / "m", way / "test.csv"), lambda: headstart.load(tmp_path / "m")):
        with pytest.raises(ArtifactError, match=r"model\.safetensors was modified after it was written"):
            call()


def test_a_folder_that_is_no_trained_model_is_refused(way, tmp_path):
    with pytest.raises(ArtifactError, match=r"no headstart\.json"):
        headstart.evaluate(tmp_path, way / "test.csv")
    with artifact.staged(tmp_path / "x", "shards"):
        pass
    with pytest.raises(ArtifactError, match="is a shards"):
        headstart.evaluate(tmp_path / "x", way / "test.csv")


def test_wrong_data_is_named(way, tmp_path, recipe_of):
    with pytest.raises(DataError, match="no column 'text'"):
        (tmp_path / "a.csv").write_text("body,label\nx,y\n")
        headstart.evaluate(way / "tuned", tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"b\.csv, row 1 has the label 'never seen'"):
        headstart.evaluate(way / "tuned", recipe_of["rows"](tmp_path / "b.csv", [("a text", "never seen")]))
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(HeadstartError, match="empty"):
        headstart.evaluate(way / "pretrained", tmp_path / "empty.txt")


@pytest.mark.parametrize(
    ("model", "data", "seen_as"),
    [
        ("tuned", "train.csv", "the train file"), ("tuned", "test.csv", None),
        ("pretrained", "text.txt", "a file of the corpus"), ("pretrained", "other.txt", None),
    ],
)  # fmt: skip
def test_scores_on_training_data_come_with_a_warning(way, tmp_path, caplog, model, data, seen_as):
    """A copy under another name has the same hash."""
    copy = tmp_path / f"copy{Path(data).suffix}"
    shutil.copyfile(way / data, copy)
    headstart.evaluate(way / model, copy)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [] if seen_as is None else f"copy{copy.suffix} is {seen_as} of" in warnings[0]


def test_a_model_of_many_labels_and_one_of_numbers(way, tmp_path, recipe_of, labelled_rows):
    """Sixty labels with two rows each, and a regression."""
    texts = [text for text, _ in labelled_rows]
    many = recipe_of["rows"](tmp_path / "many.csv", [(text, f"l{i // 2}") for i, text in enumerate(texts)])
    numbers = recipe_of["rows"](tmp_path / "numbers.csv", [(text, len(text) / 10) for text in texts])
    for name, data, task in (("many", many, {}), ("numbers", numbers, {"regression": True})):
        recipe = recipe_of["finetune"](
            way, output=str(tmp_path / name),
            data={"train": data, "validation": data, "test": data, "allow_overlap": True},
            task={"kind": "classify", **task}, compare_with=[], adaptation="features",
        )  # fmt: skip
        folder = headstart.finetune(recipe, "training.budget=2 steps", quiet=True)
        scores = headstart.evaluate(folder, data)
        reported = artifact.read_manifest(folder)["metrics"]["features"][0]
        assert scores["rows"] == 120 and {key: scores[key] for key in reported} == pytest.approx(reported, abs=1e-6)
        predictions = finished.predict_texts(folder, texts[:3])
        assert all(isinstance(value, str if name == "many" else float) for value in predictions)


def test_predict_texts_gives_the_stored_predictions(way):
    rows = labelled.read(way / "test.csv", Classify(Classify.Config()).columns("test"))
    predictions = finished.predict_texts(way / "tuned", rows.columns["text"])
    assert predictions == result.read(way / "tuned" / "cells" / "full-seed-0")["predictions"]
    with pytest.raises(ArtifactError, match="Predictions need an output of `headstart finetune`"):
        finished.predict_texts(way / "pretrained", ["a text"])


def test_load_returns_plain_transformers_objects(way):
    model, tokenizer = headstart.load(way / "tuned")
    assert type(model).__module__.startswith("transformers.") and not model.training
    encoded = tokenizer("In the beginning", "God created", return_tensors="pt")
    assert "token_type_ids" in encoded, "a BERT tokenizer marks the two texts of a pair"
    assert model(**encoded).logits.shape == (1, model.config.num_labels)


def test_overrides_change_the_columns_and_nothing_else(way, tmp_path):
    rows = (way / "test.csv").read_text(encoding="utf-8").splitlines()
    other = tmp_path / "other.csv"
    other.write_text("\n".join(["review,stars", *rows[1:]]) + "\n", encoding="utf-8")
    expected = evaluate.run(way / "tuned", way / "test.csv")
    found = evaluate.run(way / "tuned", other, overrides=["task.text=review", "task.label=stars"])
    assert found["accuracy"] == expected["accuracy"]
    with pytest.raises(RecipeError, match="changes more than how data is read"):
        evaluate.run(way / "tuned", other, overrides=["training.learning_rate=1"])
    with pytest.raises(RecipeError, match=r"training\.max_length is 9999, but .*tuned reads at most \d+ tokens"):
        evaluate.run(way / "tuned", way / "test.csv", overrides=["training.max_length=9999"])
