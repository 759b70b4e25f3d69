"""What a baseline is, and the plainest of them: the commonest answer.

Every baseline has one signature: three splits in, predictions for the third out. Labels of the test split
are never read. One that makes no sense for some kind of gold value says so by `NotApplicable`, and is left out.
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


class NotApplicable(HeadstartError):
    """A baseline has nothing to say on such rows; its message is the reason, as a clause."""


@dataclass(frozen=True)
class BaselineResult:
    """A baseline's predictions for the test rows, what it chose on the validation rows, and its time."""

    predictions: list[Any]
    chosen: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Baseline(Protocol):
    """The signature that all baselines share; `metric` selects settings and tells regression from labels."""

    def __call__(
        self, train: Examples, validation: Examples, test: Examples, *, metric: str, seed: int
    ) -> BaselineResult:
        """Learn from `train`, choose settings on `validation`, and predict for `test`."""
        ...


def majority(train: Examples, validation: Examples, test: Examples, *, metric: str, seed: int) -> BaselineResult:
    """The most frequent training label for every row (a regression's mean; for tags, each word's most frequent one).

    Of labels that are equally frequent the first in sorted order is taken, and a word that training did not hold gets
    the most frequent tag of all. The validation rows and the seed are not used.
    """
    started = time.perf_counter()
    if not len(train):
        raise DataError("the majority baseline has no training rows", do="Give at least one labelled row")
    match about(metric).of:
        case "number":
            require_numbers(train)
            answer: Any = float(np.mean([float(label) for label in train.labels]))
            predictions = [answer] * len(test)
        case "label":
            answer = _commonest(Counter(train.labels))
            predictions = [answer] * len(test)
        case "labels":
            answer = _commonest(Counter(tag for tags in train.labels for tag in tags))
            predictions = _by_word(train, test, answer)
        case other:
            raise NotApplicable(
                f"gold values of the kind {other!r} have no most frequent one that would answer a new row"
            )
    return BaselineResult(predictions, {"answer": answer}, time.perf_counter() - started)


def require_numbers(train: Examples) -> None:
    """Refuse training rows without a number to learn, as pairs for a contrastive loss are."""
    if any(isinstance(label, bool) or not isinstance(label, int | float) for label in train.labels):
        raise NotApplicable("it predicts a number, and the training rows have none")


def _by_word(train: Examples, test: Examples, otherwise: Any) -> list[Any]:
    """Give each word the tag that it has most often in training."""
    words = next((name for name, values in train.columns.items() if isinstance(values[0], list)), None)
    if words is None:
        raise NotApplicable("no column holds a list of words for the list of labels")
    counts: defaultdict[Any, Counter[Any]] = defaultdict(Counter)
    for row, tags in zip(train.columns[words], train.labels, strict=True):
        for word, tag in zip(row, tags, strict=True):
            counts[word][tag] += 1
    known = {word: _commonest(found) for word, found in counts.items()}
    return [[known.get(word, otherwise) for word in row] for row in test.columns[words]]


def _commonest(counts: Counter[Any]) -> Any:
    ordered: Iterable[Any] = sorted(counts)
    return min(ordered, key=lambda label: -counts[label])
