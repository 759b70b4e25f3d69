"""The baseline of untrained sentence embeddings: the cosine of averaged word vectors."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from headstart.core.data import Examples
from headstart.evaluation.baselines import BaselineResult, NotApplicable
from headstart.evaluation.glove import average, require_vectors
from headstart.evaluation.metrics import about


def glove_cosine(train: Examples, validation: Examples, test: Examples, *, metric: str, seed: int) -> BaselineResult:
    """The cosine of the averaged GloVe vectors of two texts; nothing is trained.

    Reads only the test rows, and is 0 where no word of a text has a vector. The vectors are those of `glove`.
    Paper: Reimers & Gurevych 2019, Sentence-BERT, table 1
    """
    started = time.perf_counter()
    if about(metric).of != "number":
        raise NotApplicable(f"it predicts a similarity, and the gold values are of the kind {about(metric).of!r}")
    texts = list(test.columns.values())
    if len(texts) != 2 or not all(isinstance(text, str) for column in texts for text in column):
        raise NotApplicable(f"it compares two columns of text, and the test rows have {', '.join(test.columns)}")
    path = require_vectors()
    left, right = (average(column, path) for column in texts)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = (left * right).sum(axis=1) / np.maximum(norms, 1e-12)
    return BaselineResult(cosines.tolist(), {"vectors": Path(path).name}, time.perf_counter() - started)
