"""The baseline of averaged word vectors."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.evaluation import glove
from headstart.evaluation.baselines import NotApplicable
from headstart.evaluation.glove_cosine import glove_cosine

WORDS = {"good": [1.0, 0.1], "fine": [0.9, 0.0], "bad": [-1.0, 0.1], "poor": [-0.8, 0.0], "day": [0.0, 1.0]}


@pytest.fixture(params=["txt", "npz"])
def vectors(request, tmp_path, monkeypatch):
    path = tmp_path / f"vectors.{request.param}"
    if request.param == "txt":
        path.write_text("".join(f"{word} {' '.join(map(str, v))}\n" for word, v in WORDS.items()), encoding="utf-8")
    else:
        np.savez(path, words=np.array(list(WORDS)), vectors=np.array(list(WORDS.values()), dtype=np.float16))
    monkeypatch.setenv(glove.VARIABLE, str(path))
    return path


def rows(words, label=lambda word: "yes" if word in ("good", "fine") else "no"):
    return Examples({"text": [f"A {word} day!" for word in words]}, [label(word) for word in words], "toy")


def test_it_generalizes_to_words_that_are_not_in_the_training_rows(vectors):
    """Unlike an SVM on words."""
    train, validation, test = rows(["good", "bad"] * 10), rows(["good", "bad"] * 5), rows(["fine", "poor", "unheard"])
    found = glove.glove(train, validation, test, metric="accuracy", seed=0)
    assert found.predictions[:2] == ["yes", "no"] and len(found.predictions) == 3
    assert found.chosen["vectors"] == vectors.name


def test_pairs_are_classified_by_what_they_share(vectors):
    words = ["good", "bad", "fine", "poor"]
    left, right = [a for a in words for _ in words], words * 4
    same = [int((a in ("good", "fine")) == (b in ("good", "fine"))) for a, b in zip(left, right, strict=True)]
    pairs = Examples({"one": left, "other": right}, same, "toy")
    assert glove.glove(pairs, pairs, pairs, metric="accuracy", seed=0).predictions == same


def test_numbers_are_predicted_as_numbers(vectors):
    train = rows(["good", "bad", "fine", "poor"] * 3, lambda word: WORDS[word][0])
    found = glove.glove(train, train, train, metric="pearson", seed=0).predictions
    assert np.corrcoef(found, train.labels)[0, 1] > 0.99


def test_it_explains_where_it_does_not_apply(vectors, monkeypatch, tmp_path):
    toy = rows(["good", "bad"])
    with pytest.raises(NotApplicable, match="of the kind 'text'"):
        glove.glove(toy, toy, toy, metric="bleu", seed=0)
    monkeypatch.setenv(glove.VARIABLE, str(tmp_path / "none"))
    monkeypatch.setattr(glove, "_DEFAULT", str(tmp_path / "neither"))
    monkeypatch.setenv("HEADSTART_DATA", str(tmp_path))
    with pytest.raises(NotApplicable, match="set the variable HEADSTART_GLOVE"):
        glove.glove(toy, toy, toy, metric="accuracy", seed=0)


def test_a_token_may_contain_spaces(tmp_path):
    (tmp_path / "vectors.txt").write_text("good 1 2\n. . . 3 4\n", encoding="utf-8")
    assert glove.average(["good"], str(tmp_path / "vectors.txt")).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and then it ends"])
def test_a_damaged_archive_is_refused(content, tmp_path):
    (tmp_path / "vectors.npz").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as word vectors"):
        glove.average(["good"], str(tmp_path / "vectors.npz"))


def test_a_file_without_vectors_is_refused(monkeypatch, tmp_path):
    path = tmp_path / "broken.txt"
    path.write_text("good one two\n", encoding="utf-8")
    monkeypatch.setenv(glove.VARIABLE, str(path))
    toy = rows(["good", "bad"])
    with pytest.raises(DataError, match="cannot be read as word vectors"):
        glove.glove(toy, toy, toy, metric="accuracy", seed=0)


def test_the_cosine_of_averaged_vectors(vectors):
    left = ["good day", "good", "good", "unheard"]
    right = ["Good, fine day!", "bad", "fine", "good"]
    pairs = Examples({"one": left, "other": right}, [0.0] * 4, "toy")
    found = glove_cosine(pairs.take([]), pairs.take([]), pairs, metric="spearman", seed=0)
    stored = {word: np.float16(v).astype(float) if vectors.suffix == ".npz" else v for word, v in WORDS.items()}
    means = [np.mean([stored[w] for w in words], axis=0) for words in (["good", "day"], ["good", "fine", "day"])]
    expected = means[0] @ means[1] / np.linalg.norm(means[0]) / np.linalg.norm(means[1])
    assert found.predictions[0] == pytest.approx(expected)
    assert found.predictions[1] < -0.9 and found.predictions[2] > 0.99 and found.predictions[3] == 0.0
    assert found.chosen == {"vectors": vectors.name}


def test_the_cosine_needs_scored_pairs(vectors):
    single = rows(["good", "bad"], lambda word: 1.0)
    with pytest.raises(NotApplicable, match="two columns of text"):
        glove_cosine(single, single, single, metric="spearman", seed=0)
    with pytest.raises(NotApplicable, match="of the kind 'label'"):
        glove_cosine(single, single, single, metric="accuracy", seed=0)
