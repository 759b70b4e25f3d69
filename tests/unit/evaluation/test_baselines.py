"""Baselines: one signature, test labels are never read, good scores on words and on pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headstart.core import registry
from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.evaluation.baselines import Baseline, NotApplicable, majority
from headstart.evaluation.correlations import pearson, spearman
from headstart.evaluation.labels import accuracy
from headstart.evaluation.linear import C_GRID
from headstart.evaluation.svm import TfidfFeatures, svm

WORDS = [f"word{i}" for i in range(60)]


def sentiment(rows: int, seed: int) -> Examples:
    """Sentences of random words in which one word determines the label."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(["neg", "pos"], rows).tolist()
    texts = [" ".join([*rng.choice(WORDS, 8), {"neg": "awful", "pos": "lovely"}[label]]) for label in labels]
    return Examples({"text": texts}, labels)


def pairs(rows: int, seed: int) -> Examples:
    """Pairs of sentences whose score is the number of words that they share."""
    rng = np.random.default_rng(seed)
    left, right, scores = [], [], []
    for _ in range(rows):
        first = rng.permutation(WORDS)[:10].tolist()
        shared = int(rng.integers(0, 11))
        others = [word for word in rng.permutation(WORDS).tolist() if word not in first]
        left.append(" ".join(first))
        right.append(" ".join(rng.permutation(first[:shared] + others[: 10 - shared])))
        scores.append(shared / 2)
    return Examples({"a": left, "b": right}, scores)


@pytest.mark.parametrize("name", ["majority", "svm"])
@pytest.mark.parametrize("metric", ["accuracy", "pearson"])
def test_a_baseline_of_labels_and_numbers_has_the_signature_and_never_reads_test_labels(name: str, metric: str) -> None:
    baseline: Baseline = registry.resolve("baselines", name)
    make = sentiment if metric == "accuracy" else pairs
    train, validation, test = make(80, 0), make(40, 1), make(30, 2)
    seen = baseline(train, validation, test, metric=metric, seed=0)
    blind = baseline(train, validation, replace(test, labels=[None] * 30), metric=metric, seed=0)
    assert seen.predictions == blind.predictions
    assert len(seen.predictions) == 30
    assert seen.seconds > 0
    assert all(type(value) is type(train.labels[0]) for value in seen.predictions)


def test_majority_predicts_the_most_frequent_label_and_breaks_ties_by_order() -> None:
    test = Examples({"text": ["x", "y"]}, ["?", "?"])
    rows = Examples({"text": ["x"] * 5}, ["b", "a", "b", "c", "b"])
    assert majority(rows, rows, test, metric="accuracy", seed=0).predictions == ["b", "b"]
    tied = Examples({"text": ["x"] * 4}, ["b", "a", "b", "a"])
    assert majority(tied, tied, test, metric="f1", seed=0).predictions == ["a", "a"]
    numbers = Examples({"text": ["x"] * 3}, [1.0, 2.0, 6.0])
    assert majority(numbers, numbers, test, metric="spearman", seed=0).predictions == [3.0, 3.0]


def test_svm_learns_words_and_is_deterministic() -> None:
    train, validation, test = sentiment(200, 0), sentiment(100, 1), sentiment(200, 2)
    result = svm(train, validation, test, metric="accuracy", seed=0)
    assert accuracy(test.labels, result.predictions) > 0.95
    assert result.chosen["C"] in C_GRID
    assert svm(train, validation, test, metric="accuracy", seed=0).predictions == result.predictions


def test_c_is_the_best_on_validation_and_the_smallest_among_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    train, validation, test = sentiment(60, 0), sentiment(60, 1), sentiment(60, 2)
    scores = {}
    for C in C_GRID:
        monkeypatch.setattr("headstart.evaluation.linear.C_GRID", (C,))
        scores[C] = svm(train, validation, test, metric="accuracy", seed=0).chosen["validation_accuracy"]
    monkeypatch.setattr("headstart.evaluation.linear.C_GRID", C_GRID)
    best = svm(train, validation, test, metric="accuracy", seed=0).chosen
    assert best["validation_accuracy"] == max(scores.values())
    assert best["C"] == min(C for C in C_GRID if scores[C] == max(scores.values()))


def test_pairs_are_compared_and_not_only_concatenated() -> None:
    train, validation, test = pairs(150, 0), pairs(80, 1), pairs(150, 2)
    result = svm(train, validation, test, metric="spearman", seed=0)
    assert spearman(test.labels, result.predictions) > 0.9
    assert abs(np.mean(result.predictions) - np.mean(test.labels)) < 0.3
    as_one = [
        Examples({"text": [f"{a} {b}" for a, b in zip(*e.columns.values(), strict=True)]}, e.labels)
        for e in (train, validation, test)
    ]
    joined = svm(*as_one, metric="spearman", seed=0)
    assert spearman(test.labels, joined.predictions) < 0.6


def test_each_column_has_its_own_features() -> None:
    rows = Examples({"a": ["red", "blue"], "b": ["blue", "red"]}, [0, 1])
    first, second = TfidfFeatures().fit(rows).transform(rows).toarray()
    assert not np.array_equal(first, second)


def test_single_letters_and_punctuation_count_as_words() -> None:
    rows = Examples({"text": ["I ?", "a !"] * 10}, [0, 1] * 10)
    assert svm(rows, rows, rows, metric="accuracy", seed=0).predictions == rows.labels


def test_corner_cases_of_few_labels() -> None:
    test = Examples({"a": ["new words"], "b": [None]}, ["x"])
    disjoint = Examples({"a": ["one", "two"], "b": ["three", "four"]}, ["x", "y"])
    assert len(svm(disjoint, disjoint, test, metric="macro_f1", seed=0).predictions) == 1
    single = Examples({"a": ["one", "two"], "b": ["three", "four"]}, ["x", "x"])
    result = svm(single, single, test, metric="accuracy", seed=0)
    assert (result.predictions, result.chosen["C"]) == (["x"], None)
    with pytest.raises(DataError, match="no validation rows"):
        svm(disjoint, Examples({"a": [], "b": []}, []), test, metric="accuracy", seed=0)
    with pytest.raises(DataError, match="contain no words"):
        svm(Examples({"a": ["", " "]}, [0, 1]), Examples({"a": ["x"]}, [0]), test, metric="accuracy", seed=0)


def test_real_pairs_stsb(data_folder: Path) -> None:
    import pyarrow.parquet as parquet

    def split(name: str, rows: int) -> Examples:
        table = parquet.read_table(data_folder / "tasks" / "stsb" / "en" / f"{name}.parquet").slice(0, rows).to_pydict()
        return Examples({column: table[column] for column in ("sentence1", "sentence2")}, table["score"])

    test = split("test", 500)
    result = svm(split("train", 1000), split("validation", 300), test, metric="pearson", seed=0)
    assert pearson(test.labels, result.predictions) > 0.6


def test_the_majority_of_tags_is_per_word() -> None:
    train = Examples({"tokens": [["the", "run"], ["run", "to", "run"], ["the"]]}, [["D", "N"], ["V", "P", "V"], ["D"]])
    test = Examples({"tokens": [["run", "the", "unseen"]]}, [["N", "D", "X"]])
    result = majority(train, train, test, metric="token_accuracy", seed=0)
    assert result.predictions == [["V", "D", "D"]] and result.chosen == {"answer": "D"}


def test_an_svm_does_not_apply_to_lists() -> None:
    tags, texts = Examples({"tokens": [["a"]]}, [["N"]]), Examples({"choices": [["a", "b"]]}, ["a"])
    with pytest.raises(NotApplicable, match="of the kind 'labels'"):
        svm(tags, tags, tags, metric="token_accuracy", seed=0)
    with pytest.raises(NotApplicable, match="'choices' has other values"):
        svm(texts, texts, texts, metric="accuracy", seed=0)


def test_pairs_without_a_number_leave_out_baselines_that_predict_one():
    """A contrastive loss has no gold values, and reads other columns than similarity does."""
    train = Examples({"anchor": ["a", "b"], "positive": ["c", "d"]}, [None, None])
    test = Examples({"sentence1": ["a"], "sentence2": ["b"]}, [2.5])
    for baseline in (majority, svm):
        with pytest.raises(NotApplicable, match="the training rows have none"):
            baseline(train, test, test, metric="spearman", seed=0)
    scored = Examples(train.columns, [1.0, 2.0])
    with pytest.raises(NotApplicable, match="held-out rows lack some"):
        svm(scored, test, test, metric="spearman", seed=0)
