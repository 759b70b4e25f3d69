"""A finished folder is scored on other data, after its hashes were checked."""

from __future__ import annotations

import math
import shutil

import pytest

import headstart
from headstart.core import artifact
from headstart.core.errors import ArtifactError, DataError, HeadstartError


def test_a_fine_tuned_model_on_its_own_test_rows_scores_as_the_run_said(way):
    found = headstart.evaluate(way / "tuned", way / "test.csv")
    assert found["rows"] == 60
    said = artifact.read_manifest(way / "tuned")["metrics"]["full"][0]
    assert {name: found[name] for name in said} == pytest.approx(said)


def test_a_pre_trained_model_on_text(way):
    found = headstart.evaluate(way / "pretrained", way / "other.txt")
    assert found["rows"] > 50 and 0 <= found["accuracy"] < 1 and 3 < found["loss"] < math.log(600) + 1
    assert headstart.evaluate(way / "pretrained", way / "other.txt") == found
    artifact.verify(way / "pretrained")


def test_an_altered_model_is_not_scored(way, tmp_path):
    shutil.copytree(way / "tuned", tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    for call in (lambda: headstart.evaluate(tmp_path / "m", way / "test.csv"), lambda: headstart.load(tmp_path / "m")):
        with pytest.raises(ArtifactError, match=r"model\.safetensors is not what was written"):
            call()


def test_what_is_no_output_of_ours_is_refused(way, tmp_path):
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


def test_a_model_of_many_labels_and_one_of_numbers(way, tmp_path, recipe_of, labelled_rows):
    """Sixty labels, each as rows of its own, and a number to be predicted."""
    texts = [text for text, _ in labelled_rows]
    many = recipe_of["rows"](tmp_path / "many.csv", [(text, f"l{i // 2}") for i, text in enumerate(texts)])
    numbers = recipe_of["rows"](tmp_path / "numbers.csv", [(text, len(text) / 10) for text in texts])
    for name, data, task in (("many", many, {}), ("numbers", numbers, {"regression": True})):
        recipe = recipe_of["finetune"](
            way, output=str(tmp_path / name), data={"train": data, "validation": data, "test": data},
            task={"kind": "classify", **task}, compare_with=[], adaptation="features",
        )  # fmt: skip
        folder = headstart.finetune(recipe, "training.budget=2 steps", quiet=True)
        found = headstart.evaluate(folder, data)
        said = artifact.read_manifest(folder)["metrics"]["features"][0]
        assert found["rows"] == 120 and {key: found[key] for key in said} == pytest.approx(said, abs=1e-6)


def test_load_gives_plain_objects_that_fit(way):
    model, tokenizer = headstart.load(way / "tuned")
    assert type(model).__module__.startswith("transformers.") and not model.training
    encoded = tokenizer("In the beginning", "God created", return_tensors="pt")
    assert "token_type_ids" in encoded, "a BERT's tokenizer tells the two texts of a pair apart"
    assert model(**encoded).logits.shape == (1, model.config.num_labels)
