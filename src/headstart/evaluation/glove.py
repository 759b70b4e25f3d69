"""Averaged word vectors under a linear model: what meaning without order and without context is worth."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.evaluation.baselines import BaselineResult, NotApplicable
from headstart.evaluation.linear import Encode, learn
from headstart.evaluation.metrics import Floats, about

VARIABLE = "HEADSTART_GLOVE"
_DEFAULT = "../shared/data/vectors/glove-6b-50d-top50k.npz"
_WORD = re.compile(r"\w+|[^\w\s]")


def vectors_path() -> str | None:
    """Return the file of vectors: `HEADSTART_GLOVE`, or the one in the folder of data; None where neither is there."""
    data = os.environ.get("HEADSTART_DATA")
    places = [os.environ.get(VARIABLE), f"{data}/vectors/{Path(_DEFAULT).name}" if data else None, _DEFAULT]
    return next((place for place in places if place and Path(place).is_file()), None)


def glove(train: Examples, validation: Examples, test: Examples, *, metric: str, seed: int) -> BaselineResult:
    """The mean of each text's GloVe vectors under logistic regression (ridge for numbers), C chosen on validation rows.

    Pairs are read as SentEval reads them: both means, their absolute difference and their product. Words without a
    vector are passed over. The vectors are a file of GloVe's (`word number number …`), or an npz of words and vectors,
    named by `HEADSTART_GLOVE`. Nothing in it depends on the seed.
    Paper: Pennington et al. 2014, GloVe; Conneau & Kiela 2018, SentEval
    """

    def prepare() -> tuple[Encode, dict[str, Any]]:
        path = vectors_path()
        if path is None:
            raise NotApplicable(f"there is no file of vectors; the variable {VARIABLE} may name one")
        rows = _features(train, path)
        centre, spread = rows.mean(axis=0), rows.std(axis=0) + 1e-6
        return lambda examples: (_features(examples, path) - centre) / spread, {"vectors": Path(path).name}

    fit = _regressor if about(metric).of == "number" else _classifier
    return learn("glove", (train, validation, test), metric, prepare, fit)


def _features(examples: Examples, path: str) -> Floats:
    """Return one row per example: the mean vector, or for pairs both, their difference and their product."""
    means = [_means(values, path) for values in examples.columns.values()]
    if len(means) == 1:
        return means[0]
    left, right = means[:2]
    return np.hstack([*means, np.abs(left - right), left * right])


def _means(texts: Sequence[str], path: str) -> Floats:
    places, vectors = _vectors(path)
    found = np.zeros((len(texts), vectors.shape[1]))
    for row, text in enumerate(texts):
        known = [places[word] for word in _WORD.findall(text.lower()) if word in places]
        if known:
            found[row] = vectors[known].mean(axis=0)
    return found


@lru_cache(maxsize=2)
def _vectors(path: str) -> tuple[dict[str, int], Floats]:
    """Read the words, with their places, and the vectors."""
    try:
        if path.endswith(".npz"):
            with np.load(path) as held:
                words, vectors = held["words"].tolist(), held["vectors"].astype(np.float64)
        else:
            with open(path, encoding="utf-8") as lines:
                parts = [line.rstrip("\n").split(" ") for line in lines]
            words, vectors = [part[0] for part in parts], np.array([part[1:] for part in parts], dtype=np.float64)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path} cannot be read as vectors of words ({error})",
            allowed="One word and its numbers a line, or an npz of `words` and `vectors`",
            do=f"Let {VARIABLE} name such a file",
        ) from error
    return {word: place for place, word in enumerate(words)}, vectors


def _classifier(rows: Floats, labels: Sequence[Any], C: float) -> Callable[[Floats], list[Any]]:
    from sklearn.linear_model import LogisticRegression

    classes = sorted(set(labels))
    number = {label: code for code, label in enumerate(classes)}
    model = LogisticRegression(C=C, max_iter=1000).fit(rows, [number[label] for label in labels])
    return lambda new: [classes[code] for code in model.predict(new)]


def _regressor(rows: Floats, labels: Sequence[Any], C: float) -> Callable[[Floats], list[Any]]:
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=1 / C).fit(rows, [float(label) for label in labels])
    return lambda new: [float(value) for value in model.predict(new)]
