"""One row at a time: its text as it is shown, its length, and its score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headstart.core import registry
from headstart.core.data import Examples
from headstart.core.errors import shorten
from headstart.evaluation.label_sets import LABEL_SET
from headstart.evaluation.metrics import Floats, about

LONGEST_TEXT = 500
"""Characters of a row that are shown."""


def text_of(rows: Examples, row: int) -> str:
    """Return the texts of a row, cut at 500 characters in total; several columns are named."""
    texts = {name: _joined(values[row]) for name, values in rows.columns.items()}
    longest = LONGEST_TEXT // max(1, len(texts))
    if len(texts) == 1:
        return _cut(next(iter(texts.values())), longest)
    return "\n".join(_cut(f"{name}: {text}", longest) for name, text in texts.items())


def text_length(rows: Examples, row: int) -> int:
    """Return the number of characters of all texts of a row."""
    return sum(len(_joined(values[row])) for values in rows.columns.values())


def value_of(value: Any) -> Any:
    """Return a gold or predicted value as it is shown: numbers and short labels as they are, texts cut."""
    if isinstance(value, dict) and "text" in value:
        value = " / ".join(map(str, value["text"])) or "(no answer)"
    if isinstance(value, dict):
        return ", ".join(
            f"{key} {item:.4g}" if isinstance(item, float) else f"{key} {item}" for key, item in value.items()
        )
    if isinstance(value, list):
        value = " ".join(map(str, value))
    return _cut(value, LONGEST_TEXT) if isinstance(value, str) else value


def metric_of_rows(metric: str) -> str:
    """Return the metric for single rows: the task's, or micro F1 for label sets, which is 1 where both are empty."""
    return "multi_label_micro_f1" if about(metric).of == LABEL_SET else metric


def values_of(rows: Examples, row: int, *values: Any) -> list[Any]:
    """Return the gold value and the predictions of a row as they are shown.

    Of the tags of words, those that are not the same in all of them are shown, each after its word.
    """
    words = _words(rows, row, values)
    if words is None:
        return [value_of(value) for value in values]
    tagged = list(zip(words, *values, strict=True))
    differing = [(word, tags) for word, *tags in tagged if any(tag != tags[0] for tag in tags)]
    return [value_of(", ".join(f"{word} {tags[i]}" for word, tags in differing)) for i in range(len(values))]


def score_rows(metric: str, gold: Sequence[Any], predicted: Sequence[Any]) -> Floats:
    """Return the metric on each row alone."""
    metric = metric_of_rows(metric)
    sums = about(metric).sums
    if sums is None:
        function = registry.resolve("metrics", metric)
        return np.array([float(function([a], [b])) for a, b in zip(gold, predicted, strict=True)])
    counts = sums.of_examples(gold, predicted)
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums.value(np.asarray(counts.toarray() if hasattr(counts, "toarray") else counts, dtype=np.float64))


def _words(rows: Examples, row: int, values: Sequence[Any]) -> list[str] | None:
    """Return the words of a row if each value is a list with a tag for every word, else None."""
    if len(rows.columns) != 1:
        return None
    words = next(iter(rows.columns.values()))[row]
    if not isinstance(words, list | tuple) or any(
        not isinstance(value, list) or len(value) != len(words) for value in values
    ):
        return None
    return [str(word) for word in words]


def _joined(value: Any) -> str:
    return " ".join(map(_joined, value)) if isinstance(value, list | tuple) else str(value)


def _cut(text: str, longest: int) -> str:
    # A lone surrogate cannot be written as UTF-8.
    return shorten(text, longest).encode("utf-8", "replace").decode()
