"""Linear probes: labels that are in one layer only, random labels, control tasks, and whole runs."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import headstart
from headstart.core.errors import DataError
from headstart.stages.probe.hidden.label_tasks import LabeledWord, LabelTask, read_entities, read_treebank
from headstart.stages.probe.hidden.layer_scores import TaskHits, fit_task
from headstart.stages.probe.hidden.linear_probes import (
    center_of_gravity,
    control_labels,
    layer_weights,
    predict_labels,
)
from headstart.stages.probe.hidden.states import WordStates

LABELS, LAYERS, HIDDEN = 4, 3, 16
SENTENCES, WORDS = 120, 10


def made(kind, seed=0):
    """States in which layer 1 holds the label (`known`) or nothing does (`random`); layer 0 holds the word."""
    rng = np.random.default_rng(seed)
    words = rng.integers(20, size=(SENTENCES, WORDS))
    labels = rng.integers(LABELS, size=(SENTENCES, WORDS))
    values = rng.normal(size=(LAYERS, SENTENCES, WORDS, HIDDEN))
    values[0] = rng.normal(size=(20, HIDDEN))[words] * 3
    if kind == "known":
        values[1, ..., :LABELS] += 6 * np.eye(LABELS)[labels]
    owners, positions = np.repeat(np.arange(SENTENCES), WORDS), np.tile(np.arange(WORDS), SENTENCES)
    states = WordStates([0, 1, 2], values.reshape(LAYERS, -1, HIDDEN).astype(np.float32), owners, positions)
    examples = [
        LabeledWord(i, (k,), f"label {labels[i, k]}", f"word {words[i, k]}")
        for i in range(SENTENCES)
        for k in range(WORDS)
    ]
    return states, LabelTask("tags", examples)


def test_a_label_that_one_layer_holds_is_found_there():
    found = fit_task(*made("known"), seed=0)
    accuracy = found.hits.mean(1)
    assert accuracy[1] > 0.97 and accuracy[[0, 2]].max() < 0.35
    assert found.train == 2 * found.test and found.labels == LABELS and found.majority < 0.35
    hits, control = found.best()
    assert hits.mean() == pytest.approx(accuracy[1])
    selectivity = found.estimate(hits.astype(int) - control)
    assert selectivity.low < selectivity.value < selectivity.high and selectivity.value > 0.5
    assert found.weights[1] > 0.6 and sum(found.weights) == pytest.approx(1.0)
    assert center_of_gravity([0, 1, 2], found.weights) == pytest.approx(
        found.weights[1] + 2 * found.weights[2], abs=1e-6
    )


def test_random_labels_give_chance_and_no_selectivity():
    found = fit_task(*made("random"), seed=0)
    hits, _ = found.best()
    estimate = found.estimate(hits)
    assert estimate.low < 1 / LABELS < estimate.high
    assert abs(found.hits[2].mean() - found.control[2].mean()) < 0.1, "nothing to learn, nothing to learn by heart"


def test_a_layer_that_holds_the_word_solves_the_control_task_and_is_not_selective():
    states, task = made("random")
    found = fit_task(states, task, seed=0)
    assert found.control[0].mean() > 0.95 and found.control[2].mean() < 0.6
    assert found.estimate(found.hits[0].astype(int) - found.control[0]).high < 0


def test_control_labels_belong_to_words_and_have_the_distribution_of_the_labels():
    words = [f"w{i}" for i in range(3000)] * 2
    drawn = control_labels(words, ["a"] * 3 + ["b"], seed=0)
    assert drawn[:3000] == drawn[3000:] and 0.71 < drawn.count("a") / 6000 < 0.79
    assert drawn != control_labels(words, ["a"] * 3 + ["b"], seed=1)


def test_the_best_layer_is_chosen_on_other_sentences():
    """With nothing but noise, the best of many layers looks better than chance on the words that chose it."""
    rng = np.random.default_rng(0)
    hits = rng.random((200, 100)) < 0.5
    found = TaskHits("tags", 2, 100, np.arange(100), hits, hits, 0.5, [1 / 200] * 200)
    assert hits.mean(1).max() > 0.6 and abs(found.best()[0].mean() - 0.5) < 0.1


def test_an_expected_layer_by_hand():
    """Accuracy 20, 40, 30, 80 after layers 0, 2, 4, 6: it rises by 20 at 2 and by 40 at 6, and falls at 4."""
    hits = np.arange(20)[None] // 2 < np.array([[2], [4], [3], [8]])
    found = TaskHits("tags", 2, 100, np.arange(20), hits, hits, 0.5, [0.25] * 4)
    expected = found.expected_layer([0, 2, 4, 6])
    assert expected.value == pytest.approx((20 * 2 + 40 * 6) / 60) and expected.low < expected.value < expected.high
    flat = TaskHits("tags", 2, 100, np.arange(20), hits[[3, 0]], hits[[3, 0]], 0.5, [0.5] * 2)
    assert flat.expected_layer([0, 1]).value is None


def test_equal_layers_do_not_raise_the_expected_layer():
    """All layers after the first one are equally good, so the best of them is above it by chance alone."""
    rng, found = np.random.default_rng(0), []
    groups = np.repeat(np.arange(100), 10)
    for _ in range(60):
        shared, own = rng.random(len(groups)), rng.random((13, len(groups)))
        hits = np.where(rng.random(own.shape) < 0.3, own, shared) < np.array([[0.86], *[[0.93]] * 12])
        found.append(TaskHits("tags", 17, 1, groups, hits, hits, 0.0, [0.0] * 13).expected_layer(list(range(13))).value)
    assert np.mean(found) == pytest.approx(1.0, abs=0.2)


def test_a_rise_that_may_be_chance_has_no_expected_layer():
    """Layers that are as good as layer 0: without the rule, the quotient of two numbers near zero is anywhere."""
    rng, groups = np.random.default_rng(0), np.repeat(np.arange(60), 5)
    found = [
        TaskHits("tags", 17, 1, groups, hits, hits, 0.0, [0.0] * 7).expected_layer(list(range(7)))
        for hits in (rng.random((7, len(groups))) < 0.6 for _ in range(40))
    ]
    assert sum(each.value is None for each in found) >= 36
    assert all(each.value is None or 0 <= each.value <= 6 for each in found)


def test_a_center_of_gravity_by_hand_and_one_label_only():
    assert center_of_gravity([0, 10, 20], [0.25, 0.5, 0.25]) == 10.0
    one = np.zeros(6, np.int64)
    assert (predict_labels(np.ones((6, 2), np.float32), one, np.ones((3, 2), np.float32)) == 0).all()
    equal = layer_weights(
        np.repeat(np.random.default_rng(0).normal(size=(1, 50, 4)), 3, 0).astype(np.float32), one.repeat(9)[:50], 0
    )
    assert equal == pytest.approx([1 / 3] * 3, abs=1e-3), "equal layers have equal weights"


@pytest.fixture
def treebank(tmp_path, verses):
    """Real verses with made-up trees: each word depends on the one before it; tags by the length of a word."""
    words = [verse.split()[:8] for verse in verses if len(verse.split()) >= 8][:60]
    table = pa.table(
        {
            "tokens": words,
            "tags": [["long" if len(word) > 3 else "<b>short</b>" for word in sentence] for sentence in words],
            "heads": [list(range(8))] * len(words),
            "relations": [["root", *["dep:x" if k % 2 else "mod" for k in range(7)]]] * len(words),
        }
    )
    path = tmp_path / "trees.parquet"
    pa.parquet.write_table(table, str(path))
    return path


def test_tasks_of_a_table(treebank, tmp_path):
    text = read_treebank(treebank, "x", 30, 0)
    tags, relations = text.tasks
    assert len(text.sentences) == 30 and tags.name == "tags" and len(tags.examples) == 240
    assert {each.label for each in relations.examples} == {"dep", "mod"}, "without subtypes, and without the root"
    assert relations.examples[0].positions == (1, 0) and sum(each.is_test for each in tags.examples) == 80
    table = pa.parquet.read_table(str(treebank))
    pa.parquet.write_table(table.select(["tokens", "tags"]), str(tmp_path / "tags.parquet"))
    assert [task.name for task in read_treebank(tmp_path / "tags.parquet", "x", 30, 0).tasks] == ["tags"]
    bio = table.select(["tokens"]).append_column("tags", pa.array([["B-PER", "I-PER", *["O"] * 6]] * len(table)))
    pa.parquet.write_table(bio, str(tmp_path / "bio.parquet"))
    (entities,) = read_entities(tmp_path / "bio.parquet", "x", 30, 0).tasks
    assert [each.label for each in entities.examples[:3]] == ["PER", "PER", "O"]


def test_a_table_that_is_too_small_or_broken_is_refused(treebank, tmp_path):
    table = pa.parquet.read_table(str(treebank))
    pa.parquet.write_table(table.slice(0, 5), str(tmp_path / "few.parquet"))
    with pytest.raises(DataError, match=r"has 5 sentences.*need 12 or more"):
        read_treebank(tmp_path / "few.parquet", "few.parquet", 30, 0)
    broken = table.set_column(1, "tags", pa.array([["x"]] * len(table)))
    pa.parquet.write_table(broken, str(tmp_path / "broken.parquet"))
    with pytest.raises(DataError, match=r"row 1: the tags do not belong to the 8 tokens"):
        read_treebank(tmp_path / "broken.parquet", "broken.parquet", 30, 0)


def test_a_run_over_two_models(encoder_folder, decoder_folder, treebank, tmp_path):
    run = headstart.probe(
        encoder_folder, decoder_folder, probes=["layers"], text=treebank, output=tmp_path / "out", limit=45, quiet=True
    )
    names = [str(encoder_folder), str(decoder_folder)]
    rows = run.table("layers")
    assert {row["model"] for row in rows} == set(names) and {row["task"] for row in rows} == {"tags", "relations"}
    for row in rows:
        assert 0 <= row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"] <= 1
        assert row["selectivity"] == pytest.approx(row["accuracy"] - row["control"])
    numbers = run.numbers["probes"]["layers"]
    pairs = {(each["left"], each["right"]): np.array(each["values"]) for each in numbers["cka"]}
    assert (names[0], names[1]) in pairs and len(pairs) == 5
    assert np.diag(pairs[names[0], names[0]]) == pytest.approx(1.0)
    page = run.page.read_text(encoding="utf-8")
    assert "<b>short" not in page and "Selectivity" in page and "45 sentences" in page
    headers = [re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', table) for table in page.split("<table")[1:]]
    assert all(len(set(header)) == len(header) for header in headers), "each column has a name of its own"
    assert any("untrained: weight in the mix" in header for header in headers)
    assert any("untrained: center of gravity" in header for header in headers)
    measures = {row["measure"] for row in run.scores}
    assert measures == {
        "tags, best layer",
        "tags, selectivity",
        "relations, best layer",
        "relations, selectivity",
    }
    scores = {row["measure"]: row for row in run.scores if row["model"] == names[0]}
    assert {"untrained", "layer_0", "majority", "control"} <= scores["tags, best layer"].keys()
