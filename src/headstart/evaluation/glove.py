"""The baseline of word meaning without order and context: averaged word vectors with a linear model."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from headstart.core.data import Examples
from headstart.core.errors import DataError
from headstart.evaluation.baselines import BaselineResult, NotApplicable
from headstart.evaluation.metrics import Floats
from headstart.evaluation.text_vectors import Embed, learn_from_vectors

VARIABLE = "HEADSTART_GLOVE"
_DEFAULT = "data/vectors/glove-6b-50d-top50k.npz"
_WORD = re.compile(r"\w+|[^\w\s]")


def vectors_path() -> str | None:
    """Return the file of vectors: `HEADSTART_GLOVE`, or the one in the data folder; None where neither exists."""
    data = os.environ.get("HEADSTART_DATA")
    paths = [os.environ.get(VARIABLE), f"{data}/vectors/{Path(_DEFAULT).name}" if data else None, _DEFAULT]
    return next((path for path in paths if path and Path(path).is_file()), None)


def require_vectors() -> str:
    """Return the file of vectors; raises `NotApplicable` where there is none."""
    path = vectors_path()
    if path is None:
        raise NotApplicable(f"there is no file of word vectors; set the variable {VARIABLE} to one")
    return path


def glove(train: Examples, validation: Examples, test: Examples, *, metric: str, seed: int) -> BaselineResult:
    """The mean of each text's GloVe vectors with logistic regression (ridge for numbers), C chosen on validation rows.

    Pairs are encoded as in SentEval: both means, their absolute difference and their product. Words without a vector
    are skipped. The variable `HEADSTART_GLOVE` names the file of vectors: GloVe's text format (`word number number …`),
    or an npz of words and vectors. The result does not depend on the seed.
    Paper: Pennington et al. 2014, GloVe; Conneau & Kiela 2018, SentEval
    """

    def prepare() -> tuple[Embed, dict[str, Any]]:
        path = require_vectors()
        return lambda texts: average(texts, path), {"vectors": Path(path).name}

    return learn_from_vectors("glove", (train, validation, test), metric, prepare)


def average(texts: Sequence[str], path: str) -> Floats:
    """Return the mean vector of each text's words; words without a vector are skipped."""
    index, vectors = _vectors(path)
    means = np.zeros((len(texts), vectors.shape[1]))
    for row, text in enumerate(texts):
        known = [index[word] for word in _WORD.findall(text.lower()) if word in index]
        if known:
            means[row] = vectors[known].mean(axis=0)
    return means


@lru_cache(maxsize=2)
def _vectors(path: str) -> tuple[dict[str, int], Floats]:
    """Return the index of each word, and the vectors."""
    try:
        if path.endswith(".npz"):
            with np.load(path) as arrays:
                words, vectors = arrays["words"].tolist(), arrays["vectors"].astype(np.float64)
        else:
            with open(path, encoding="utf-8") as lines:
                first = next(lines, "").rstrip("\n").split(" ")
                # Some tokens of the largest files contain spaces.
                parts = [first, *(line.rstrip("\n").rsplit(" ", len(first) - 1) for line in lines)]
            words, vectors = [part[0] for part in parts], np.array([part[1:] for part in parts], dtype=np.float64)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} cannot be read as word vectors ({error})",
            allowed="One word and its numbers per line, or an npz of `words` and `vectors`",
            do=f"Set {VARIABLE} to such a file",
        ) from error
    return {word: i for i, word in enumerate(words)}, vectors
