"""Linear probes on states: what a linear classifier reads from them, and what it could learn by heart."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from headstart.core.randomness import fraction, generator
from headstart.stages.probe.hidden.states import States

T = TypeVar("T")
Labels = npt.NDArray[np.int64]
_C = 0.1
"""Inverse strength of the regularization, on features of variance one."""
_MOST_ITERATIONS, _TOLERANCE = 100, 1e-3
_MIX_EPOCHS, _MIX_ROWS = 20, 256
_MIX_RATE, _MIX_WEIGHT_RATE = 0.003, 0.05
"""Learning rates of the classifier on a mix of layers, and of the weights of the mix."""


def standardize(train: States, test: States) -> tuple[States, States]:
    """Return features with mean 0 and variance 1 in each dimension, both by the training rows."""
    mean, scale = train.mean(0, keepdims=True), train.std(0, keepdims=True) + 1e-6
    return (train - mean) / scale, (test - mean) / scale


def predict_labels(train: States, labels: Labels, test: States) -> Labels:
    """Fit logistic regression to training rows (rows, hidden) and return the predicted labels of test rows."""
    from sklearn.linear_model import LogisticRegression

    if len(set(labels.tolist())) == 1:
        return np.full(len(test), labels[0])
    train, test = standardize(train, test)
    model = LogisticRegression(C=_C, max_iter=_MOST_ITERATIONS, tol=_TOLERANCE).fit(train, labels)
    predicted: Labels = model.predict(test)
    return predicted


def fit_each(fit: Callable[[int], T], count: int) -> list[T]:
    """Call a function that fits a classifier with each number below `count`, and return its results.

    Calls run beside each other, one thread for each: the matrices are so small that a fit takes several times as long
    with two threads, which wait for each other, as with one.
    """
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    pool = ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="headstart-fits")
    with warnings.catch_warnings(), threadpool_limits(1), pool:
        # A fit ends after a fixed number of iterations at the latest; more change the predictions hardly.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return list(pool.map(fit, range(count)))


def control_labels(words: Sequence[str], labels: Sequence[str], seed: int) -> list[str]:
    """Return a random label for each word, the same for all occurrences of a word.

    The labels are drawn from the distribution of `labels`. Nothing but the word itself predicts them, so a probe that
    scores well on them has learned words by heart.

    Paper: Hewitt & Liang 2019, Designing and Interpreting Probes with Control Tasks
    """
    counts = sorted(Counter(labels).items())
    edges = np.cumsum([count for _, count in counts]) / len(labels)
    drawn = {word: fraction(word, seed, "control task") for word in set(words)}
    last = len(counts) - 1
    return [counts[min(last, int(np.searchsorted(edges, drawn[word], side="right")))][0] for word in words]


def layer_weights(states: States, labels: Labels, seed: int) -> list[float]:
    """Return the weight of each layer in the mix from which a linear classifier learns best; they sum to one.

    Algorithm:
        The input is the sum of the layers' states (layers, rows, hidden), each of mean 0 and variance 1, with weights
        that are learned together with the classifier (softmax, Adam).

    Paper: Tenney et al. 2019, BERT Rediscovers the Classical NLP Pipeline
    """
    layers, rows, hidden = states.shape
    scaled = torch.from_numpy((states - states.mean(1, keepdims=True)) / (states.std(1, keepdims=True) + 1e-6))
    targets = torch.from_numpy(labels)
    weights = torch.zeros(layers, requires_grad=True)
    classifier = torch.zeros(hidden, int(labels.max()) + 1, requires_grad=True)
    bias = torch.zeros(classifier.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam(
        [{"params": [classifier, bias], "lr": _MIX_RATE}, {"params": [weights], "lr": _MIX_WEIGHT_RATE}]
    )
    for epoch in range(_MIX_EPOCHS):
        order = generator(seed, epoch, 0, "layer weights").permutation(rows)
        for start in range(0, rows, _MIX_ROWS):
            part = torch.from_numpy(order[start : start + _MIX_ROWS])
            mixed = torch.einsum("l,lrh->rh", weights.softmax(0), scaled[:, part])
            loss = torch.nn.functional.cross_entropy(mixed @ classifier + bias, targets[part])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return [float(weight) for weight in weights.detach().softmax(0)]


def center_of_gravity(layers: Sequence[int], weights: Sequence[float]) -> float:
    """Return the mean of the layers by their weights, which sum to one."""
    return sum(layer * weight for layer, weight in zip(layers, weights, strict=True))
