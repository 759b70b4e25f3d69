"""The baseline that a network must beat: TF-IDF with a linear support vector machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from headstart.core import randomness
from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.evaluation.baselines import BaselineResult
from headstart.evaluation.linear import Encode, learn
from headstart.evaluation.metrics import about

_TOKEN = r"(?u)\w+|[^\w\s]"
"""Words of any length and single punctuation marks; scikit-learn's default drops "I", "?" and "n't"."""


def svm(train: Examples, validation: Examples, test: Examples, *, metric: str, seed: int) -> BaselineResult:
    """TF-IDF of words and word pairs with a linear SVM, its C chosen on the validation rows.

    Rows of several columns (pairs of sentences) get the TF-IDF of each column, that of the words which the columns
    share, and four overlap features; without these a linear model cannot detect whether two sentences agree.
    Regression uses linear support vector regression with the squared loss, which optimizes what a correlation rewards,
    has a deterministic solver, and keeps the same C. The model learns from the training rows only, as the networks do.
    Paper: Wang & Manning 2012; Fan et al. 2008 (LIBLINEAR)
    """

    def prepare() -> tuple[Encode, dict[str, Any]]:
        features = TfidfFeatures().fit(train)
        return features.transform, {"features": features.width}

    fit = _regressor if about(metric).of == "number" else _classifier
    return learn("svm", (train, validation, test), metric, prepare, partial(fit, seed=seed))


class TfidfFeatures:
    """Sparse features of rows with one or more text columns, fitted on the training rows."""

    def fit(self, train: Examples) -> TfidfFeatures:
        """Fit the vocabularies: one per column, and one for the words that all columns share."""
        self.columns = list(train.columns)
        texts = self._texts(train)
        self._vectorizers = [_fit_tfidf(column) for column in texts]
        self._shared = _fit_tfidf(self._common(texts)) if len(texts) > 1 else None
        self._overlap_idf = (
            _fit_tfidf([text for column in texts for text in column], ngrams=1) if len(texts) > 1 else None
        )
        if not any(self._vectorizers):
            raise DataError(
                f"the columns {', '.join(self.columns)} contain no words", do="Check the task's text columns"
            )
        self.width = self.transform(train.take([0])).shape[1]
        return self

    def transform(self, examples: Examples) -> sparse.csr_matrix:
        """Return one sparse row per example."""
        texts = self._texts(examples)
        blocks = [
            vectorizer.transform(column)
            for vectorizer, column in zip(self._vectorizers, texts, strict=True)
            if vectorizer
        ]
        if self._shared:
            blocks.append(self._shared.transform(self._common(texts)))
        if self._overlap_idf:
            blocks.append(sparse.csr_matrix(self._overlap(texts)))
        return sparse.hstack(blocks, format="csr")

    def _texts(self, examples: Examples) -> list[list[str]]:
        return [["" if text is None else str(text) for text in examples.columns[name]] for name in self.columns]

    def _common(self, texts: list[list[str]]) -> list[str]:
        """Return for each row the words that occur in all its columns, in the first column's order."""
        split = _splitter()
        shared = []
        for first, *others in zip(*texts, strict=True):
            kept = set.intersection(*(set(split(other)) for other in others))
            shared.append(" ".join(word for word in split(first) if word in kept))
        return shared

    def _overlap(self, texts: list[list[str]]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return four features in [0, 1] per row of the first two columns: cosine, Jaccard, fraction of each side."""
        assert self._overlap_idf is not None
        left, right = (self._overlap_idf.transform(column) for column in texts[:2])
        cosine = np.asarray(left.multiply(right).sum(axis=1)).ravel()
        both = np.asarray((left > 0).multiply(right > 0).sum(axis=1)).ravel()
        n_left, n_right = np.diff(left.indptr), np.diff(right.indptr)
        either = n_left + n_right - both
        ratios = [np.divide(both, size, out=np.zeros(len(both)), where=size > 0) for size in (either, n_left, n_right)]
        return np.column_stack([cosine, *ratios])


def _splitter() -> Callable[[str], list[str]]:
    from sklearn.feature_extraction.text import CountVectorizer

    analyze: Callable[[str], list[str]] = CountVectorizer(token_pattern=_TOKEN).build_analyzer()
    return analyze


def _fit_tfidf(texts: Sequence[str], ngrams: int = 2) -> Any | None:
    """Fit a vectorizer, or return None where the texts contain no word."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=_TOKEN, ngram_range=(1, ngrams), sublinear_tf=True)
    try:
        return vectorizer.fit(texts)
    except ValueError as error:
        if "empty vocabulary" not in str(error):
            raise
        return None


def _classifier(rows: sparse.csr_matrix, labels: Sequence[Any], C: float, seed: int) -> Callable[[Any], list[Any]]:
    from sklearn.svm import LinearSVC

    classes = sorted(set(labels))
    number = {label: code for code, label in enumerate(classes)}
    model = LinearSVC(C=C, random_state=randomness.integer(seed, 0, 0, "svm") % 2**31)
    _fit_quietly(model, rows, [number[label] for label in labels])
    return lambda new: [classes[code] for code in model.predict(new)]


def _regressor(rows: sparse.csr_matrix, labels: Sequence[Any], C: float, seed: int) -> Callable[[Any], list[Any]]:
    from sklearn.svm import LinearSVR

    targets = np.array([float(label) for label in labels])
    # LIBLINEAR regularizes the intercept too; centered targets keep a small C from biasing every prediction.
    center = targets.mean()
    model = LinearSVR(C=C, epsilon=0.0, loss="squared_epsilon_insensitive", dual=False)
    _fit_quietly(model, rows, targets - center)
    return lambda new: [float(value) for value in model.predict(new) + center]


def _fit_quietly(model: Any, rows: sparse.csr_matrix, targets: Any) -> None:
    """Fit without the warning that a large C may not converge: the validation rows decide between models anyway."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(rows, targets)
