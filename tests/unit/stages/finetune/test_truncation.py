"""How many texts of each split were truncated, and which weights were kept: in the output, the manifest, the card."""

from __future__ import annotations

import json

import pytest

import headstart
from headstart.checkpoint.load import load_config
from headstart.core.data import Examples
from headstart.core.errors import DataError, RecipeError
from headstart.stages.finetune.truncation import count_truncated, require_length
from headstart.tasks.classify import Classify
from headstart.tasks.embed import Embed
from headstart.tasks.source import CheckpointFolder
from headstart.tasks.tag import Tag


def test_a_length_beyond_the_positions_is_refused(checkpoint):
    """RoBERTa's config counts positions that no token gets."""
    config = load_config(checkpoint("roberta"))
    assert config.max_position_embeddings > 128
    require_length(128, config, "model")
    with pytest.raises(RecipeError, match=r"training\.max_length is 129, but model reads at most 128 tokens"):
        require_length(129, config, "model")


def test_only_texts_beyond_the_maximum_length_count(checkpoint, tiny_tokenizer):
    words = ["the", "king", "went", "up", "to", "the", "house", "of", "the", "lord"]
    texts = [" ".join(words[: i % 10 + 1]) for i in range(30)]
    lengths = [len(tiny_tokenizer(text)["input_ids"]) for text in texts]
    limit = sorted(lengths)[20]
    assert limit in lengths and max(lengths) > limit, "some texts have exactly the maximum length"
    rows = Examples({"text": texts}, ["a", "b"] * 15, "toy rows")
    task = Classify(Classify.Config())
    task.fit_labels(rows)
    spec = CheckpointFolder(checkpoint("bert"), task, 0).input_spec(limit)
    expected = sum(length > limit for length in lengths)
    assert count_truncated(task, rows, task.encode(rows, spec), spec) == expected > 0


def test_words_of_a_tagged_sentence_count_as_its_text(checkpoint):
    sentences = [["king"] * count for count in (2, 40)]
    rows = Examples({"tokens": sentences}, [["O", *["B-X"] * (len(words) - 1)] for words in sentences], "toy rows")
    task = Tag(Tag.Config())
    task.fit_labels(rows)
    spec = CheckpointFolder(checkpoint("bert"), task, 0).input_spec(16)
    assert count_truncated(task, rows, task.encode(rows, spec), spec) == 1


def test_training_rows_with_columns_of_their_own_are_counted(checkpoint):
    """Sentence vectors: training rows are pairs of NLI, test rows are pairs of STS."""
    rows = Examples({"premise": ["king", "king " * 40], "hypothesis": ["lord", "lord"]}, ["a", "b"], "toy rows")
    task = Embed(
        Embed.Config(
            loss="softmax", texts=["premise", "hypothesis"], label="label", test_texts=["sentence1", "sentence2"]
        )
    )
    task.fit_labels(rows)
    spec = CheckpointFolder(checkpoint("bert"), task, 0).input_spec(16)
    assert count_truncated(task, rows, task.encode(rows, spec, training=True), spec, training=True) == 1


def test_a_task_that_splits_texts_has_no_count(checkpoint):
    rows = Examples({"text": ["a", "b"]}, ["a", "b"], "toy rows")
    task = Classify(Classify.Config())
    task.fit_labels(rows)
    spec = CheckpointFolder(checkpoint("bert"), task, 0).input_spec(8)
    features = task.encode(rows, spec)
    assert count_truncated(task, rows, [*features, *features], spec) is None


def test_an_error_in_counting_does_not_stop_a_run(checkpoint, monkeypatch):
    rows = Examples({"text": ["king " * 40, "b"]}, ["a", "b"], "toy rows")
    task = Classify(Classify.Config())
    task.fit_labels(rows)
    spec = CheckpointFolder(checkpoint("bert"), task, 0).input_spec(8)
    features = task.encode(rows, spec)

    def refuse(*_, **__):
        raise DataError("this text does not fit")

    monkeypatch.setattr(task, "encode", refuse)
    assert count_truncated(task, rows, features, spec) is None


@pytest.fixture(scope="module")
def run(way, recipe_of, tmp_path_factory):
    training = {"budget": "6 steps", "max_length": 12, "eval_count": 3, "batch_size": 16}
    recipe = recipe_of["finetune"](
        way, output=str(tmp_path_factory.mktemp("cut") / "out"), compare_with=["majority", "svm"], training=training
    )
    return headstart.finetune(recipe, quiet=True)


def test_the_share_of_truncated_texts_is_in_output_manifest_and_card(run):
    truncated = run.manifest["data"]["truncated"]
    assert set(truncated) == {"train", "validation", "test"} and 0 < truncated["test"] <= 60
    share = f"{truncated['test'] / 60:.1%} of test"
    for text in (run.summary(), (run / "README.md").read_text(encoding="utf-8")):
        assert "training.max_length (12 tokens) are truncated" in text and share in text
        assert "| svm (reads whole texts) |" in text and "| majority |" in text
    cell = json.loads((run / "cells" / "full-seed-0" / "result.json").read_text(encoding="utf-8"))
    assert cell["details"]["truncated"] == truncated


def test_the_step_of_the_kept_weights_is_in_output_manifest_and_card(run):
    cell = json.loads((run / "cells" / "full-seed-0" / "result.json").read_text(encoding="utf-8"))
    step = cell["details"]["best_step"]
    assert (run.manifest["best_step"], run.manifest["steps"]) == (step, 6)
    assert f"kept weights: step {step} of 6 (best on the validation rows)" in run.summary()
    assert f"Kept weights: step {step} of 6" in (run / "README.md").read_text(encoding="utf-8")


def test_nothing_is_said_where_nothing_was_truncated(way, recipe_of, tmp_path):
    training = {"budget": "2 steps", "max_length": 256, "eval_count": 1, "batch_size": 16}
    recipe = recipe_of["finetune"](way, output=str(tmp_path / "out"), compare_with=["svm"], training=training)
    whole = headstart.finetune(recipe, quiet=True)
    assert "truncated" not in whole.summary() and "| svm |" in whole.summary()
