"""The baseline for reading comprehension: the answer that shares most words with the question."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.evaluation.baselines import BaselineResult, NotApplicable
from headstart.evaluation.metrics import about

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def overlap(train: Examples, validation: Examples, test: Examples, *, metric: str, seed: int) -> BaselineResult:
    """The choice, or the sentence of a text, that shares most with the question by TF-IDF.

    Of two text columns the one that is longer on average contains the answers, the other the question; choices are a
    column of lists. Words that are rare in the training rows weigh most; among equals the first is taken.
    Paper: Richardson et al. 2013, MCTest; Clark et al. 2018, ARC
    """
    started = time.perf_counter()
    if not len(train):
        raise DataError("the overlap baseline has no training rows", do="Give at least one row")
    split: Callable[[Any], list[str]]
    match about(metric).of:
        case "label":
            asks, offers = _columns(train, list, "column with a list of choices")
            if not all(type(label) is int for label in train.labels):
                raise NotApplicable("it predicts the index of a choice, and the labels are not integers")
            split, is_text = list, False
        case "answers":
            asks, offers = _columns(train, str, "second column of text")
            split, is_text = sentences, True
        case other:
            raise NotApplicable(f"it picks one of several texts, and the gold values are of the kind {other!r}")
    vectorizer = _fitted([*train.columns[asks], *(t for row in train.columns[offers] for t in split(row))])
    offered = [split(row) for row in test.columns[offers]]
    questions = vectorizer.transform(test.columns[asks])
    texts = vectorizer.transform([text for row in offered for text in row] or [""])
    predictions: list[Any] = []
    start = 0
    for i, row in enumerate(offered):
        shared = np.asarray((texts[start : start + len(row)] @ questions[i].T).todense()).ravel()
        best = int(shared.argmax()) if len(row) else 0
        predictions.append("".join(row[best : best + 1]) if is_text else best)
        start += len(row)
    chosen = {"question": asks, "answers": offers}
    return BaselineResult(predictions, chosen, time.perf_counter() - started)


def sentences(text: str) -> list[str]:
    """Return a text's sentences, split after . ! and ? before a space."""
    return [sentence for sentence in _SENTENCE_END.split(text.strip()) if sentence]


def _columns(train: Examples, kind: type, needed: str) -> tuple[str, str]:
    """Return the column of questions and the column of answers, whose values are of type `kind`."""
    texts = [name for name, values in train.columns.items() if all(isinstance(value, str) for value in values)]
    texts.sort(key=lambda name: sum(map(len, train.columns[name])))
    lists = [name for name, values in train.columns.items() if all(isinstance(value, list) for value in values)]
    offers = texts[1:] if kind is str else lists
    if not texts or not offers:
        raise NotApplicable(f"it compares a question with possible answers, and there is no {needed}")
    return texts[0], offers[-1]


def _fitted(texts: Sequence[str]) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    # Words of any length: the default pattern drops one-letter words, which may be all that a choice has.
    return TfidfVectorizer(token_pattern=r"(?u)\w+", sublinear_tf=True).fit([*texts, "nothing"])
