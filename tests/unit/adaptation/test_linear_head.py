"""A linear head equals the scikit-learn model that it was fitted by, and the folder can be opened by `predict`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from headstart.adaptation.contrast import Contrast
from headstart.adaptation.linear_head import _fit
from headstart.adaptation.linear_probe import LinearProbe
from headstart.tasks.classify import Classify
from headstart.tasks.tag import Tag

GENERATOR = np.random.default_rng(0)
ROWS = GENERATOR.normal(size=(60, 5))
NEW = GENERATOR.normal(size=(40, 5))
KINDS = GENERATOR.integers(3, size=60)


def logits(weight, bias):
    return NEW @ weight.T + bias


@pytest.mark.parametrize("weights", [None, "balanced", {0: 3.0, 1: 1.0, 2: 1.0}])
def test_three_labels_are_predicted_as_by_scikit_learn(weights):
    model = LogisticRegression(C=1.0, max_iter=1000, class_weight=weights).fit(ROWS, KINDS)
    layer = _fit(ROWS, KINDS, "single_label_classification", 3, 1.0, weights)
    probabilities = torch.from_numpy(logits(*layer)).softmax(-1).numpy()
    np.testing.assert_allclose(probabilities, model.predict_proba(NEW), atol=1e-6)


def test_two_labels_are_predicted_as_by_scikit_learn():
    targets = (KINDS > 0).astype(int)
    model = LogisticRegression(C=1.0, max_iter=1000).fit(ROWS, targets)
    layer = _fit(ROWS, targets, "single_label_classification", 2, 1.0, None)
    probabilities = torch.from_numpy(logits(*layer)).softmax(-1).numpy()
    np.testing.assert_allclose(probabilities, model.predict_proba(NEW), atol=1e-6)


def test_a_label_without_training_rows_is_never_predicted():
    targets = np.where(KINDS == 1, 3, KINDS)
    layer = _fit(ROWS, targets, "single_label_classification", 4, 1.0, None)
    assert set(logits(*layer).argmax(-1)) <= {0, 2, 3}
    one = _fit(ROWS, np.full(60, 2), "single_label_classification", 4, 1.0, None)
    assert set(logits(*one).argmax(-1)) == {2}
    two = _fit(ROWS, np.where(KINDS == 1, 3, 0), "single_label_classification", 4, 1.0, None)
    assert set(logits(*two).argmax(-1)) == {0, 3}


def test_several_labels_are_one_model_each():
    targets = np.stack([KINDS == 0, KINDS != 1, np.ones(60), np.zeros(60)], axis=1).astype(float)
    layer = _fit(ROWS, targets, "multi_label_classification", 4, 1.0, None)
    found = logits(*layer) > 0
    for label in (0, 1):
        model = LogisticRegression(C=1.0, max_iter=1000).fit(ROWS, targets[:, label])
        assert (found[:, label] == model.predict(NEW).astype(bool)).all()
    assert found[:, 2].all() and not found[:, 3].any()


def test_numbers_are_predicted_as_by_ridge():
    targets = ROWS @ np.arange(5.0) + 7
    layer = _fit(ROWS, targets, "regression", 1, 10.0, None)
    np.testing.assert_allclose(logits(*layer)[:, 0], Ridge(alpha=0.1).fit(ROWS, targets).predict(NEW))


@pytest.mark.parametrize("adaptation", [LinearProbe(), Contrast()])
def test_tasks_without_one_vector_per_text_are_refused(adaptation):
    assert adaptation.supports(Tag(Tag.Config()), "encoder") is not None
    assert adaptation.supports(Classify(Classify.Config()), "encoder-decoder") is not None
    assert adaptation.supports(Classify(Classify.Config()), "encoder") is None


def test_contrast_needs_labels():
    assert "same label" in Contrast().supports(Classify(Classify.Config(regression=True)), "encoder")
    assert LinearProbe().supports(Classify(Classify.Config(regression=True)), "encoder") is None


class Pairs:
    """Stands for a network whose vectors are given, and for its task."""

    def __init__(self, vectors):
        self.vectors = vectors

    def returning_vectors(self):
        from contextlib import nullcontext

        return nullcontext()

    def logits(self, model, batch):
        return self.vectors


def test_the_contrastive_loss_weights_equal_and_different_pairs_equally():
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [3.0, 0.0]])
    pairs = Pairs(vectors)
    # Equal labels: (0, 1) has cosine 0, so its error is 1. Of the five others, (2, 0), (3, 0) and (2, 3) have cosine 1.
    loss = Contrast().loss(pairs, pairs, {"labels": torch.tensor([0, 0, 1, 2])})
    assert loss.item() == pytest.approx(4 * (1.0 + 3 / 5) / 2)
    assert Contrast().loss(Pairs(vectors[:1]), Pairs(vectors[:1]), {"labels": torch.tensor([0])}).item() == 0
