"""What a baseline is, and the simplest one: the majority class.

Every baseline has one signature: it takes three splits and returns predictions for the third. Labels of the test split
are never read. A baseline that cannot predict a kind of gold value raises `NotApplicable`, and is left out.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from headstart.core.data import Examples
from headstart.core.errors import DataError, HeadstartError
from headstart.evaluation.metrics import about

READ_WHOLE_TEXTS = ("svm", "static", "glove", "glove_cosine", "overlap", "lead")
"""The baselines that read a text to its end, where a network reads at most `training.max_length` tokens."""

UNTRAINED = ("glove_cosine",)
"""The baselines that read neither training nor validation rows."""


class NotApplicable(HeadstartError):
    """A baseline cannot predict such rows; the message is the reason, as a clause."""


@dataclass(frozen=True)
class BaselineResult:
    """A baseline's predictions for the test rows, the settings chosen on the validation rows, and its time."""

    predictions: list[Any]
    chosen: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Baseline(Protocol):
    """The signature of all baselines; `metric` selects settings and distinguishes regression from labels."""

    def __call__(
        self, train: Examples, validation: Examples, test: Examples, *, metric: str, seed: int
    ) -> BaselineResult:
        """Learn from `train`, choose settings on `validation`, and predict for `test`."""
        ...


def majority(train: Examples, validation: Examples, test: Examples, *, metric: str, seed: int) -> BaselineResult:
    """The most frequent training label for every row (for regression the mean; for tags each word's most frequent tag).

    Among equally frequent labels the first in sorted order is taken. A word that is not in the training rows gets the
    most frequent tag of all. The validation rows and the seed are not used.
    """
    started = time.perf_counter()
    if not len(train):
        raise DataError("the majority baseline has no training rows", do="Give at least one labeled row")
    match about(metric).of:
        case "number":
            require_numbers(train)
            answer: Any = float(np.mean([float(label) for label in train.labels]))
            predictions = [answer] * len(test)
        case "label":
            answer = _most_frequent(Counter(train.labels))
            predictions = [answer] * len(test)
        case "label set":
            answer = list(_most_frequent(Counter(tuple(labels) for labels in train.labels)))
            predictions = [answer] * len(test)
        case "labels":
            answer = _most_frequent(Counter(tag for tags in train.labels for tag in tags))
            predictions = _by_word(train, test, answer)
        case other:
            raise NotApplicable(f"a most frequent value makes no sense for gold values of the kind {other!r}")
    return BaselineResult(predictions, {"answer": answer}, time.perf_counter() - started)


def require_numbers(train: Examples) -> None:
    """Refuse training rows without numbers to learn, such as pairs for a contrastive loss."""
    if any(isinstance(label, bool) or not isinstance(label, int | float) for label in train.labels):
        raise NotApplicable("it predicts a number, and the training rows have none")


def _by_word(train: Examples, test: Examples, default: Any) -> list[Any]:
    """Return for each word its most frequent tag in the training rows."""
    words = next((name for name, values in train.columns.items() if isinstance(values[0], list)), None)
    if words is None:
        raise NotApplicable("no column has a list of words for the list of labels")
    counts: defaultdict[Any, Counter[Any]] = defaultdict(Counter)
    for row, tags in zip(train.columns[words], train.labels, strict=True):
        for word, tag in zip(row, tags, strict=True):
            counts[word][tag] += 1
    known = {word: _most_frequent(tags) for word, tags in counts.items()}
    return [[known.get(word, default) for word in row] for row in test.columns[words]]


def _most_frequent(counts: Counter[Any]) -> Any:
    ordered: Iterable[Any] = sorted(counts)
    return min(ordered, key=lambda label: -counts[label])
