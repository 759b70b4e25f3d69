"""Scores of linear probes by layer: accuracy, control task, selectivity, and the best layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headstart.core.errors import DataError
from headstart.evaluation.comparison import resampling_seed
from headstart.evaluation.intervals import Estimate, bootstrap_mean_of_groups, bootstrap_statistic
from headstart.evaluation.metrics import Floats
from headstart.stages.probe.hidden.label_tasks import LabelTask
from headstart.stages.probe.hidden.linear_probes import control_labels, fit_each, layer_weights, predict_labels
from headstart.stages.probe.hidden.states import WordStates

Hits = npt.NDArray[np.bool_]
_MIX_EXAMPLES = 2000
"""Training words from which the weights of layers are learned."""


def _rises(choosing: Floats, scored: Floats) -> Floats:
    """Return how much `scored` rises from record to record of `choosing`, shape (draws, layers - 1); 0 elsewhere."""
    is_record = choosing[:, 1:] > np.maximum.accumulate(choosing, 1)[:, :-1]
    layer = np.arange(1, choosing.shape[1])
    last = np.maximum.accumulate(np.where(is_record, layer, 0), 1)
    before = np.concatenate([np.zeros((len(choosing), 1), dtype=np.int64), last[:, :-1]], 1)
    return np.asarray(is_record * (scored[:, 1:] - np.take_along_axis(scored, before, 1)))


@dataclass(frozen=True)
class TaskHits:
    """What linear probes of each layer predict correctly on the test words of a task."""

    name: str
    labels: int
    train: int
    groups: npt.NDArray[np.int64]
    """(words,): which sentence each test word is of, numbered from 0."""
    hits: Hits
    """(layers, words)"""
    control: Hits
    """(layers, words): on the control task."""
    majority: float
    """The fraction of test words with the label that is the most frequent in training."""
    weights: list[float]
    """The weight of each layer in a learned mix."""

    @property
    def test(self) -> int:
        """The number of test words."""
        return len(self.groups)

    def estimate(self, values: npt.NDArray[np.generic]) -> Estimate:
        """Return the mean of one value per test word, with the bootstrap interval over sentences."""
        return bootstrap_mean_of_groups(values.tolist(), self.groups.tolist())

    def expected_layer(self, layers: Sequence[int]) -> Estimate:
        """Return the mean layer at which the accuracy rises above that of all earlier layers, weighted by the rise.

        One half of the sentences decides which layers are above all earlier ones, and the other half how much: among
        many equal layers, one is always the best by chance. The interval is a bootstrap over sentences. It is not
        defined where the interval of the whole rise above layer 0 includes zero.

        Paper: after Tenney et al. 2019, whose probes read a mix of all layers up to each one; here the best of them
        """
        sums = np.stack([np.bincount(self.groups, weights=row.astype(np.float64)) for row in self.hits], 1)
        totals, numbers = np.bincount(self.groups).astype(np.float64), np.asarray(layers[1:], dtype=np.float64)

        is_even = np.arange(len(totals)) % 2 == 0

        def rises(counts: Floats) -> Floats:
            with np.errstate(invalid="ignore", divide="ignore"):  # a half without words
                parts = [counts * is_even, counts * ~is_even]
                first, second = ((part @ sums) / (part @ totals)[:, None] for part in parts)
                return _rises(first, second) + _rises(second, first)

        def mean_layer(counts: Floats) -> Floats:
            found = rises(counts)
            total = found.sum(1)
            return np.divide(found @ numbers, total, out=np.full(len(total), np.nan), where=total > 0)

        seed = resampling_seed(sums.ravel().tolist())
        rise = bootstrap_statistic(lambda counts: rises(counts).sum(1), len(totals), seed)
        if rise.low is None or rise.low <= 0:
            return Estimate(None)
        return bootstrap_statistic(mean_layer, len(totals), seed)

    def best(self) -> tuple[Hits, Hits]:
        """Return the hits on the task and on the control task of the best layer.

        For each half of the sentences it is the layer that is the best on the other half: among many layers one is the
        best by chance on the words that chose it.
        """
        chosen = np.full(self.test, int(self.hits.mean(1).argmax()))
        is_even = self.groups % 2 == 0
        for half in (is_even, ~is_even):
            if half.any() and not half.all():
                chosen[half] = int(self.hits[:, ~half].mean(1).argmax())
        words = np.arange(self.test)
        return self.hits[chosen, words], self.control[chosen, words]


def fit_task(states: WordStates, task: LabelTask, seed: int) -> TaskHits:
    """Fit a linear probe to each layer, on the labels of a task and on those of its control task."""
    row_of = {key: row for row, key in enumerate(states.keys())}
    examples = [each for each in task.examples if (each.sentence, 0) in row_of]
    is_test = np.array([each.is_test for each in examples], dtype=bool)
    if not is_test.any() or is_test.all():
        raise DataError(
            f"no words to train or to test the probe for {task.name} fit the network", do="Pass shorter sentences"
        )
    rows = np.array([[row_of[each.sentence, position] for position in each.positions] for each in examples])
    names = sorted({each.label for each in examples})
    number = {name: i for i, name in enumerate(names)}
    labels = np.array([number[each.label] for each in examples])
    train_labels = [each.label for each, held_out in zip(examples, is_test, strict=True) if not held_out]
    drawn = control_labels([each.word for each in examples], train_labels, seed)
    control = np.array([number[label] for label in drawn])

    def hits_of(fit: int) -> Hits:
        features, targets = states.values[fit // 2][rows].reshape(len(rows), -1), (labels, control)[fit % 2]
        predicted = predict_labels(features[~is_test], targets[~is_test], features[is_test])
        return np.asarray(predicted == targets[is_test])

    hits = np.stack(fit_each(hits_of, 2 * len(states.values)))
    train = np.flatnonzero(~is_test)
    most_frequent = np.bincount(labels[train]).argmax()
    few = train[np.linspace(0, len(train) - 1, min(len(train), _MIX_EXAMPLES)).astype(np.int64)]
    mixed = states.values[:, rows[few]].reshape(len(states.layers), len(few), -1)
    _, groups = np.unique([each.sentence for each in examples if each.is_test], return_inverse=True)
    return TaskHits(
        task.name, len(names), len(train), groups, hits[::2], hits[1::2],
        float((labels[is_test] == most_frequent).mean()), layer_weights(mixed, labels[few], seed),
    )  # fmt: skip
